"""Waiting for something to become true, with a deadline."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

import asyncpg

#: How long a test waits for something that happens: as long as a machine takes that does ten other things.
PATIENCE = 150.0

#: The lease and heartbeat of a process that is not meant to lose it: a machine may well stand still for some seconds.
PATIENT: dict[str, Any] = {"lease_seconds": 20.0, "heartbeat_seconds": 0.3}


async def eventually(
    condition: Callable[[], Any], *, timeout: float = PATIENCE, interval: float = 0.02, what: str = ""
) -> Any:
    """The first truthy value of a condition, plain or async; fails with the last value seen."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + timeout
    slowest = max(interval, 0.1)
    while True:
        seen = condition()
        if inspect.isawaitable(seen):
            seen = await seen
        if seen:
            return seen
        if loop.time() > give_up:
            raise AssertionError(f"not within {timeout:g} s: {what or inspect.getsource(condition).strip()} ({seen=})")
        await asyncio.sleep(interval)
        interval = min(1.1 * interval, slowest)  # On a busy machine, those who wait leave it to those who work.


async def turns(count: int = 100) -> None:
    """Let everything that can go on without waiting for time or others go on, so many times."""
    for _ in range(count):
        await asyncio.sleep(0)


async def time_to_connect(url: str) -> float:
    """How long a new connection takes here: a test that cuts connections must leave more than that between two cuts."""
    began = time.perf_counter()
    connection = await asyncpg.connect(url)
    took = time.perf_counter() - began
    await connection.close()
    return took
