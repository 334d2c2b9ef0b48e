"""Waiting for an event, but not for ever."""

from __future__ import annotations

import asyncio


async def wait_for_event(event: asyncio.Event, seconds: float | None) -> bool:
    """Return when the event is set, or after so many seconds; whether it is set."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return event.is_set()
