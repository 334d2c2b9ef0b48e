"""Several builders of one pipeline: each state is built by one of them at a time, and once."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.support import eventually, value
from tests.support.cli import TIDEMILL, environment
from tests.support.pipelines import put, tree, update
from tidemill import App
from tidemill.pipelines import Pipeline, update_pipeline
from tidemill.pipelines.runner import driver
from tidemill.pipelines.runner.driver import Driver
from tidemill.store.database import Database

SCRIPT = """
import os, time
from tidemill.pipelines import Pipeline

p = Pipeline("p", root="states", approve_above=None)

def called(stage, entity):
    with open("calls.txt", "a") as calls:
        calls.write(f"{stage}/{entity} {os.getpid()}\\n")
    while os.path.exists("hold"):
        time.sleep(0.01)

@p.stage(input="in/{id}.txt", output="one/{id}.txt")
def first(entity, text):
    called("first", entity.id)
    return text.upper()

@p.stage(input="one/{id}.txt", output="two/{id}.txt")
def second(entity, text):
    called("second", entity.id)
    return text + "!"

@p.stage(input="two/{id}.txt", output="three/{id}.txt")
async def third(entity, text):
    called("third", entity.id)
    return text + "?"
"""
STAGES = ("first", "second", "third")


def project(tmp_path: Path, count: int) -> Path:
    (tmp_path / "p.py").write_text(SCRIPT)
    put(tmp_path / "states", {f"in/{n}.txt": f"text {n} " for n in range(count)})
    return tmp_path


def start(folder: Path, url: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*TIDEMILL, "pipeline", "run", "p.py", "--once", "--database-url", url],
        cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def calls(folder: Path) -> Counter[str]:
    """How often each state was built."""
    return Counter(line.split()[0] for line in (folder / "calls.txt").read_text().splitlines())


async def test_two_builders_build_each_state_once_and_share_the_work(
    tmp_path: Path, database: Database, database_url: str
) -> None:
    folder = project(tmp_path, 150)
    builders = [start(folder, database_url) for _ in range(2)]
    said = await asyncio.gather(*(asyncio.to_thread(each.communicate) for each in builders))
    assert [each.returncode for each in builders] == [0, 0], said
    assert calls(folder) == {f"{stage}/{n}": 1 for stage in STAGES for n in range(150)}
    assert all("450 fresh, 0 not" in text for text, _ in said), said
    rows = await database.fetch("SELECT outcome, reason, count(*) AS n FROM tidemill.state_build GROUP BY 1, 2")
    assert [tuple(row) for row in rows] == [("built", "it is missing", 450)]
    assert len(tree(folder / "states")) == 600


async def test_a_second_builder_waits_for_what_the_first_builds(
    tmp_path: Path, database: Database, database_url: str
) -> None:
    folder = project(tmp_path, 1)
    (folder / "hold").touch()
    first = start(folder, database_url)
    await eventually(lambda: (folder / "calls.txt").exists())
    second = start(folder, database_url)
    await eventually(partial(have_sessions, database, 2))
    (folder / "hold").unlink()
    said = await asyncio.gather(*(asyncio.to_thread(each.communicate) for each in (first, second)))
    assert [first.returncode, second.returncode] == [0, 0], said
    assert calls(folder) == {f"{stage}/0": 1 for stage in STAGES}


async def test_a_builder_that_waits_for_long_names_the_one_that_it_waits_for(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "WARN_AFTER", 0.0)
    pipeline, may_end = Pipeline("p", root=tmp_path), asyncio.Event()

    @pipeline.stage(input="in/{id}.txt", output="out/{id}.txt", version="1")
    async def only(entity: Any, text: str) -> str:
        await may_end.wait()
        return text

    put(tmp_path, {"in/a.txt": "apple"})
    first = Driver(database, pipeline)
    building = asyncio.create_task(driver.run_once(first))
    await eventually(lambda: first.running_here == 1)
    with capture_logs() as lines:
        waiting = asyncio.create_task(update(database, pipeline))
        await eventually(lambda: any(line["event"] == "waiting for other builders" for line in lines))
    may_end.set()
    assert (await building).steps == (await waiting).steps == []
    warned = [line for line in lines if line["event"] == "waiting for other builders"]
    assert [(line["states"], line["builders"]) for line in warned] == [(1, [first.builder])]


async def test_a_builder_takes_over_what_a_killed_one_was_building(
    tmp_path: Path, database: Database, database_url: str
) -> None:
    folder = project(tmp_path, 2)
    (folder / "hold").touch()
    first = start(folder, database_url)
    await eventually(lambda: (folder / "calls.txt").exists())
    second = start(folder, database_url)
    await eventually(lambda: len((folder / "calls.txt").read_text().splitlines()) == 2)
    first.kill()
    await asyncio.to_thread(first.communicate)
    (folder / "hold").unlink()
    said, _ = await asyncio.to_thread(second.communicate)
    assert second.returncode == 0, said
    assert calls(folder) - Counter({f"{stage}/{n}": 1 for stage in STAGES for n in range(2)}) == {"first/0": 1}
    rows = await database.fetch("SELECT stage, entity FROM tidemill.state_build")
    assert Counter(tuple(row) for row in rows) == {(stage, str(n)): 1 for stage in STAGES for n in range(2)}


async def have_sessions(database: Database, many: int) -> bool:
    """Whether so many builders have a session."""
    found = await database.fetch("SELECT DISTINCT pid FROM pg_locks WHERE locktype = 'advisory' AND granted")
    return len(found) >= many


async def has_rows(database: Database, reading: str, count: int) -> bool:
    return len(await database.fetch(reading)) >= count


async def test_a_builder_and_workers_build_each_state_once(app: App, tmp_path: Path) -> None:
    pipeline, built = Pipeline("p", root=tmp_path, scan_interval=1), Counter[str]()

    @pipeline.stage(input="in/{id}.txt", output="mid/{id}.txt", version="1")
    async def first(entity: Any, text: str) -> str:
        built[f"first/{entity.id}"] += 1
        await asyncio.sleep(0.01)
        return text

    @pipeline.stage(input="mid/{id}.txt", output="out/{id}.txt", version="1")
    def second(entity: Any, text: str) -> str:
        built[f"second/{entity.id}"] += 1
        return text

    put(tmp_path, {f"in/{n}.txt": str(n) for n in range(60)})
    app.pipeline(pipeline)
    async with app.running(), app.database() as database:
        await update(database, pipeline)
        await eventually(lambda: len(tree(tmp_path)) == 180)
        reading = "SELECT stage, entity FROM tidemill.state_build"
        await eventually(partial(has_rows, database, reading, 120))  # A result is recorded after it is in place.
        rows = await database.fetch(reading)
    assert Counter(tuple(row) for row in rows) == {(stage, str(n)): 1 for stage in STAGES[:2] for n in range(60)}
    assert len(built) == 120
    assert set(built.values()) == {1}, {name: count for name, count in built.items() if count > 1}


async def test_what_another_builder_wrote_is_never_taken_for_an_edit(tmp_path: Path, database: Database) -> None:
    pipeline = Pipeline("p", root=tmp_path)

    @pipeline.stage(input="in/{id}.txt", output="out/{id}.txt", version="1")
    def only(entity: Any, text: str) -> str:
        return text

    put(tmp_path, {f"in/{n}.txt": str(n) for n in range(20)})
    late = Driver(database, pipeline)
    plan = await late.begin()
    await update(database, pipeline)
    await late.pipeline_view.scan()  # It sees the files of the other builder, and not yet its records.
    await late.pipeline_view.read_unknown()
    await late.act(late.pipeline_view.plan())
    await late.act(plan)
    await late.finish()
    await late.close()
    rows = await database.fetch("SELECT reason, count(*) AS n FROM tidemill.state_build GROUP BY 1")
    assert [tuple(row) for row in rows] == [("it is missing", 20)]
    assert late.pipeline_view.plan().steps == []


CUT = """
CREATE SEQUENCE cuts;
CREATE FUNCTION cut() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF nextval('cuts') IN (1, 4) THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER cut AFTER {change} ON tidemill.{table} FOR EACH STATEMENT EXECUTE FUNCTION cut();
"""


@pytest.mark.parametrize(
    ("change", "table"),
    [("INSERT", "state_build"), ("UPDATE", "state"), ("INSERT", "state_building"), ("INSERT", "state_failure")],
)
async def test_once_goes_on_when_a_connection_is_lost_in_the_middle(
    change: str, table: str, tmp_path: Path, database: Database
) -> None:
    pipeline = Pipeline("p", root=tmp_path)

    @pipeline.stage(input="in/{id}.txt", output="one/{id}.txt")
    def first(entity: Any, text: str) -> str:
        return text.upper()

    @pipeline.stage(input="one/{id}.txt", output="two/{id}.txt")
    async def second(entity: Any, text: str) -> str:
        if entity.id == "n7":
            raise ValueError("seven")
        return text * 2

    put(tmp_path, {f"in/n{n}.txt": f"n{n}" for n in range(30)})
    await database.run(lambda connection: connection.execute(CUT.format(change=change, table=table)))
    plan = await update_pipeline(pipeline, database)
    assert [step.entity for step in plan.steps] == ["n7"]
    assert len(list((tmp_path / "two").glob("*.txt"))) == 29
    built = "SELECT count(*) FROM tidemill.state_build WHERE outcome IN ('built', 'finished')"
    assert await value(database, built) == 59
    assert not list(tmp_path.rglob(".tidemill-*"))


async def test_a_builder_that_is_closed_in_the_middle_starts_no_other_stage(tmp_path: Path, database: Database) -> None:
    """What it would begin then would go on beside the next builder, which takes its files for those of a dead one."""
    pipeline, begun, go_on = Pipeline("p", root=tmp_path), threading.Event(), threading.Event()

    @pipeline.stage(input="in/{id}.txt", output="one/{id}.txt")
    def first(entity: Any, text: str) -> str:
        begun.set()
        assert go_on.wait(60)
        return text.upper()

    @pipeline.stage(input="one/{id}.txt", output="two/{id}.txt")
    async def second(entity: Any, text: str) -> str:
        await asyncio.Event().wait()
        return text

    put(tmp_path, {"in/a.txt": "a"})
    driver, before = Driver(database, pipeline), asyncio.all_tasks()
    await driver.act(await driver.begin())
    await asyncio.to_thread(begun.wait, 60)
    closing = asyncio.create_task(driver.close())
    asyncio.get_running_loop().call_soon(go_on.set)
    await closing
    assert (tmp_path / "one/a.txt").read_text() == "A"
    assert asyncio.all_tasks() - before == set()


async def test_a_builder_leases_no_more_than_it_can_commit_soon(tmp_path: Path, database: Database) -> None:
    """While the database is slow to commit, functions that are done at once do not lease everything."""
    put(tmp_path, {f"in/{n}.txt": "x" for n in range(4_000)})
    pipeline, leased = Pipeline("p", root=tmp_path, approve_above=None), list[int]()

    @pipeline.stage(input="in/{id}.txt", output="out/{id}.txt", in_process=True)
    def copy(entity: Any, text: str) -> str:
        return text

    async def count_leases() -> None:
        while True:
            leased.append(await value(database, "SELECT count(*) FROM tidemill.state_building"))

    counting = asyncio.create_task(count_leases())
    async with database.transaction() as blocker:
        await blocker.execute(database.sql("LOCK TABLE tidemill.state IN SHARE MODE"))  # It can be read, not written.
        building = asyncio.create_task(update(database, pipeline))
        await eventually(lambda: leased and leased[-1] > 500)
        seen = len(leased)
        await eventually(lambda: len(leased) > seen + 100)
    await building
    counting.cancel()
    assert 500 < max(leased) <= 2_000
    assert len(tree(tmp_path / "out")) == 4_000
