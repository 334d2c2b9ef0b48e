"""The life of a role: stops and wake-ups are never lost, whenever they come."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from tests.support.waiting import eventually
from tidemill.engine.roles.lease import Lease, describe_process
from tidemill.engine.roles.role import Life, Role
from tidemill.store.database import Database
from tidemill.store.notify import Callback

LONG = 3600.0


async def test_a_stop_ends_every_wait_that_follows_it() -> None:
    life = Life()
    life.stop()
    async with asyncio.timeout(150):
        assert [await life.wait(LONG) for _ in range(3)] == [False, False, False]


async def test_a_wake_up_between_two_waits_ends_the_second_one_and_no_third() -> None:
    life = Life()
    life.wake()
    async with asyncio.timeout(150):
        assert await life.wait(LONG)
    assert await life.wait(0.01)
    third = asyncio.ensure_future(life.wait(LONG))
    await asyncio.sleep(0)
    assert not third.done()
    life.stop()
    assert not await third


class NeverReady:
    """Work that waits for something that does not come, as a stream does for its broker."""

    channels: Mapping[str, Callback | None] = {}

    async def work(self, life: Life) -> None:
        await asyncio.Event().wait()


async def test_a_role_that_is_stopped_before_it_serves_ends_its_lease_instead_of_letting_it_lapse(
    database: Database,
) -> None:
    role = Role(NeverReady(), database, lease=Lease(database, describe_process))
    running = asyncio.ensure_future(role.run())
    await eventually(lambda: role.worker_id)
    role.stop()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    (row,) = await database.fetch("SELECT status, end_reason FROM tidemill.worker WHERE id = $1", role.worker_id)
    assert tuple(row) == ("ended", "stopped before it served")
