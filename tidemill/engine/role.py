"""The roles of an application, run together in one process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol


class Role(Protocol):
    """Something that runs until it is told to stop: maintenance, a worker, a scheduler."""

    async def run(self) -> None: ...
    async def wait_ready(self) -> None: ...
    def stop(self) -> None: ...


@asynccontextmanager
async def run_roles(*roles: Role) -> AsyncIterator[None]:
    """Run roles while the block lasts: started in order, each once the one before is ready; stopped in reverse."""
    started: list[tuple[Role, asyncio.Task[None]]] = []
    try:
        for role in roles:
            running = asyncio.create_task(role.run(), name=type(role).__name__)
            started.append((role, running))
            ready = asyncio.create_task(role.wait_ready())
            await asyncio.wait([running, ready], return_when=asyncio.FIRST_COMPLETED)
            ready.cancel()
            if running.done():
                running.result()
        yield
    finally:
        for role, running in reversed(started):
            if not running.done():
                role.stop()
            await running
