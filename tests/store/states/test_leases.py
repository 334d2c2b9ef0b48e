"""Leases of states: one builder at a time has a state, however statements overlap."""

from __future__ import annotations

import asyncio

from tests.support import eventually, puppet, value
from tidemill import App
from tidemill.store.database import Database
from tidemill.store.states.leases import LeaseHolder, Wanted, lock_session, take_leases

BLOCKED = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')"
LEASE = "INSERT INTO tidemill.state_building (pipeline, stage, entity, builder) VALUES ('p', 's', 'a', 'nobody')"


def states(*entities: str) -> list[Wanted]:
    return [Wanted(entity, 0, "") for entity in entities]


async def test_a_job_that_was_claimed_after_a_statement_began_keeps_its_lease(app: App, database: Database) -> None:
    @app.task
    async def build() -> None: ...

    job = await app.enqueue(build)
    mine = LeaseHolder("driver", lock=7)
    session = await database.connect()
    try:
        await lock_session(session, 7)
        async with puppet(database) as worker:
            await session.execute("BEGIN")
            await session.execute(LEASE)  # The statement waits here, with what it has seen until now.
            taking = asyncio.create_task(take_leases(database, "p", "s", "1", mine, states("a", "b")))
            await eventually(lambda: value(database, BLOCKED))
            await worker.claim()
            theirs = await take_leases(database, "p", "s", "1", LeaseHolder("worker", job=job.id), states("b"))
            await session.execute("ROLLBACK")
            taken = await taking
    finally:
        session.terminate()
    assert theirs.granted == {"b"}
    assert (taken.granted, taken.elsewhere) == ({"a"}, {"b"})
