"""Timers of this process around a wait: a step that waits inside one must stay in memory."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable
from typing import Any

from tidemill.engine.containment.blocked_time import TimeLimit

_TIMERS = ("Timeout", "CancelScope")


async def limited(call: Awaitable[Any], seconds: float, problem: str) -> Any:
    """Await a step for at most this many seconds; a `TimeoutError` says the problem. It stays in its task, its lane."""
    limit: asyncio.Timeout | None = None
    try:
        async with TimeLimit(seconds) as limit:
            return await call
    except TimeoutError as error:
        if limit is None or not limit.expired():
            raise  # It is the step's own.
        raise TimeoutError(problem) from error


async def has_local_timer() -> bool:
    """Return whether the caller is inside `asyncio.timeout`: then it waits for a timer of this process, too."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    probe: asyncio.Future[bool] = loop.create_future()
    # The frames can be looked into only while the task is suspended.
    loop.call_soon(lambda: None if probe.done() else probe.set_result(_is_timed(task)))
    return await probe


def _is_timed(task: asyncio.Task[Any] | None) -> bool:
    inner: Any = None if task is None else task.get_coro()
    while inner is not None:
        for held in gc.get_referents(inner) if getattr(inner, "cr_code", None) is not limited.__code__ else ():
            if type(getattr(held, "__self__", held)).__name__ in _TIMERS:
                return True
        inner = getattr(inner, "cr_await", None) or getattr(inner, "gi_yieldfrom", None)
    return False
