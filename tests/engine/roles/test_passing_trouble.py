"""Trouble of the database that passes by itself: every process goes on, and so do the running jobs."""

from __future__ import annotations

import asyncio

import pytest

from tests.support import eventually, finished, running, running_maintenance, running_worker, value
from tidemill import App, current_job
from tidemill.core.errors import StoreError
from tidemill.store.database import Database

TROUBLE = """
CREATE SEQUENCE tries;
CREATE FUNCTION trouble() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF nextval('tries') < 3 THEN RAISE EXCEPTION 'trouble' USING ERRCODE = '{0}'; END IF;
    RETURN coalesce(NEW, OLD);
END $$
"""


async def make_trouble(database: Database, code: str, when: str) -> None:
    """The first statements of a kind fail as if they had met another, or there were no room."""
    await database.run(lambda connection: connection.execute(TROUBLE.format(code)))
    await database.fetch(f"CREATE TRIGGER trouble BEFORE {when} EXECUTE FUNCTION trouble()")


@pytest.mark.parametrize("code", ["disk_full", "deadlock_detected", "read_only_sql_transaction"])
async def test_progress_that_cannot_be_shown_does_not_end_the_worker(app: App, database: Database, code: str) -> None:
    done = asyncio.Event()

    @app.task
    async def work() -> None:
        while not done.is_set():
            current_job().report(0.5, "half way")
            current_job().keep_line(b"{}")
            await asyncio.sleep(0.05)

    await make_trouble(database, code, "UPDATE OF progress ON tidemill.job FOR EACH ROW WHEN (NEW.progress > 0)")
    await database.fetch("CREATE TRIGGER trouble BEFORE INSERT ON tidemill.job_log EXECUTE FUNCTION trouble()")
    async with running_worker(app) as worker:
        ref = await app.enqueue(work)
        await running(database, ref.id)
        await eventually(lambda: value(database, "SELECT progress = 0.5 FROM tidemill.job WHERE id = $1", ref.id))
        done.set()
        assert (await finished(database, ref.id))["attempt"] == 1
        assert worker.work.status == "running"


async def test_a_deadlock_under_a_workers_turn_is_nobodys_loss(app: App, database: Database) -> None:
    @app.task
    async def work() -> str:
        return "done"

    await make_trouble(database, "deadlock_detected", "DELETE ON tidemill.job FOR EACH ROW")
    async with running_worker(app) as worker:
        row = await finished(database, (await app.enqueue(work)).id)
        assert (row["result"], row["attempt"], row["losses"]) == (b'"done"', 1, 0)
        assert worker.work.status == "running"


async def test_an_maintenance_that_meets_a_deadlock_walks_its_next_round(app: App, database: Database) -> None:
    @app.task
    async def work() -> None: ...

    await make_trouble(database, "deadlock_detected", "DELETE ON tidemill.job FOR EACH ROW")
    late = await app.enqueue(work.call(), deadline="1ms", delay="1h")
    async with running_maintenance(app):
        assert (await finished(database, late.id))["state"] == "expired"


async def test_a_statement_that_always_meets_another_is_given_up_in_time(database: Database) -> None:
    await database.fetch("CREATE TABLE met (n int)")
    await database.run(lambda connection: connection.execute(TROUBLE.format("deadlock_detected").replace("< 3", "> 0")))
    await database.fetch("CREATE TRIGGER trouble BEFORE INSERT ON met EXECUTE FUNCTION trouble()")
    with pytest.raises(StoreError, match="kept colliding with other transactions"):
        await database.fetch("INSERT INTO met VALUES (1)", patience=0.5)
    assert await value(database, "SELECT last_value > 1 FROM tries")


async def test_jobs_that_were_claimed_before_a_deadlock_in_the_same_turn_are_run(app: App, database: Database) -> None:
    """The turn that ends a gated job claims others with it, and lets the next one through after that."""

    @app.task(concurrency_key="k", max_concurrency=1)
    async def gated() -> None: ...

    @app.task
    async def free() -> None: ...

    await make_trouble(
        database, "deadlock_detected", "UPDATE ON tidemill.job FOR EACH ROW WHEN (OLD.state = 'throttled')"
    )
    await database.fetch("ALTER TABLE tidemill.job DISABLE TRIGGER trouble")
    refs = [await app.enqueue(gated), await app.enqueue(gated), *[await app.enqueue(free) for _ in range(20)]]
    await database.fetch("ALTER TABLE tidemill.job ENABLE TRIGGER trouble")
    async with running_maintenance(app), running_worker(app, max_concurrency=1) as worker:
        for ref in refs:
            await finished(database, ref.id)
        assert worker.work.status == "running"
    assert await value(database, "SELECT last_value >= 3 FROM tries"), "there was a clash"
