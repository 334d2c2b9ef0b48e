"""The lease of a process costs little while the process is idle."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tests.support import eventually
from tidemill.engine.containment.watchdog import Culprit, EndedFor, Watchdog
from tidemill.engine.roles.lease import IDLE_WATCH_SECONDS, Lease, ProcessStatus, describe_process
from tidemill.store.database import Connection, Database


class NoWork:
    """Work of which there is none; counts how often it is looked at."""

    looks = 0

    def find(self, task: asyncio.Task[Any] | None) -> Culprit | None:
        return None

    def overdue(
        self, now: float, loop: asyncio.AbstractEventLoop, *, is_blocked: bool
    ) -> tuple[Culprit, EndedFor] | None:
        self.looks += 1
        return None

    async def is_cancelled(self, connection: Connection, culprit: Culprit) -> bool:
        return False

    async def write_end(self, connection: Connection, worker_id: int, culprit: Culprit, ended: EndedFor) -> None: ...

    async def report(self, connection: Connection, ended: EndedFor) -> None: ...


@pytest.mark.parametrize("is_busy", [False, True])
async def test_an_idle_process_is_looked_at_less_often_than_a_busy_one(database: Database, is_busy: bool) -> None:
    work = NoWork()
    lease = Lease(
        database,
        describe_process,
        process_status=lambda: ProcessStatus(is_busy=is_busy),
        watchdog=Watchdog(database, work),
    )
    await lease.take(lambda why: None)
    try:
        await eventually(lambda: work.looks > 0)
        before, began = work.looks, time.monotonic()
        await eventually(lambda: work.looks >= before + 6)
        took = time.monotonic() - began
    finally:
        await lease.stop_renewing()
        await lease.end("stopped")
    assert is_busy or took > 5 * IDLE_WATCH_SECONDS * 0.9
