"""The origin of work that this process starts: the work, request or process that it follows from.

Its form in words is the same for all shapes, `job 7 (split)`, `run r7`, `message STREAM/SOURCE:PLACE` or
`state PIPELINE/STAGE/ENTITY`, so that `tidemill explain` can follow it back.
"""

from __future__ import annotations

import os
import re
import socket
from contextvars import ContextVar

from tidemill.core.codec import storable
from tidemill.core.jobs.job import Origin
from tidemill.engine.worker.context import find_current_job
from tidemill.engine.worker.log_capture import find_listener

_HOST = socket.gethostname()

#: The state that the calling code builds, and the request that it answers.
_state: ContextVar[str | None] = ContextVar("tidemill_state", default=None)
_request: ContextVar[str | None] = ContextVar("tidemill_request", default=None)

_RUN = re.compile(r"run r(\d+)")
_CAUSE = re.compile(r"(?:failed )?job (\d+)(?: .*)?|run (r\d+)|batch (b\d+)|(?:message|state) (.+)", re.DOTALL)


def origin_here(
    by: str,
    *,
    parent: int | None = None,
    run: int | None = None,
    schedule: str | None = None,
    fire: float | None = None,
    reason: str | None = None,
) -> Origin:
    """The origin of a job or run that this process stores."""
    return Origin(
        by=by, host=_HOST, pid=os.getpid(), schedule=schedule, fire=fire, parent=parent, reason=reason,
        run=run, request=_request.get(),
    )  # fmt: skip


def origin_of_code(otherwise: str) -> Origin:
    """The origin of a job or run that the calling code starts: the work that it runs in, or else a program in words."""
    job, work = find_current_job(), current_work()
    run = None if job is not None or work is None else _RUN.fullmatch(work)
    return origin_here(work or otherwise, parent=None if job is None else job.id, run=int(run[1]) if run else None)


def current_work() -> str | None:
    """The work that the calling code runs in, in words; None if it is none of ours."""
    if (state := _state.get()) is not None:
        return state
    if (job := find_current_job()) is not None:
        return f"job {job.id} ({job.task})"
    return getattr(find_listener(), "work", None)


def origin_text(by: str | None = None) -> str | None:
    """The origin of a message or state that the calling code writes; `by` is the user that asks for it."""
    if by is None:
        return current_work()
    request = _request.get()
    return storable(by if request is None else f"request {request} by {by}")


class building:
    """What the block starts follows from this state."""

    __slots__ = ("_state", "_token")

    def __init__(self, pipeline: str, stage: str, entity: str) -> None:
        self._state = f"state {pipeline}/{stage}/{entity}"

    def __enter__(self) -> None:
        self._token = _state.set(self._state)

    def __exit__(self, *_: object) -> None:
        _state.reset(self._token)


def enter_request(method: str, path: str) -> None:
    """What the calling task starts follows from this request."""
    _request.set(storable(f"{method} {path}"))


def cause_of(by: str | None) -> str | None:
    """The id of the work that is named in words; None if these name a person, program or request."""
    found = None if by is None else _CAUSE.fullmatch(by)
    return None if found is None else next(group for group in found.groups() if group is not None)
