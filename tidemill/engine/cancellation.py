"""Ending tasks for good.

On Python 3.11 a task inside `asyncio.wait_for` overhears a cancellation that comes just as what it waits for happens,
and clients of brokers wait like that. Who cancels once and then waits for the end may wait for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

AGAIN = 1.0
"""Seconds until a task that goes on is told once more."""


def is_ending() -> bool:
    """Whether the task that asks has been told to end, though something that it waited for has overheard it."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks until they have ended, however they end."""
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=AGAIN)
