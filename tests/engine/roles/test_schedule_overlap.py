"""Overlap, catch-up, backfill and changes of clocks, for schedules of every kind, on virtual time."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tidemill import App, current_job
from tidemill.core.errors import ConfigError
from tidemill.core.schedule import (
    MOST_WAITING,
    OVERLAPS,
    Overlap,
    WaitingFire,
    decide_overlap,
    fires_between,
    parse_schedule,
)
from tidemill.dags import Dag, node
from tidemill.flows import Event, StartEvent, StopEvent, Workflow, step
from tidemill.flows.runner.steps.context import Context
from tidemill.ops.jobs.schedules import (
    BackfillSchedule,
    PutSchedule,
    ScheduleExplained,
    ScheduleRef,
    backfill_schedule,
    explain_schedule,
    pause_schedule,
    put_schedule,
    resume_schedule,
)
from tidemill.pipelines import Entity, Pipeline
from tidemill.testing.kit import TestKit

pytest_plugins = ["tidemill.testing.plugin"]


class Go(Event):
    pass


def shop(tmp_path: Path) -> App:
    app = App("shop")

    @app.task
    async def note(hold: bool = False) -> dict:
        job = current_job()
        while hold and not (tmp_path / "gate").exists():
            await asyncio.sleep(0.01)
        fire = job.fire_time
        return {"fire": None if fire is None else fire.isoformat(), "reason": job.fire_reason}

    @app.workflow(timeout=None)
    class Slow(Workflow):
        @step
        async def wait(self, ctx: Context, ev: StartEvent) -> StopEvent:
            await ctx.wait_for_event(Go)
            return StopEvent(result="gone")

    app.dag(Dag("nightly", [node("note", "note")]))
    blog = Pipeline("blog", tmp_path)

    @blog.stage(input="in/{name}.txt", output="out/{name}.txt")
    def page(entity: Entity, text: str) -> str:
        return text

    app.pipeline(blog)
    return app


@pytest.fixture
def app(tidemill: TestKit, tmp_path: Path) -> App:
    return tidemill.use(shop(tmp_path))


def do(tidemill: TestKit, app: App, operation: Any, args: Any) -> Any:
    return tidemill._bridge.call(app.do(operation, args))


def explained(tidemill: TestKit, app: App, name: str) -> ScheduleExplained:
    return do(tidemill, app, explain_schedule, ScheduleRef(name=name))


def put(tidemill: TestKit, app: App, start: str, overlap: Overlap, **more: Any) -> None:
    args = PutSchedule(name="s", start=start, overlap=overlap, **{"every": "1h", **more})
    do(tidemill, app, put_schedule, args)


def test_a_flow_waits_for_the_run_before_or_cancels_it(tidemill: TestKit, app: App) -> None:
    with tidemill.running():
        put(tidemill, app, "Slow", "queue")
        tidemill.advance("4h")
        tidemill.run_until(lambda: explained(tidemill, app, "s").schedule.waiting == 3)
        assert [run.state for run in tidemill.started("Slow")] == ["running"]
        told = explained(tidemill, app, "s")
        assert [each.outcome for each in told.fires] == ["waiting"] * 3 + ["started"]
        assert "3 fires wait for the previous one: its overlap is queue." in told.why
        put(tidemill, app, "Slow", "cancel")
        tidemill.advance("1h")
        ended = ["cancelled", "running"]
        tidemill.run_until(lambda: sorted(run.state for run in tidemill.started("Slow")) == ended)


def test_a_task_waits_for_the_job_before_and_each_job_knows_its_fire(
    tidemill: TestKit, app: App, tmp_path: Path
) -> None:
    with tidemill.running():
        put(tidemill, app, "note", "queue", args={"hold": True}, catchup="all")
        tidemill._bridge.call(tidemill._move(3 * 3600.0))
        tidemill.run_until(lambda: explained(tidemill, app, "s").schedule.waiting == 2)
        (tmp_path / "gate").touch()
        tidemill.advance("10m")
        jobs = tidemill.enqueued("note")[:3]  # Ten minutes may reach the next full hour, which is a fourth.
        fires = [job.result["fire"] for job in jobs]
        assert len(fires) == 3
        assert fires == sorted(set(fires))
        assert [job.result["reason"] for job in jobs[:2]] == ["catch-up", "catch-up"]


@pytest.mark.parametrize("start", ["note", "nightly", "Slow", "rebuild/blog"])
def test_a_backfill_starts_the_fires_of_a_range_for_every_kind(tidemill: TestKit, app: App, start: str) -> None:
    with tidemill.running():
        put(tidemill, app, start, "allow", every=None, cron="0 3 * * *", timezone="Europe/Berlin")
        day = datetime(2026, 3, 27, tzinfo=UTC), datetime(2026, 3, 31, tzinfo=UTC)
        done = do(tidemill, app, backfill_schedule, BackfillSchedule(name="s", since=day[0], until=day[1]))
        assert done.fires == 4
        tidemill.run_until(lambda: explained(tidemill, app, "s").schedule.fired == 4)
        told = explained(tidemill, app, "s").fires
        hours = [each.fire.astimezone(UTC).hour for each in reversed(told)]
        assert hours == [2, 2, 1, 1], "03:00 in Berlin, before and after its clocks change"
        assert {(each.outcome, each.reason) for each in told} == {("started", "backfill")}
        if start in ("note", "rebuild/blog"):
            tidemill.run_until_idle()
            assert {job.state for job in tidemill.enqueued(start)} == {"succeeded"}


@pytest.mark.parametrize("times", [{"cron": "0 * * * *", "every": None}, {"every": "1h"}])
def test_both_ends_of_a_backfill_are_fires_of_its_range(tidemill: TestKit, app: App, times: dict[str, Any]) -> None:
    """Over the hour that clocks in Berlin have twice, too."""
    with tidemill.running():
        put(tidemill, app, "note", "allow", timezone="Europe/Berlin", **times)
        day = datetime(2026, 10, 24, 23, tzinfo=UTC), datetime(2026, 10, 25, 2, tzinfo=UTC)
        done = do(tidemill, app, backfill_schedule, BackfillSchedule(name="s", since=day[0], until=day[1]))
        assert done.fires == 4
        tidemill.run_until(lambda: explained(tidemill, app, "s").schedule.fired == 4)
        assert [each.fire.astimezone(UTC).hour for each in explained(tidemill, app, "s").fires] == [2, 1, 0, 23]


@pytest.mark.parametrize("start", ["note", "nightly", "Slow", "rebuild/blog"])
def test_fires_that_were_missed_are_caught_up_for_every_kind(tidemill: TestKit, app: App, start: str) -> None:
    with tidemill.running():
        put(tidemill, app, start, "allow", catchup="all")
    tidemill.advance("5h")  # Nothing runs meanwhile.
    tidemill.run_until_idle()
    told = explained(tidemill, app, "s")
    assert told.schedule.fired == 5
    assert {each.reason for each in told.fires} <= {"catch-up", "due"}
    assert told.fires[-1].reason == "catch-up"


def test_a_failed_fire_is_told_with_its_reason(tidemill: TestKit, app: App) -> None:
    with tidemill.running():
        put(tidemill, app, "note", "allow")
        tidemill._bridge.call(app.declarations.connections.open())

        async def spoil() -> None:
            database = await app.declarations.reach()
            await database.fetch("UPDATE tidemill.schedule SET job = '{\"queue\": 7}'")

        tidemill._bridge.call(spoil())
        tidemill.advance("2h")
        told = explained(tidemill, app, "s")
        assert told.fires[0].outcome == "failed"
        assert any("It could not fire at" in each for each in told.why)


def test_a_backfill_of_a_paused_schedule_says_that_it_waits_until_it_is_resumed(tidemill: TestKit, app: App) -> None:
    with tidemill.running():
        put(tidemill, app, "note", "allow")
        do(tidemill, app, pause_schedule, ScheduleRef(name="s"))
        tidemill.advance("3h")
        backfilled = BackfillSchedule(name="s", since=tidemill.now() - timedelta(hours=3))
        assert do(tidemill, app, backfill_schedule, backfilled).fires == 3
        tidemill.run_until_idle()
        assert explained(tidemill, app, "s").why[-1] == "3 fires wait until it is resumed."
        do(tidemill, app, resume_schedule, ScheduleRef(name="s"))
        tidemill.run_until(lambda: explained(tidemill, app, "s").schedule.fired == 3)
        assert not any("wait" in sentence for sentence in explained(tidemill, app, "s").why)


def test_the_next_fire_of_a_backfill_follows_as_soon_as_the_one_before_has_ended(tidemill: TestKit, app: App) -> None:
    """However long ago the time is that it makes up for."""
    with tidemill.running():
        put(tidemill, app, "note", "skip", every="1d")
        until = tidemill.now() - timedelta(days=400)
        backfilled = BackfillSchedule(name="s", since=until - timedelta(days=3), until=until)
        assert do(tidemill, app, backfill_schedule, backfilled).fires in (3, 4)
        tidemill.run_until(lambda: explained(tidemill, app, "s").schedule.waiting == 0)


@pytest.mark.parametrize(("hours", "missed"), [(1, "1 fire was missed"), (5, "5 fires were missed")])
def test_a_schedule_that_has_missed_all_fires_does_not_say_that_it_was_never_due(
    tidemill: TestKit, app: App, hours: int, missed: str
) -> None:
    with tidemill.running():
        put(tidemill, app, "note", "allow", catchup="skip", every="1h")
        first = explained(tidemill, app, "s").schedule.next_fire
    tidemill.advance(first - tidemill.now() + timedelta(hours=hours - 1, minutes=10))
    with tidemill.running():
        tidemill.run_until(lambda: explained(tidemill, app, "s").schedule.missed == hours)
        told = explained(tidemill, app, "s")
    assert "It has not started anything yet." in told.why
    assert any(sentence.startswith(f"{missed}, the last at") for sentence in told.why)
    assert told.fires[0].note == f"{missed}: no maintenance process could fire them then"


def test_a_backfill_of_too_much_or_of_the_future_is_refused(tidemill: TestKit, app: App) -> None:
    put_args = PutSchedule(name="s", start="note", every="1m")
    do(tidemill, app, put_schedule, put_args)
    for since, why in (
        (datetime(1, 1, 2, tzinfo=UTC), "year 2000 or later"),
        (datetime(9999, 12, 30, tzinfo=UTC), "begins in the past"),
        (datetime(2020, 1, 1, tzinfo=UTC), "fires more than 1,000 times"),
    ):
        with pytest.raises(ConfigError, match=why):
            do(tidemill, app, backfill_schedule, BackfillSchedule(name="s", since=since))


@pytest.mark.parametrize("overlap", OVERLAPS)
@pytest.mark.parametrize("is_unfinished", [True, False])
def test_every_fire_is_started_waits_or_is_skipped_exactly_once(overlap: Overlap, is_unfinished: bool) -> None:
    for many_old in (0, 1, 3):
        for many_new in (0, 1, 2, MOST_WAITING + 5):
            old = [WaitingFire(n) for n in range(many_old)]
            new = [WaitingFire(100 + n) for n in range(many_new)]
            made = decide_overlap(overlap, old, new, is_unfinished=is_unfinished)
            every = [*made.start, *made.waiting, *made.skipped]
            assert sorted(each.fire for each in every) == [each.fire for each in (*old, *new)]
            if overlap != "allow":
                assert len(made.start) <= 1
                assert not (made.start and is_unfinished and not made.cancels)
            assert len(made.waiting) <= MOST_WAITING + many_old


def test_clocks_that_change_are_the_same_for_a_backfill_as_for_its_fires() -> None:
    spec = parse_schedule(cron="30 2 * * *", timezone="Europe/Berlin")
    day = datetime(2026, 3, 28, tzinfo=UTC).timestamp()
    fires = [datetime.fromtimestamp(each, UTC) for each in fires_between(spec, day, day + 3 * 86400)]
    assert [each.strftime("%d %H:%M") for each in fires] == ["28 01:30", "29 01:00", "30 00:30"]
