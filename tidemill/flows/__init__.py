"""Event-driven workflows: steps that take events and return events, on a pure control loop.

from tidemill.flows import Workflow, step, Context, StartEvent, StopEvent, Event
"""

from tidemill.flows.collect import All, Collect, Take
from tidemill.flows.context import Context
from tidemill.flows.decorators import catch_error, step
from tidemill.flows.events import (
    Event,
    HumanResponseEvent,
    InputRequiredEvent,
    StartEvent,
    StepFailedEvent,
    StopEvent,
)
from tidemill.flows.handler import WorkflowHandler
from tidemill.flows.resource import Resource, ResourceConfig
from tidemill.flows.retry_policy import retry_policy
from tidemill.flows.workflow import Workflow

__all__ = [
    "All",
    "Collect",
    "Context",
    "Event",
    "HumanResponseEvent",
    "InputRequiredEvent",
    "Resource",
    "ResourceConfig",
    "StartEvent",
    "StepFailedEvent",
    "StopEvent",
    "Take",
    "Workflow",
    "WorkflowHandler",
    "catch_error",
    "retry_policy",
    "step",
]
