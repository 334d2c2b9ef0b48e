"""Tidemill: a work engine for Python teams, on one PostgreSQL.

from tidemill import App
app = App("shop")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.core.lazy_exports import lazy_exports
from tidemill.version import VERSION as __version__

if TYPE_CHECKING:
    from tidemill.app import App
    from tidemill.batches import BatchFailedError, BatchHandle
    from tidemill.core.errors import TidemillError
    from tidemill.core.jobs.batch import BatchView
    from tidemill.core.jobs.injected import INJECTED
    from tidemill.core.retry import Discard, RetryAfter, RetryPolicy, Snooze
    from tidemill.engine.application.middleware import Invocation, Middleware
    from tidemill.engine.batching import Batch
    from tidemill.engine.jobs.job_handle import JobFailedError, JobHandle
    from tidemill.engine.jobs.task import Call, Task
    from tidemill.engine.jobs.view import JobView
    from tidemill.engine.models.spec import ModelError, ModelSpec
    from tidemill.engine.worker.context import JobCancelled, current_job

__getattr__ = lazy_exports(
    __name__,
    {
        "INJECTED": "core.jobs.injected",
        "App": "app",
        "Batch": "engine.batching",
        "BatchFailedError": "batches",
        "BatchHandle": "batches",
        "BatchView": "core.jobs.batch",
        "Call": "engine.jobs.task",
        "Discard": "core.retry",
        "Invocation": "engine.application.middleware",
        "JobCancelled": "engine.worker.context",
        "JobFailedError": "engine.jobs.job_handle",
        "JobHandle": "engine.jobs.job_handle",
        "JobView": "engine.jobs.view",
        "Middleware": "engine.application.middleware",
        "ModelError": "engine.models.spec",
        "ModelSpec": "engine.models.spec",
        "RetryAfter": "core.retry",
        "RetryPolicy": "core.retry",
        "Snooze": "core.retry",
        "Task": "engine.jobs.task",
        "TidemillError": "core.errors",
        "current_job": "engine.worker.context",
    },
)


def __dir__() -> list[str]:
    return __all__


__all__ = [
    "INJECTED",
    "App",
    "Batch",
    "BatchFailedError",
    "BatchHandle",
    "BatchView",
    "Call",
    "Discard",
    "Invocation",
    "JobCancelled",
    "JobFailedError",
    "JobHandle",
    "JobView",
    "Middleware",
    "ModelError",
    "ModelSpec",
    "RetryAfter",
    "RetryPolicy",
    "Snooze",
    "Task",
    "TidemillError",
    "__version__",
    "current_job",
]
