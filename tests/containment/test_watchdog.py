"""Code that never yields is named within seconds and stopped at its own limit; everything else goes on elsewhere."""

from __future__ import annotations

import signal
from typing import Any

import psutil
import pytest

from tests.support.blamed import ended_jobs, settled_runs, troubles
from tests.support.misbehaving_app import (
    Blocking,
    BlockingForEver,
    Honest,
    Limited,
    Swallowing,
    blocking,
    blocking_over_budget,
    holding_the_interpreter,
    honest,
    limited,
)
from tests.support.roles import running_maintenance
from tests.support.supervised import MISBEHAVING, Command, command
from tests.support.waiting import eventually
from tidemill import App
from tidemill.store.database import Database

LONG = 120.0

pytestmark = pytest.mark.containment


async def test_a_step_that_blocks_the_event_loop_fails_at_its_timeout_and_other_runs_go_on(
    app: App, database: Database, database_url: str
) -> None:
    guilty = (await app.start(Blocking, seconds=600.0)).id
    innocent = [(await app.start(Honest, seconds=0.2)).id for _ in range(4)]
    async with running_maintenance(app):
        with command(database_url, "worker", str(MISBEHAVING)) as worker:
            found = await eventually(lambda: settled_runs(database, [guilty, *innocent]), timeout=LONG)
            assert "step block of run r" in worker.said
    assert [found[number]["state"] for number in innocent] == ["succeeded"] * 4
    assert found[guilty]["state"] == "failed"
    assert "ran longer than its timeout of 2s and blocked the event loop" in found[guilty]["note"]


async def test_a_job_and_a_step_have_the_time_that_another_has_blocked_their_event_loop(
    app: App, database: Database, database_url: str
) -> None:
    job, run = (await app.enqueue(limited)).id, (await app.start(Limited)).id
    await app.enqueue(blocking.call(seconds=10.0, after=0.5))
    await app.start(BlockingForEver, seconds=10.0, after=0.5)
    async with running_maintenance(app):
        with command(database_url, "worker", str(MISBEHAVING)):
            jobs = await eventually(lambda: ended_jobs(database, [job]), timeout=LONG)
            runs = await eventually(lambda: settled_runs(database, [run]), timeout=LONG)
    assert (jobs[job]["state"], jobs[job]["note"]) == ("succeeded", None)
    assert (runs[run]["state"], runs[run]["note"]) == ("succeeded", None)


async def test_a_step_that_swallows_its_cancellation_fails_at_its_timeout_and_other_runs_go_on(
    app: App, database: Database, database_url: str
) -> None:
    guilty = (await app.start(Swallowing)).id
    innocent = [(await app.start(Honest, seconds=0.2)).id for _ in range(3)]
    async with running_maintenance(app):
        with command(database_url, "worker", str(MISBEHAVING)):
            found = await eventually(lambda: settled_runs(database, [guilty, *innocent]), timeout=LONG)
    assert [found[number]["state"] for number in innocent] == ["succeeded"] * 3
    assert found[guilty]["state"] == "failed"
    assert "ran longer than its timeout of 2s and did not end when it was cancelled" in found[guilty]["note"]


async def test_a_step_that_blocks_without_a_timeout_is_named_and_fails_at_the_stall_limit(
    app: App, database: Database, database_url: str
) -> None:
    guilty = (await app.start(BlockingForEver, seconds=600.0)).id
    innocent = (await app.start(Honest, seconds=0.2)).id
    async with running_maintenance(app):
        with command(database_url, "worker", str(MISBEHAVING), stall_limit=9) as worker:
            (trouble,) = await eventually(lambda: troubles(database), timeout=LONG)
            assert trouble.startswith(f"its event loop has been blocked by step block of run r{guilty} since ")
            found = await eventually(lambda: settled_runs(database, [guilty, innocent]), timeout=LONG)
            assert "time.sleep(ev.seconds)" in worker.said, "the log has the stack"
    assert found[innocent]["state"] == "succeeded"
    assert found[guilty]["state"] == "failed"
    assert "blocked the event loop for 9s" in found[guilty]["note"]


