"""Clients of Kafka, and their messages as deliveries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import structlog

from tidemill.sources.delivery import Delivery

if TYPE_CHECKING:
    from tidemill.sources.kafka.source import KafkaSource

log = structlog.get_logger("tidemill.sources")


def new_client(source: KafkaSource, settings: Mapping[str, Any]) -> Any:
    """A client with these settings; those of the source's `config` come last."""
    from confluent_kafka import Consumer

    fixed = {"bootstrap.servers": source.bootstrap, "enable.auto.commit": False, "logger": _ClientLog()}
    return Consumer({**fixed, **settings, **source.config})


def delivery_of(message: Any, token: Any = None) -> Delivery:
    """A message of the client as a delivery."""
    kind, milliseconds = message.timestamp()
    headers = message.headers()
    return Delivery(
        message.value() or b"",
        message.offset(),
        message.partition(),
        milliseconds / 1000 if kind else 0.0,
        message.key(),
        None if not headers else tuple((name, value or b"") for name, value in headers),
        token=token,
    )


class _ClientLog:
    """Writes the client's own log lines at debug level: what matters arrives as the error of a message."""

    def log(self, level: int, message: str, *arguments: object) -> None:
        log.debug("kafka client", line=message % arguments if arguments else message)
