"""Where messages and events come from, for streams and monitors alike.

from tidemill.sources import KafkaSource, PostgresSource
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tidemill.sources.base import PageReader, PartitionReader, RecordPage, Source, SourceError
from tidemill.sources.delivery import Delivery

if TYPE_CHECKING:
    from tidemill.sources.engine import EngineSource
    from tidemill.sources.http import HttpSource
    from tidemill.sources.jsonl import JsonlSource
    from tidemill.sources.kafka.source import KafkaSource
    from tidemill.sources.log import LogSource
    from tidemill.sources.nats.source import NatsSource
    from tidemill.sources.postgres import PostgresSource
    from tidemill.sources.redis import RedisSource

# Each is loaded when it is first used: most applications have one or two of them.
_HOMES = {
    "EngineSource": "engine",
    "HttpSource": "http",
    "JsonlSource": "jsonl",
    "KafkaSource": "kafka.source",
    "LogSource": "log",
    "NatsSource": "nats.source",
    "PostgresSource": "postgres",
    "RedisSource": "redis",
}


def source_kinds() -> dict[str, type[Source]]:
    """Every kind of source by its `type` in configuration."""
    return {home.partition(".")[0]: __getattr__(name) for name, home in _HOMES.items()}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found


__all__ = [
    "Delivery",
    "EngineSource",
    "HttpSource",
    "JsonlSource",
    "KafkaSource",
    "LogSource",
    "NatsSource",
    "PageReader",
    "PartitionReader",
    "PostgresSource",
    "RecordPage",
    "RedisSource",
    "Source",
    "SourceError",
    "source_kinds",
]
