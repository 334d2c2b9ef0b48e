"""The origin of work that this process starts."""

from __future__ import annotations

import os
import socket

from tidemill.core.jobs.job import Origin

_HOST = socket.gethostname()


def origin_here(
    by: str,
    *,
    parent: int | None = None,
    schedule: str | None = None,
    fire: float | None = None,
    reason: str | None = None,
) -> Origin:
    """The origin of a job or run that this process stores."""
    return Origin(by=by, host=_HOST, pid=os.getpid(), schedule=schedule, fire=fire, parent=parent, reason=reason)
