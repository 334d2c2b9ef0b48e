"""What spans need of `llama_index_instrumentation`; imported only in processes that use that package."""

from __future__ import annotations

from llama_index_instrumentation import get_dispatcher
from llama_index_instrumentation.base import BaseEvent
from llama_index_instrumentation.dispatcher import active_instrument_tags, instrument_tags
from llama_index_instrumentation.events.span import SpanDropEvent
from llama_index_instrumentation.span import active_span_id

__all__ = [
    "SpanCancelledEvent",
    "SpanDropEvent",
    "WorkflowRunOutputEvent",
    "WorkflowStepOutputEvent",
    "active_instrument_tags",
    "active_span_id",
    "dispatcher",
    "instrument_tags",
]

dispatcher = get_dispatcher("workflows.workflow")


class SpanCancelledEvent(BaseEvent):
    """The work of a span was cancelled."""

    reason: str

    @classmethod
    def class_name(cls) -> str:
        return "SpanCancelledEvent"


class WorkflowStepOutputEvent(BaseEvent):
    """A step has returned an event, in one line."""

    output: str

    @classmethod
    def class_name(cls) -> str:
        return "step.output"


class WorkflowRunOutputEvent(BaseEvent):
    """A run has ended with an event, in one line."""

    output: str

    @classmethod
    def class_name(cls) -> str:
        return "workflow.output"
