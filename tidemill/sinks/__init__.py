"""Where streams send results: the same brokers that sources read.

from tidemill.sinks import HttpSink, KafkaSink
"""

from tidemill.sinks.base import ItemRefused, Sender, Sink, SinkItem, Unreachable
from tidemill.sinks.http import HttpSink
from tidemill.sinks.kafka import KafkaSink
from tidemill.sinks.log import LogSink
from tidemill.sinks.nats import NatsSink
from tidemill.sinks.redis import RedisSink

#: Every kind of sink by its `type` in configuration.
SINK_KINDS: dict[str, type[Sink]] = {
    "http": HttpSink,
    "kafka": KafkaSink,
    "log": LogSink,
    "nats": NatsSink,
    "redis": RedisSink,
}

__all__ = [
    "SINK_KINDS",
    "HttpSink",
    "ItemRefused",
    "KafkaSink",
    "LogSink",
    "NatsSink",
    "RedisSink",
    "Sender",
    "Sink",
    "SinkItem",
    "Unreachable",
]
