"""Where messages and events come from, for streams and monitors alike.

from tidemill.sources import KafkaSource, PostgresSource
"""

from tidemill.sources.base import PageReader, PartitionReader, RecordPage, Source, SourceError
from tidemill.sources.delivery import Delivery
from tidemill.sources.engine import EngineSource
from tidemill.sources.http import HttpSource
from tidemill.sources.jsonl import JsonlSource
from tidemill.sources.kafka.source import KafkaSource
from tidemill.sources.log import LogSource
from tidemill.sources.nats.source import NatsSource
from tidemill.sources.postgres import PostgresSource
from tidemill.sources.redis import RedisSource

#: Every kind of source by its `type` in configuration.
KINDS: dict[str, type[Source]] = {
    "engine": EngineSource,
    "http": HttpSource,
    "jsonl": JsonlSource,
    "kafka": KafkaSource,
    "log": LogSource,
    "nats": NatsSource,
    "postgres": PostgresSource,
    "redis": RedisSource,
}

__all__ = [
    "KINDS",
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
]
