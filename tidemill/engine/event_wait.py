"""Waiting for an event, but not forever; waiting for the end of work, but not for its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tidemill.core.duration import Duration, format_duration, parse_timeout


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


@asynccontextmanager
async def handle_timeout(timeout: Duration | None, missing: str, explained: str | None = None) -> AsyncIterator[None]:
    """Raise a `TimeoutError` that says what is missing, as in `job 7 has not ended`, and how to find out why."""
    seconds = parse_timeout(timeout)
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            yield
    except TimeoutError:
        if seconds is None or not limit.expired():  # Raised by what was waited for.
            raise
        why = "" if explained is None else f": `tidemill explain {explained}` says what it waits for"
        raise TimeoutError(f"{missing} within {format_duration(seconds)}{why}") from None
