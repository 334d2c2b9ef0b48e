"""Streams: take messages from many topics, fairly and within limits, through plans."""

from tidemill.engine.batching import Batched
from tidemill.streams.definition.config import read_config
from tidemill.streams.definition.plans import Batch, Filtered, Plan, task
from tidemill.streams.definition.stream import PlanSettings, Stream
from tidemill.streams.engine.circuit_breaker import BreakerRule
from tidemill.streams.engine.context import Context, Message

__all__ = [
    "Batch",
    "Batched",
    "BreakerRule",
    "Context",
    "Filtered",
    "Message",
    "Plan",
    "PlanSettings",
    "Stream",
    "read_config",
    "task",
]
