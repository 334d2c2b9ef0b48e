"""Cancels tasks that swallow a cancellation.

On Python 3.11 a task inside `asyncio.wait_for` swallows a cancellation that arrives together with what it waits for,
and clients of brokers wait like that. A caller that cancels once and then waits for the end may wait forever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

AGAIN = 1.0
"""Seconds until a task that is still running is cancelled again."""


def is_ending() -> bool:
    """Whether the current task was cancelled, even if something that it awaited swallowed the cancellation."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def end(tasks: Iterable[asyncio.Task[Any]], within: float | None = None) -> None:
    """Cancel tasks until they have ended, however they end, or for at most this many seconds."""
    loop, left = asyncio.get_running_loop(), set(tasks)
    give_up_at = None if within is None else loop.time() + within
    while left and (give_up_at is None or loop.time() < give_up_at):
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=AGAIN)
