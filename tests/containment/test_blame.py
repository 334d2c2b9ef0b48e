"""After a process has died, only the work that ended it is blamed: in real processes, with real deaths."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.blamed import ended_jobs, settled_runs
from tests.support.misbehaving_app import Honest, Poison, honest, plain, poison
from tests.support.roles import running_maintenance
from tests.support.supervised import MISBEHAVING, command
from tests.support.waiting import eventually
from tidemill import App
from tidemill.store.database import Database

LONG = 120.0

pytestmark = pytest.mark.containment


@pytest.mark.parametrize("how", ["exit", "segfault", "kill"])
async def test_a_job_that_ends_its_worker_fails_and_its_neighbours_lose_nothing(
    app: App, database: Database, database_url: str, how: str
) -> None:
    before = [await app.enqueue(honest.call(seconds=0.5)) for _ in range(4)]
    guilty = await app.enqueue(poison.call(how=how))
    after = [await app.enqueue(plain.call(seconds=0.2)) for _ in range(4)]
    innocent = [handle.id for handle in (*before, *after)]
    async with running_maintenance(app):
        with command(database_url, "worker", str(MISBEHAVING), max_concurrency=10):
            found = await eventually(lambda: ended_jobs(database, [*innocent, guilty.id]), timeout=LONG)
    for number in innocent:
        assert (found[number]["state"], found[number]["failures"], found[number]["losses"]) == ("succeeded", 0, 0)
    assert (found[guilty.id]["state"], found[guilty.id]["losses"]) == ("failed", 2)
    assert found[guilty.id]["note"] == "its worker died 2 times while running it"


async def test_a_run_whose_step_ends_its_process_needs_attention_and_other_runs_go_on(
    app: App, database: Database, database_url: str
) -> None:
    innocent = [(await app.start(Honest, seconds=0.5)).id for _ in range(5)]
    guilty = (await app.start(Poison, how="exit")).id
    async with running_maintenance(app):
        with command(database_url, "worker", str(MISBEHAVING)):
            found = await eventually(lambda: settled_runs(database, [*innocent, guilty]), timeout=LONG)
            assert [found[number]["state"] for number in innocent] == ["succeeded"] * 5
            assert (found[guilty]["state"], found[guilty]["losses"]) == ("needs_attention", 3)
            assert "died 3 times while it ran nothing but step crash" in found[guilty]["note"]
            later = (await app.start(Honest, seconds=0.0)).id
            assert (await eventually(lambda: settled_runs(database, [later])))[later]["state"] == "succeeded"


async def test_a_run_that_is_cancelled_after_its_process_died_does_not_run_again(
    app: App, database: Database, database_url: str
) -> None:
    run = await app.start(Poison, how="exit")
    await app.start(Honest, seconds=0.0)

    async def is_suspect() -> Any:
        (row,) = await database.fetch("SELECT suspicions FROM tidemill.run WHERE id = $1", run.id)
        return row["suspicions"]

    async with running_maintenance(app):
        with command(database_url, "worker", str(MISBEHAVING), "--only", "runs"):
            await eventually(is_suspect)
        await run.cancel()
        with command(database_url, "worker", str(MISBEHAVING), "--only", "runs") as worker:
            found = await eventually(lambda: settled_runs(database, [run.id]), timeout=LONG)
            assert found[run.id]["state"] == "cancelled"
            assert "a suspect ended its quarantine process" not in worker.said