async def test_code_that_blocks_for_a_while_and_returns_is_reported_and_not_ended(
    app: App, database: Database, database_url: str
) -> None:
    slow = await app.enqueue(blocking.call(seconds=8.0))
    async with running_maintenance(app):
        with command(database_url, "worker", str(MISBEHAVING), "--only", "jobs") as worker:
            (trouble,) = await eventually(lambda: troubles(database), timeout=LONG)
            assert f"job {slow.id} (task blocking)" in trouble
            found = await eventually(lambda: ended_jobs(database, [slow.id]), timeout=LONG)
            assert (found[slow.id]["state"], found[slow.id]["failures"]) == ("succeeded", 0)
            await eventually(lambda: _is_quiet(database))
            assert "the event loop runs again" in worker.said


async def _is_quiet(database: Database) -> bool:
    return not await troubles(database)


async def test_a_job_that_blocks_the_event_loop_ends_at_its_budget_and_its_neighbours_lose_nothing(
    app: App, database: Database, database_url: str
) -> None:
    innocent = [(await app.enqueue(honest.call(seconds=1.0))).id for _ in range(4)]
    guilty = (await app.enqueue(blocking_over_budget.call())).id
    async with running_maintenance(app):
        with command(database_url, "worker", str(MISBEHAVING)):
            found = await eventually(lambda: ended_jobs(database, [*innocent, guilty]), timeout=LONG)
    for number in innocent:
        assert (found[number]["state"], found[number]["failures"], found[number]["losses"]) == ("succeeded", 0, 0)
    assert found[guilty]["state"] == "failed"
    assert "longer than its budget of 2s" in found[guilty]["note"]


async def test_a_job_that_blocks_the_event_loop_is_cancelled_after_the_grace_period(
    app: App, database: Database, database_url: str
) -> None:
    job = await app.enqueue(blocking.call(seconds=600.0))
    async with running_maintenance(app):
        with command(database_url, "worker", str(MISBEHAVING), grace_seconds=1):
            await eventually(lambda: troubles(database), timeout=LONG)
            await app.jobs.cancel(job.id)
            found = await eventually(lambda: ended_jobs(database, [job.id]), timeout=LONG)
    assert found[job.id]["state"] == "cancelled"


async def test_a_run_whose_step_blocks_the_event_loop_is_cancelled_after_the_grace_period(
    app: App, database: Database, database_url: str
) -> None:
    run = await app.start(BlockingForEver, seconds=600.0)
    async with running_maintenance(app):
        with command(database_url, "worker", str(MISBEHAVING), grace_seconds=1):
            await eventually(lambda: troubles(database), timeout=LONG)
            await run.cancel()
            found = await eventually(lambda: settled_runs(database, [run.id]), timeout=LONG)
    assert found[run.id]["state"] == "cancelled"


async def test_a_process_that_is_stopped_is_killed_by_its_supervisor_and_replaced(
    app: App, database: Database, database_url: str
) -> None:
    async with running_maintenance(app):
        with command(database_url, "worker", str(MISBEHAVING), lease_seconds=4, heartbeat_seconds=0.5) as worker:
            (child,) = await eventually(lambda: _children(worker, "runs"), timeout=LONG)
            await eventually(lambda: _is_registered(database, child.pid), timeout=LONG)
            child.send_signal(signal.SIGSTOP)
            await eventually(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, timeout=LONG)
            await eventually(lambda: _children(worker, "runs", not_before=child), timeout=LONG)
            run = await app.start(Honest, seconds=0.0)
            found = await eventually(lambda: settled_runs(database, [run.id]), timeout=LONG)
    assert found[run.id]["state"] == "succeeded"


async def test_a_task_that_holds_the_interpreter_is_ended_with_its_process_and_runs_again(
    app: App, database: Database, database_url: str
) -> None:
    job = await app.enqueue(holding_the_interpreter.call())
    async with running_maintenance(app):
        with command(database_url, "worker", str(MISBEHAVING), lease_seconds=4, heartbeat_seconds=0.5) as worker:
            found = await eventually(lambda: ended_jobs(database, [job.id]), timeout=LONG)
            assert "SILENT PROCESS" in worker.said
    assert (found[job.id]["state"], found[job.id]["losses"]) == ("succeeded", 1)


def _children(worker: Command, only: str, *, not_before: psutil.Process | None = None) -> list[psutil.Process]:
    """The children of a command that do one kind of work, except for one that has ended."""
    found: list[psutil.Process] = []
    for child in worker.children():
        try:
            if only in child.cmdline() and child != not_before:
                found.append(child)
        except psutil.Error:
            continue
    return found


async def _is_registered(database: Database, pid: int) -> Any:
    return await database.fetch("SELECT id FROM tidemill.worker WHERE pid = $1 AND ended_at IS NULL", pid)
