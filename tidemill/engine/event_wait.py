"""Waiting for an event, but not forever; waiting for the end of work, but not for its outcome."""

from __future__ import annotations

import asyncio
from typing import Any


async def wait_for_event(event: asyncio.Event, seconds: float | None) -> bool:
    """Whether the event is set; waits until it is, or for this many seconds."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return event.is_set()


async def wait_until_done(future: asyncio.Future[Any]) -> None:
    """Return when a future has a result, an error or was cancelled; unlike `await future`, raise none of them."""
    if future.done():
        return
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(_: Any) -> None:
        if not done.done():
            done.set_result(None)

    future.add_done_callback(wake)
    try:
        await done
    finally:
        future.remove_done_callback(wake)
