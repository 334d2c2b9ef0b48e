"""Errors of flows, with the class names that users of LlamaIndex Workflows catch.

All of them are also `TidemillError`s. The exception of a step is never wrapped: awaiting a run raises it unchanged.
"""

from __future__ import annotations

from tidemill.core.errors import TidemillError


class WorkflowValidationError(TidemillError):
    """The declaration of a step, an error handler or the graph of a workflow is invalid."""


class WorkflowConfigurationError(TidemillError):
    """A workflow class has no start event or stop event, or more than one class of either."""


class WorkflowRuntimeError(TidemillError):
    """A step returned, or a caller sent, a value that the run cannot process."""


class RunNeedsAttentionError(WorkflowRuntimeError):
    """The run cannot go on by itself: it waits for a deployment that fits it, or for its cancellation."""


class WorkflowStepDoesNotExistError(WorkflowRuntimeError):
    """An event is addressed to a step that the workflow does not have."""


class WorkflowTimeoutError(TidemillError):
    """The run took longer than its timeout."""


class WorkflowCancelledByUser(TidemillError):
    """The run was cancelled."""


class WorkflowDone(TidemillError):
    """The run has ended; remaining work may stop."""


class ContextSerdeError(TidemillError):
    """A context cannot be saved or loaded."""


class ContextStateError(TidemillError):
    """A method of a context was called where it is not available: before the run, inside or outside of a step."""


class StepDiverged(BaseException):
    """A step that runs again does something else than its record says.

    It is not an `Exception`, so that a step cannot handle it by accident: the run stops, and needs attention.
    """


class StateTypeError(WorkflowConfigurationError, ValueError):
    """The steps of one workflow declare unrelated state types."""


class ResourceCycleError(WorkflowConfigurationError, ValueError):
    """A resource depends on itself, directly or indirectly."""


class ResourceFileError(WorkflowConfigurationError, ValueError):
    """The configuration file of a resource is missing, is not JSON, or lacks the selected part."""


class ResourceFileMissingError(ResourceFileError, FileNotFoundError):
    """The configuration file of a resource does not exist."""
