"""Tidemill: a work engine for Python teams, on one PostgreSQL.

from tidemill import App
app = App("shop")
"""

from tidemill.app import App
from tidemill.core.errors import TidemillError
from tidemill.core.job import JobRef
from tidemill.core.retry import Discard, RetryAfter, RetryPolicy, Snooze
from tidemill.engine.context import JobCancelled, current_job
from tidemill.engine.jobview import JobView
from tidemill.engine.modelspec import ModelError, ModelSpec
from tidemill.engine.task import Task
from tidemill.version import VERSION as __version__

__all__ = [
    "App",
    "Discard",
    "JobCancelled",
    "JobRef",
    "JobView",
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
