"""Where messages and events come from, for streams and monitors alike.

from tidemill.sources import KafkaSource, PostgresSource
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.core.lazy_exports import lazy_exports
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

__getattr__ = lazy_exports(__name__, _HOMES)


def source_kinds() -> dict[str, type[Source]]:
    """Every kind of source by its `type` in configuration."""
    return {home.partition(".")[0]: __getattr__(name) for name, home in _HOMES.items()}


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
