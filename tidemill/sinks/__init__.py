"""Where streams send results: the same brokers that sources read.

from tidemill.sinks import HttpSink, KafkaSink
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tidemill.sinks.base import ItemRefused, Sender, Sink, SinkItem, Unreachable

if TYPE_CHECKING:
    from tidemill.sinks.http import HttpSink
    from tidemill.sinks.kafka import KafkaSink
    from tidemill.sinks.log import LogSink
    from tidemill.sinks.nats import NatsSink
    from tidemill.sinks.redis import RedisSink

# Each is loaded when it is first used: most applications have one or none of them.
_HOMES = {"HttpSink": "http", "KafkaSink": "kafka", "LogSink": "log", "NatsSink": "nats", "RedisSink": "redis"}


def sink_kinds() -> dict[str, type[Sink]]:
    """Every kind of sink by its `type` in configuration."""
    return {home: __getattr__(name) for name, home in _HOMES.items()}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found


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
