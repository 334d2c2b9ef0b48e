"""A schedule that was made at run time starts what the application's code declares now, as those of the code do."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import eventually
from tidemill import App
from tidemill.core.codec import decode
from tidemill.dags import Dag, node
from tidemill.flows import Event, StartEvent, StopEvent, Workflow, step
from tidemill.ops.admin.deploy import check_deploy
from tidemill.ops.jobs.schedules import PutSchedule, ScheduleRef, list_schedules, put_schedule, run_schedule
from tidemill.ops.operator.operation import Nothing
from tidemill.store.database import Database


class Half(Event):
    pass


class Topic(StartEvent):
    topic: str


def before(url: str) -> App:
    app = App("test", database_url=url, grace_seconds=5)

    @app.task(queue="old")
    async def note(n: int) -> int:
        return n

    @app.task
    async def gone() -> None: ...

    @app.task
    async def label(text: str) -> None: ...

    class Article(Workflow):
        @step
        async def write(self, ev: Topic) -> StopEvent:
            return StopEvent(result=ev.topic)

    app.workflow(Article, name="Article")
    app.dag(Dag("nightly", [node("one", "note", args={"n": 1})]))
    return app


def after(url: str) -> App:
    app = App("test", database_url=url, grace_seconds=5)

    @app.task(queue="new", priority=8, retry=3, tags=["renewed"], concurrency_key="{n}")
    async def note(n: int) -> int:
        return n

    @app.task(fair_key="{text}")
    async def label(text: str) -> None: ...

    class Article(Workflow):
        @step
        async def write(self, ev: Topic) -> Half:
            return Half()

        @step
        async def revise(self, ev: Half) -> StopEvent:
            return StopEvent(result="revised")

    app.workflow(Article, name="Article", rate="1000/s")
    app.dag(Dag("nightly", [node("one", "note", args={"n": 1}), node("two", "note", args={"n": 2})]))
    return app


MADE: dict[str, dict[str, Any]] = {"note": {"n": 7}, "Article": {"topic": "tides"}, "nightly": {}, "gone": {}}


@pytest.fixture
async def renewed(database_url: str) -> Any:
    """The new version of an application; with the old one, schedules were made of its tasks, flow and dag."""
    old = before(database_url)
    async with old.running(queues=["none"]):
        for name, args in MADE.items():
            await old.do(put_schedule, PutSchedule(name=name, start=name, args=args, every="1h"))
    await old.close()
    app = after(database_url)
    yield app
    await app.close()


async def test_a_schedule_starts_what_the_new_code_declares(renewed: App, database: Database) -> None:
    async with renewed.running():
        for name in ("note", "Article", "nightly"):
            await renewed.do(run_schedule, ScheduleRef(name=name))
        row = await database.fetchrow("SELECT job, queue FROM tidemill.schedule WHERE name = 'note'")
        assert row is not None
        job = decode(row["job"])
        assert (row["queue"], job["queue"], job["priority"], job["args"]) == ("new", "new", 8, {"n": 7})
        assert (job["tags"], job["concurrency_key"], job["options"]["retry"]) == (["renewed"], "7", {"max_attempts": 3})
        await eventually(lambda: has_ended(database))
        runs = await database.fetch("SELECT workflow, result::text, rate_key FROM tidemill.run ORDER BY id")
    assert [row["workflow"] for row in runs] == ["Article", "nightly"]
    assert "revised" in runs[0]["result"]
    assert runs[0]["rate_key"] == "workflow Article"
    assert decode(runs[1]["result"].encode()) == {"one": 1, "two": 2}


async def has_ended(database: Database) -> bool:
    return not await database.fetch(
        "SELECT FROM tidemill.run WHERE state = 'running' UNION ALL SELECT FROM tidemill.job"
    ) and bool(await database.fetch("SELECT FROM tidemill.run"))


async def test_a_schedule_of_what_is_gone_stays_as_it_was(renewed: App) -> None:
    async with renewed.running(queues=["none"]):
        lines = {line.name: line for line in (await renewed.do(list_schedules, Nothing())).items}
    assert (lines["gone"].queue, lines["note"].queue) == ("default", "new")


async def test_the_check_of_a_deploy_knows_what_its_schedules_will_start(renewed: App) -> None:
    found = await renewed.do(check_deploy, Nothing())
    broken = {each.name: each.change for each in found.schedules if each.breaks}
    assert broken.keys() == {"gone"}


async def test_a_schedule_whose_arguments_make_no_key_of_the_new_code_stays_as_it_was(
    renewed: App, database: Database
) -> None:
    old = before(str(database.settings.url))
    async with old.running(queues=["none"]):
        await old.do(put_schedule, PutSchedule(name="label", start="label", args={"text": "x" * 2000}, every="1h"))
    await old.close()
    async with renewed.running(queues=["none"]):
        rows = await database.fetch("SELECT name, job FROM tidemill.schedule WHERE task IN ('label', 'note')")
    jobs = {row["name"]: decode(row["job"]) for row in rows}
    assert "fair_key" not in jobs["label"]
    assert jobs["note"]["concurrency_key"] == "7", "the others are renewed"
