"""Waiting for something to become true, with a deadline."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

PATIENCE = 40.0


async def eventually(
    condition: Callable[[], Any], *, timeout: float = PATIENCE, interval: float = 0.02, what: str = ""
) -> Any:
    """The first truthy value of a condition, plain or async; fails with the last value seen."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + timeout
    while True:
        seen = condition()
        if inspect.isawaitable(seen):
            seen = await seen
        if seen:
            return seen
        if loop.time() > give_up:
            raise AssertionError(f"not within {timeout:g} s: {what or inspect.getsource(condition).strip()} ({seen=})")
        await asyncio.sleep(interval)
