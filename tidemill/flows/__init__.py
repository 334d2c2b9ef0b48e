"""Event-driven workflows: steps that take events and return events, driven by a pure control loop.

from tidemill.flows import Workflow, step, Context, StartEvent, StopEvent, Event
"""

from tidemill.flows.definition.collect import All, Collect, Take
from tidemill.flows.definition.decorators import catch_error, migrate, step
from tidemill.flows.definition.events import (
    CompensationEvent,
    Event,
    HumanResponseEvent,
    InputRequiredEvent,
    StartEvent,
    StepFailedEvent,
    StopEvent,
)
from tidemill.flows.definition.older_run import OlderEvent, OlderRun
from tidemill.flows.definition.resource import Resource, ResourceConfig
from tidemill.flows.definition.retry_policy import retry_policy
from tidemill.flows.definition.workflow import Workflow
from tidemill.flows.encoding.classes import renamed_from
from tidemill.flows.runner.run_handle import RunHandle
from tidemill.flows.runner.steps.context import Context
from tidemill.flows.runner.workflow_handler import WorkflowHandler

__all__ = [
    "All",
    "Collect",
    "CompensationEvent",
    "Context",
    "Event",
    "HumanResponseEvent",
    "InputRequiredEvent",
    "OlderEvent",
    "OlderRun",
    "Resource",
    "ResourceConfig",
    "RunHandle",
    "StartEvent",
    "StepFailedEvent",
    "StopEvent",
    "Take",
    "Workflow",
    "WorkflowHandler",
    "catch_error",
    "migrate",
    "renamed_from",
    "retry_policy",
    "step",
]
