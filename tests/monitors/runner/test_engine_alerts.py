"""The engine's own events as a source, and the ready rules for them."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.support import eventually, running_worker, value
from tests.support.watched import open_triggers, watching
from tidemill import App
from tidemill.core.clock import VirtualClock
from tidemill.core.codec import decode
from tidemill.core.errors import ConfigError
from tidemill.monitors import Slack, engine_alerts
from tidemill.monitors.runner.backtest import backtest
from tidemill.sources import EngineSource
from tidemill.store.database import Database
from tidemill.store.monitors.alerts import list_alerts, show_alert

TROUBLE = {
    ("stream posts", "dead-letters"): """
        INSERT INTO tidemill.dead_letter (stream, source, place, why, attempts, at, error, payload)
        VALUES ('posts', 's', '0:1', 'failed', 3, now(), 'no', 'x')""",
    ("workflow Article", "runs-need-attention"): """
        INSERT INTO tidemill.run (state, workflow, kind, version, input)
        VALUES ('needs_attention', 'Article', 'flow', '1', '{}')""",
    ("stage blog/page", "stale-states"): """
        INSERT INTO tidemill.state_failure (pipeline, stage, entity, code, inputs, attempts, error, first_at, failed_at)
        VALUES ('blog', 'page', 'a', 'c', 'i', 9, 'no', now() - interval '2 hours', now())""",
    ("host attic", "silent-workers"): """
        INSERT INTO tidemill.worker (host, pid, queues, tasks, max_concurrency, versions, lease_until)
        VALUES ('attic', 7, '{}', '{}', 1, '{}', now() - interval '5 minutes')""",
    ("schedule night", "missed-schedules"): """
        INSERT INTO tidemill.schedule (name, task, queue, spec, job, decided, next_fire)
        VALUES ('night', 't', 'q', '{}', '{}', 0, now() - interval '1 hour')""",
}
WELL_AGAIN = (
    "DELETE FROM tidemill.dead_letter",
    "UPDATE tidemill.run SET state = 'succeeded', ended_at = now()",
    "DELETE FROM tidemill.state_failure",
    "UPDATE tidemill.worker SET ended_at = now(), status = 'ended' WHERE host = 'attic'",
    "UPDATE tidemill.schedule SET next_fire = now() + interval '1 day'",
)


async def test_a_task_whose_jobs_fail_has_one_alert_until_it_is_quiet(app: App, database: Database) -> None:
    @app.task(retry=1)
    def charge(card: int) -> None:
        raise ValueError(f"card {card} is refused")

    @app.task
    def greet() -> None: ...

    clock = VirtualClock(time.time())
    watch = app.monitor(engine_alerts(channels=[Slack(url="http://127.0.0.1:9/")]))
    async with watching(database, watch, clock) as watcher:
        await watcher.one_tick()
        async with running_worker(app):
            await app.enqueue(greet.call())
            for card in range(3):
                await app.enqueue(charge.call(card=card))
            failed = "SELECT count(*) = 3 FROM tidemill.job_history WHERE state = 'failed'"
            await eventually(lambda: value(database, failed))
        clock.advance(10.0)
        await watcher.one_tick()
        assert await open_triggers(database) == {(f"task {charge.name}", "failed-jobs")}
        (alert,) = await list_alerts(database)
        evidence = decode((await show_alert(database, alert["id"]))["explain"])["evidence"]
        assert evidence["count"] == 3
        assert "is refused" in evidence["detail"]
        clock.advance(901.0)
        await watcher.one_tick()
        assert await open_triggers(database) == set()
        report = await backtest(database, watch, clock.now() - 3600.0, clock.now())
    assert report.counts() == {"failed-jobs": 1}


async def test_what_is_not_as_it_should_be_has_an_alert_until_it_is(app: App, database: Database) -> None:
    @app.task
    def greet() -> None: ...

    clock = VirtualClock(time.time())
    watch = engine_alerts()
    async with watching(database, watch, clock) as watcher:
        await watcher.one_tick()
        assert await open_triggers(database) == set()
        for statement in TROUBLE.values():
            await database.fetch(statement)
        await app.enqueue(greet.call())
        await database.fetch("UPDATE tidemill.job SET due_at = now() - interval '10 minutes'")
        for _ in range(3):  # and is reported once
            clock.advance(5.0)
            await watcher.one_tick()
        assert await open_triggers(database) == {*TROUBLE, ("queue default", "late-jobs")}
        assert await value(database, "SELECT count(*) FROM tidemill.monitor_event") == len(TROUBLE) + 1
    async with watching(database, watch, clock) as another:  # which knows what was reported
        for statement in (*WELL_AGAIN, "DELETE FROM tidemill.job"):
            await database.fetch(statement)
        clock.advance(5.0)
        await another.one_tick()
        assert await open_triggers(database) == set()
        report = await backtest(database, watch, clock.now() - 3600.0, clock.now())
    assert report.counts() == dict.fromkeys(sorted([*(trigger for _, trigger in TROUBLE), "late-jobs"]), 1)


FAILED_TOGETHER = """
INSERT INTO tidemill.job_history (id, queue, task, args, state, priority, attempt, failures, losses, due_at, created_at)
SELECT n, 'default', 'charge', '{}', 'failed', 5, 1, 1, 0, now(), now() FROM generate_series(1, 25) AS n
"""


async def test_jobs_that_failed_at_the_same_moment_are_all_counted(database: Database) -> None:
    """More of them than fit a page."""
    clock = VirtualClock(time.time())
    watch = engine_alerts(source=EngineSource(page=10))
    async with watching(database, watch, clock) as watcher:
        await watcher.one_tick()
        await database.fetch(FAILED_TOGETHER)
        clock.advance(5.0)
        await watcher.one_tick()
        (alert,) = await list_alerts(database)
        assert decode((await show_alert(database, alert["id"]))["explain"])["evidence"]["count"] == 25


async def test_a_process_that_is_lost_is_reported(database: Database) -> None:
    clock = VirtualClock(time.time())
    async with watching(database, engine_alerts(), clock) as watcher:
        await watcher.one_tick()
        await database.fetch(TROUBLE["host attic", "silent-workers"])
        lost = "UPDATE tidemill.worker SET ended_at = now(), status = 'lost', end_reason = 'gone' WHERE host = 'attic'"
        await database.fetch(lost)
        clock.advance(5.0)
        await watcher.one_tick()
        assert await open_triggers(database) == {("host attic", "lost-workers")}


@pytest.mark.parametrize("bad", [{"late_after": "soon"}, {"silent_after": "x"}])
def test_limits_that_make_no_sense_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="length of time"):
        EngineSource(**bad)
