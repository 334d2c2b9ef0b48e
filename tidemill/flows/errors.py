"""What goes wrong in a flow, by the names that users of LlamaIndex Workflows catch.

All of them are `TidemillError`s too. A step's own exception is never wrapped: awaiting a run raises it as it was.
"""

from __future__ import annotations

from tidemill.core.errors import TidemillError


class WorkflowValidationError(TidemillError):
    """A step, an error handler or the graph of a workflow that cannot work as declared."""


class WorkflowConfigurationError(TidemillError):
    """A workflow class that has no beginning, no end, or more than one kind of either."""


class WorkflowRuntimeError(TidemillError):
    """A step returned, or a caller sent, what the run can do nothing with."""


class WorkflowStepDoesNotExistError(WorkflowRuntimeError):
    """An event is addressed to a step that the workflow does not have."""


class WorkflowTimeoutError(TidemillError):
    """The run took longer than its timeout."""


class WorkflowCancelledByUser(TidemillError):
    """Somebody cancelled the run."""


class WorkflowDone(TidemillError):
    """The run is over; what still worked for it may stop."""


class ContextSerdeError(TidemillError):
    """A saved context that cannot be read, or a context that cannot be saved."""


class ContextStateError(TidemillError):
    """A context was asked for something that it cannot do before, inside or outside of a step."""


class StateTypeError(WorkflowConfigurationError, ValueError):
    """The steps of one workflow declare state types that have nothing in common."""


class ResourceCycleError(WorkflowConfigurationError, ValueError):
    """A resource needs itself, directly or through others."""


class ResourceFileError(WorkflowConfigurationError, ValueError):
    """A resource's configuration file that is missing, is not JSON, or lacks what was selected in it."""
