"""Schedules start flows and dags as they enqueue tasks; they are made, changed and deleted at run time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support import eventually, value
from tests.support.roles import running_scheduler
from tidemill import App, current_job
from tidemill.core.codec import decode
from tidemill.core.errors import ConfigError, ConflictError, NotFoundError, PayloadError
from tidemill.dags import Dag, node, ref
from tidemill.flows import Context, Event, StartEvent, StopEvent, Workflow, step
from tidemill.ops.jobs.schedules import (
    PutSchedule,
    ScheduleRef,
    delete_schedule,
    explain_schedule,
    put_schedule,
    run_schedule,
)
from tidemill.store.database import Database


class Topic(StartEvent):
    topic: str = ""


class Article(Workflow):
    @step
    async def write(self, ev: Topic) -> StopEvent:
        return StopEvent(result=ev.topic)


class Fired(Event):
    here: list[str]


class Telling(Workflow):
    """Tells of its fire in a step of its own process and in one on a queue."""

    @step
    async def here(self, ctx: Context, ev: StartEvent) -> Fired:
        return Fired(here=fire_of(ctx))

    @step(queue="ticks")
    async def elsewhere(self, ctx: Context, ev: Fired) -> StopEvent:
        return StopEvent(result=[ev.here, fire_of(ctx), fire_of(current_job())])


def fire_of(place: Any) -> list[str]:
    return [str(place.schedule), str(place.fire_time and place.fire_time.timestamp()), str(place.fire_reason)]


nightly = Dag("nightly", [node("tick", "tick", args={"n": 1})])
told = Dag("told", [node("tell", "tell")], result=ref("tell"))


@pytest.fixture
def app(app: App) -> App:
    @app.task(queue="ticks")
    async def tick(n: int = 0) -> int:
        return n

    @app.task(queue="ticks")
    async def tell() -> list[str]:
        return fire_of(current_job())

    app.workflow(Article)
    app.workflow(Telling)
    app.dag(nightly)
    app.dag(told)
    return app


@asynccontextmanager
async def scheduling(app: App) -> AsyncIterator[None]:
    async with running_scheduler(app):
        yield


async def runs(database: Database) -> list[dict[str, Any]]:
    rows = await database.fetch("SELECT id, workflow, input, origin, state FROM tidemill.run ORDER BY id")
    return [{**row, "input": decode(row["input"]), "origin": decode(row["origin"])} for row in rows]


async def test_a_flow_and_a_dag_are_started_by_their_schedules_and_know_their_fire_times(
    app: App, database: Database
) -> None:
    app.schedule("digest", Article, Topic(topic="tides"), every="0.2s")
    app.schedule("order", nightly, every="0.2s")
    async with scheduling(app):
        await eventually(lambda: has_runs(database, 6))
    found = await runs(database)
    digests = [each for each in found if each["workflow"] == "Article"]
    assert digests[0]["input"]["value"] == {"topic": "tides"}
    assert {each["origin"]["schedule"] for each in found} == {"digest", "order"}
    fires = [each["origin"]["fire"] for each in digests]
    assert len(set(fires)) == len(fires), "each fire starts one run"


async def test_steps_and_nodes_know_the_fire_of_the_schedule_that_has_started_their_run(
    app: App, database: Database
) -> None:
    async with app.running():
        for name in ("Telling", "told"):
            await app.do(put_schedule, PutSchedule(name=name, start=name, cron="0 3 * * *"))
            started = await app.do(run_schedule, ScheduleRef(name=name))
            run = await app.runs.get(started.id)
            said = await run.result(timeout=60)
            fire = [name, str((await runs(database))[-1]["origin"]["fire"]), "run now"]
            assert said == ([fire] * 3 if name == "Telling" else fire)
        unscheduled = await app.start(Telling)
        assert (await unscheduled.result(timeout=60))[1] == ["None"] * 3


async def has_runs(database: Database, many: int) -> bool:
    return await value(database, "SELECT count(*) FROM tidemill.run") >= many


async def test_a_fire_is_skipped_while_the_run_or_job_of_the_one_before_is_unfinished(
    app: App, database: Database
) -> None:
    app.schedule("digest", Article, every="0.1s", overlap="skip")
    app.schedule("ticks", app.declarations.tasks["tick"].call(n=1), every="0.1s", overlap="skip")
    async with scheduling(app):
        await eventually(lambda: has_overlapped(database))
        assert await value(database, "SELECT count(*) FROM tidemill.run") == 1
        assert await value(database, "SELECT count(*) FROM tidemill.job") == 1
        await database.fetch("UPDATE tidemill.run SET state = 'succeeded', ended_at = now()")
        await eventually(lambda: has_runs(database, 2))
    told = await app.do(explain_schedule, ScheduleRef(name="digest"))
    assert any("because the previous one was unfinished" in each for each in told.why)


async def has_overlapped(database: Database) -> bool:
    return await value(database, "SELECT min(overlapped) FROM tidemill.schedule") >= 2


async def test_a_schedule_is_made_changed_run_and_deleted_at_run_time(app: App, database: Database) -> None:
    app.schedule("declared", Article, cron="0 3 * * *")
    async with scheduling(app):
        line = await app.do(put_schedule, PutSchedule(name="own", start="Article", args={"topic": "a"}, every="1h"))
        assert (line.kind, line.task, line.made_by) == ("run", "Article", "app test")
        started = await app.do(run_schedule, ScheduleRef(name="own"))
        assert started.kind == "run"
        (fire,) = (await app.do(explain_schedule, ScheduleRef(name="own"))).fires
        assert (fire.outcome, fire.reason, fire.run_id) == ("started", "run now", started.id)
        line = await app.do(put_schedule, PutSchedule(name="own", start="tick", args={"n": 2}, every="0.1s"))
        assert (line.kind, line.task) == ("job", "tick")
        await eventually(lambda: has_jobs(database))
        with pytest.raises(ConflictError, match="declared by the application's code"):
            await app.do(put_schedule, PutSchedule(name="declared", start="tick", every="1h"))
        with pytest.raises(ConflictError, match="declared by the application's code"):
            await app.do(delete_schedule, ScheduleRef(name="declared"))
        with pytest.raises(PayloadError, match="'m'"):
            await app.do(put_schedule, PutSchedule(name="own", start="tick", args={"m": 2}, every="1h"))
        with pytest.raises(ConfigError, match=r"there is no task, flow or dag 'tik'.*did you mean 'tick'"):
            await app.do(put_schedule, PutSchedule(name="own", start="tik", every="1h"))
        told = await app.do(explain_schedule, ScheduleRef(name="own"))
        assert told.why[:2] == [
            "It enqueues task tick on queue ticks every 0.1 seconds.",
            "app test has made it at run time.",
        ]
    async with scheduling(app):  # A maintenance process that starts again keeps it.
        assert await value(database, "SELECT count(*) FROM tidemill.schedule") == 2
        await app.do(delete_schedule, ScheduleRef(name="own"))
        with pytest.raises(NotFoundError):
            await app.do(explain_schedule, ScheduleRef(name="own"))


async def has_jobs(database: Database) -> bool:
    return await value(database, "SELECT count(*) FROM tidemill.job WHERE args::text = '{\"n\":2}'") > 0


def test_what_cannot_be_scheduled_is_an_error_where_it_is_declared(app: App) -> None:
    with pytest.raises(PayloadError, match="has no field 'topik'"):
        app.schedule("a", Article, {"topik": 1}, every="1h")
    with pytest.raises(ConfigError, match="overlap 'wait' is not one of allow, skip, queue, cancel"):
        app.schedule("a", Article, every="1h", overlap="wait")  # pyright: ignore[reportArgumentType, reportCallIssue]
    with pytest.raises(ConfigError, match="no option 'overlop'; did you mean 'overlap'"):
        app.schedule("a", Article, every="1h", overlop="skip")  # pyright: ignore[reportCallIssue]
