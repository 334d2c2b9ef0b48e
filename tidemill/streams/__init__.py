"""Streams: take messages from many topics, fairly and within limits, through plans."""

from tidemill.streams.definition.config import read_config
from tidemill.streams.definition.plans import Batch, Filtered, Plan, task
from tidemill.streams.definition.stream import PlanSettings, Stream
from tidemill.streams.engine.batching import Batched
from tidemill.streams.engine.circuit_breaker import BreakerRule
from tidemill.streams.engine.context import Context, Message
from tidemill.streams.sources.base import Source
from tidemill.streams.sources.http import HttpSource
from tidemill.streams.sources.jsonl import JsonlSource
from tidemill.streams.sources.kafka import KafkaSource
from tidemill.streams.sources.nats import NatsSource
from tidemill.streams.sources.postgres import PostgresSource
from tidemill.streams.sources.redis import RedisSource

__all__ = [
    "Batch",
    "Batched",
    "BreakerRule",
    "Context",
    "Filtered",
    "HttpSource",
    "JsonlSource",
    "KafkaSource",
    "Message",
    "NatsSource",
    "Plan",
    "PlanSettings",
    "PostgresSource",
    "RedisSource",
    "Source",
    "Stream",
    "read_config",
    "task",
]
