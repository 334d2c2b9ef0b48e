"""What is stored of a run is reached: by a new owner, by a follower, by a caller that ends it."""

from __future__ import annotations

import asyncio

from tests.support import eventually, locked_out, value
from tests.support.roles import running_maintenance
from tidemill import App
from tidemill.store.database import Database
from tidemill.store.jobs.sweeps import cancel_orphans
from tidemill.store.jobs.workers import END_WORKER, WorkerCard, register_worker
from tidemill.store.runs.claims import WAKE_RUNS, resume_runs
from tidemill.store.runs.inbox import DUE_INBOX, HAS_ARRIVED, NOTED_FOR_WORK, send_to_run
from tidemill.store.runs.published import PUBLISH, publish, read_published
from tidemill.store.runs.runs import start_run


async def a_run(database: Database, **fields: object) -> int:
    return (await start_run(database, workflow="W", version="1", input=b"{}", **fields))[0]  # pyright: ignore[reportArgumentType]


async def test_a_run_is_freed_however_long_ago_its_owner_ended(app: App, database: Database) -> None:
    """As when everything was switched off between the owner's last word and the freeing of its runs."""
    owner = await register_worker(database, WorkerCard("h", 1, (), ("W",), 0, {}), lease_seconds=1)
    number = await a_run(database, owner=owner)
    await database.fetch(END_WORKER, owner, "stopped")
    await database.fetch("UPDATE tidemill.worker SET ended_at = now() - interval '2 days'")
    async with running_maintenance(app):
        await eventually(lambda: value(database, "SELECT owner IS NULL FROM tidemill.run WHERE id = $1", number))


async def test_no_reader_misses_what_is_shown_by_two_at_once(database: Database) -> None:
    number = await a_run(database)
    async with database.transaction() as slow:
        await slow.execute(database.sql(PUBLISH), number, [b'"first"'])
        other = asyncio.create_task(publish(database, number, [b'"second"']))
        await asyncio.wait([other], timeout=0.3)
        seen = await read_published(database, number)
    await other
    seen += await read_published(database, number, after=seen[-1]["number"] if seen else 0)
    assert [row["data"] for row in seen] == [b'"first"', b'"second"']


async def test_a_nul_in_what_a_run_is_told_is_in_nobodys_way(database: Database) -> None:
    """A text with NUL in it is JSON, and PostgreSQL keeps it, but takes no field out of it."""
    parent = await a_run(database)
    child = await a_run(database, parent=(parent, 1))
    await database.fetch("UPDATE tidemill.run SET state = 'failed', ended_at = now() WHERE id = $1", parent)
    for data in (
        rb'{"state":"succeeded","result":"a\u0000b"}',
        rb'{"kind":"received","at":1.5,"event":{"text":"a\u0000b"},"token":"this one"}',
        rb'{"kind":"noted","at":1.5,"work":3,"note":{"kind":"did","name":"pay","result":"a\u0000b"}}',
    ):
        await database.fetch("INSERT INTO tidemill.inbox (run_id, data) VALUES ($1, $2)", child, data)
    assert len(await database.fetch(HAS_ARRIVED, child, "this one")) == 1
    assert await database.fetch(HAS_ARRIVED, child, "this") == []
    assert len(await database.fetch(NOTED_FOR_WORK, child, 3)) == 1
    assert await database.fetch(NOTED_FOR_WORK, child, 33) == []
    assert await cancel_orphans(database) == 1
    assert await cancel_orphans(database) == 0, "asked once"


async def test_mail_of_a_parked_run_is_in_nobodys_way_and_there_when_it_goes_on(database: Database) -> None:
    parked, other = await a_run(database), await a_run(database, owner=1)
    await database.fetch("UPDATE tidemill.run SET state = 'needs_attention' WHERE id = $1", parked)
    for number in (parked, other):
        await send_to_run(database, number, b'{"kind":"received"}')
    await database.fetch(WAKE_RUNS)
    assert [row["run_id"] for row in await database.fetch(LOOKED_AT)] == [other]
    await resume_runs(database, ["W"])
    await database.fetch("UPDATE tidemill.run SET owner = 1")
    assert [row["run_id"] for row in await database.fetch(DUE_INBOX, 1, [], 10)] == [parked, other]


async def test_mail_that_is_held_back_as_its_run_goes_on_is_released(database: Database) -> None:
    number = await a_run(database)
    await database.fetch("UPDATE tidemill.run SET state = 'needs_attention'")
    await send_to_run(database, number, b'{"kind":"received"}')
    async with database.transaction() as sweep:
        await sweep.fetch(database.sql(WAKE_RUNS))
        going_on = asyncio.create_task(resume_runs(database, ["W"]))
        await eventually(lambda: locked_out(database, "%tidemill.run %"))
        assert await database.fetch("SELECT FROM tidemill.inbox WHERE suspended") == []
    await going_on
    assert [row["run_id"] for row in await database.fetch(LOOKED_AT)] == [number]


LOOKED_AT = "SELECT run_id FROM tidemill.inbox WHERE due_at <= now() AND NOT suspended"
