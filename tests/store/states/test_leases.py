"""Leases of states: one builder at a time has a state, however statements overlap."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.support import eventually, puppet, value
from tidemill import App
from tidemill.core.codec import decode
from tidemill.store.database import Database, columns
from tidemill.store.states.leases import LeaseHolder, Wanted, lock_session, take_leases
from tidemill.store.states.states import PROMOTE, NewState, record_intent

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


async def test_a_commit_reads_its_own_leases_however_many_there_are(database: Database) -> None:
    """A planner that knows nothing of the table joined 10 000 leases with each of 500 results."""
    mine, session = LeaseHolder("driver", lock=7), await database.connect()
    entities = [f"{n:05d}" for n in range(5_000)]
    done = entities[:500]
    try:
        await lock_session(session, 7)
        await take_leases(database, "p", "s", "1", mine, states(*entities))
        await record_intent(database, "p", "s", "1", "me", [NewState(each, "c", "", 1, 0) for each in done])
        built = [(each, 1, 0.1, "built", "it is missing", None) for each in done]
        plan = await database.fetch(f"EXPLAIN (ANALYZE, FORMAT JSON) {PROMOTE}", "p", "s", "driver", *columns(built, 6))
    finally:
        session.terminate()
    assert await value(database, "SELECT count(*) FROM tidemill.state_building") == 4_500
    assert removed_by_filters(decode(plan[0][0])[0]["Plan"]) < 50_000


def removed_by_filters(node: dict[str, Any]) -> float:
    """How many rows, or pairs of them, a plan has looked at in vain."""
    own = sum(node.get(f"Rows Removed by {what}", 0) for what in ("Join Filter", "Filter", "Index Recheck"))
    return own * node["Actual Loops"] + sum(map(removed_by_filters, node.get("Plans", ())))
