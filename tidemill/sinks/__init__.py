"""Where streams send results: the same brokers that sources read.

from tidemill.sinks import HttpSink, KafkaSink
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.core.lazy_exports import lazy_exports
from tidemill.sinks.base import ItemRefused, Sender, Sink, SinkItem, Unreachable

if TYPE_CHECKING:
    from tidemill.sinks.http import HttpSink
    from tidemill.sinks.kafka import KafkaSink
    from tidemill.sinks.log import LogSink
    from tidemill.sinks.nats import NatsSink
    from tidemill.sinks.redis import RedisSink

_HOMES = {"HttpSink": "http", "KafkaSink": "kafka", "LogSink": "log", "NatsSink": "nats", "RedisSink": "redis"}

__getattr__ = lazy_exports(__name__, _HOMES)


def sink_kinds() -> dict[str, type[Sink]]:
    """Every kind of sink by its `type` in configuration."""
    return {home: __getattr__(name) for name, home in _HOMES.items()}


__all__ = [
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
    "sink_kinds",
]
