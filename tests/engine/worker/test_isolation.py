"""`isolation="process"`: a task in a child process that can be killed, and nothing else with it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from tests.support import eventually, find_live, finished, rough_app, running_worker
from tests.support.operate import cancel_jobs
from tidemill import App
from tidemill.engine.worker import isolation
from tidemill.engine.worker.context import RunningJob
from tidemill.engine.worker.isolation import Children, TaskError
from tidemill.store.database import Database
from tidemill.store.jobs.insert import insert_jobs


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[App]:
    rough_app.app.declarations.configure(database_url=database_url)
    yield rough_app.app
    await rough_app.app.close()


@pytest.fixture
async def worker(app: App) -> AsyncIterator[Any]:
    async with running_worker(app, ["isolated"], max_concurrency=2) as worker:
        yield worker


async def outcome(app: App, database: Database, task: str, **args: Any) -> Any:
    return await finished(database, (await app.enqueue(task, args=args)).id)


async def test_an_isolated_task_runs_in_a_process_of_its_own_and_sees_its_job(app: App, database, worker) -> None:
    ref = await app.enqueue("where")
    result = (await app.wait(ref, timeout=120)).result
    assert result["pid"] not in (0, psutil.Process().pid)
    assert psutil.Process(result["pid"]).ppid() == psutil.Process().pid
    assert (result["job"], result["attempt"]) == (ref.id, 1)
    assert result["by"], "its origin"


async def test_an_isolated_job_whose_origin_is_not_recorded_runs(app: App, database, worker) -> None:
    job = app.declarations.task("where").new_job(b"{}")
    async with database.transaction() as connection:
        (ref,) = await insert_jobs(database, connection, [job], notify=True)
    row = await finished(database, ref.id)
    assert (row["state"], msgspec.json.decode(row["result"])["by"]) == ("succeeded", None)


async def test_a_process_is_used_again_for_the_next_job(app: App, database, worker) -> None:
    first = msgspec.json.decode((await outcome(app, database, "where"))["result"])
    second = msgspec.json.decode((await outcome(app, database, "where"))["result"])
    assert first["pid"] == second["pid"]


async def test_an_error_comes_back_with_its_kind_and_traceback_and_is_retried(app: App, database, worker) -> None:
    row = await outcome(app, database, "fail", how="value")
    assert (row["state"], row["failures"]) == ("failed", 3)
    assert row["note"] == "ValueError: bad value: all 3 attempts failed"
    for error in msgspec.json.decode(row["errors"]):
        assert (error["kind"], error["message"]) == ("ValueError", "bad value")
        assert str(Path(rough_app.__file__)) in error["traceback"]
        assert "in fail" in error["traceback"]


async def test_a_policy_knows_the_bases_of_an_error_from_a_child(app: App, database, worker) -> None:
    row = await outcome(app, database, "fail", how="account")
    assert (row["state"], row["attempt"]) == ("failed", 1)
    assert "NotPaid is declared as not worth retrying" in row["note"]


@pytest.mark.parametrize(
    ("how", "failures", "note"),
    [
        ("snooze", 0, "succeeded"),
        ("own snooze", 0, "succeeded"),
        ("retry after", 1, "succeeded"),
        ("discard", 1, "failed"),
    ],
)
async def test_a_child_may_ask_for_what_any_task_may_ask_for(app, database, worker, how, failures, note) -> None:
    row = await outcome(app, database, "fail", how=how)
    assert (row["state"], row["failures"]) == (note, failures)
    if how == "discard":
        assert (row["attempt"], row["note"]) == (1, "discarded: no longer wanted")


@pytest.mark.parametrize(
    ("how", "kind", "told"),
    [("url", "urllib.error.URLError", "Connection refused"), ("strange", "Strange", "half a pair")],
)
async def test_an_error_of_any_shape_comes_back_as_what_it_is(app, database, worker, how, kind, told) -> None:
    row = await outcome(app, database, "fail", how=how)
    assert (row["state"], row["failures"]) == ("succeeded", 1)
    (error,) = msgspec.json.decode(row["errors"])
    assert error["kind"].endswith(kind)
    assert told in error["message"]
    assert "in fail" in error["traceback"]


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("segfault", "was killed by SIGSEGV"),
        ("vanish", "exited with status 4"),
    ],
)
async def test_a_child_that_dies_is_a_failed_attempt_and_harms_nobody_else(app, database, worker, how, told) -> None:
    beside = await app.enqueue("where")
    row = await outcome(app, database, "fail", how=how)
    assert (row["state"], row["failures"], row["losses"]) == ("succeeded", 1, 0)
    (error,) = msgspec.json.decode(row["errors"])
    assert told in error["message"]
    assert (await finished(database, beside.id))["state"] == "succeeded"


async def test_what_a_task_prints_does_not_get_between_parent_and_child(app: App, database, worker) -> None:
    row = await outcome(app, database, "talk", times=100)
    assert (row["state"], row["result"]) == ("succeeded", b'"said"')


@pytest.mark.parametrize("text", ["ünïcödé ✓", "line\nbreaks\r\nand \x1f control", "x" * 2_000_000])
async def test_arguments_and_results_pass_unchanged(app: App, database, worker, text: str) -> None:
    assert msgspec.json.decode((await outcome(app, database, "echo", text=text))["result"]) == text


async def test_a_task_may_return_nothing(app: App, database: Database, worker: Any) -> None:
    ended = await outcome(app, database, "return_nothing")
    assert (ended["state"], ended["result"], ended["note"]) == ("succeeded", None, None)


async def test_progress_of_a_child_is_visible_while_it_runs(app: App, database, worker, tmp_path: Path) -> None:
    ref = await app.enqueue("until", str(tmp_path / "go"))
    row = await eventually(lambda: reported(database, ref.id))
    assert row["progress"] == 0.5
    assert psutil.pid_exists(int(row["note"]))
    (tmp_path / "go").touch()
    assert (await finished(database, ref.id))["result"] == b'"released"'


async def test_a_cancelled_job_is_cancelled_by_killing_its_process(app: App, database, worker, tmp_path) -> None:
    ref = await app.enqueue("until", str(tmp_path / "never"))
    child = psutil.Process(int((await eventually(lambda: reported(database, ref.id)))["note"]))
    await cancel_jobs(database, [ref.id], by="ann")
    row = await finished(database, ref.id)
    assert (row["state"], row["note"]) == ("cancelled", "cancelled by ann")
    await eventually(lambda: not child.is_running())
    assert (await outcome(app, database, "where"))["state"] == "succeeded"


async def test_children_end_with_their_worker(app: App, database: Database) -> None:
    async with running_worker(app, ["isolated"]):
        result = msgspec.json.decode((await outcome(app, database, "where"))["result"])
        child = psutil.Process(result["pid"])
    assert not child.is_running()


async def test_what_one_job_leaves_in_its_context_the_next_does_not_see(app: App, database, worker) -> None:
    first = msgspec.json.decode((await outcome(app, database, "paint", wanted="red"))["result"])
    second = msgspec.json.decode((await outcome(app, database, "paint", wanted="blue"))["result"])
    assert first["pid"] == second["pid"]
    assert (first["before"], second["before"]) == ("none", "none")


async def test_threads_of_an_isolated_task_may_speak_at_the_same_time(app: App, database, worker) -> None:
    row = await outcome(app, database, "chatter", times=30)
    assert (row["state"], row["result"]) == ("succeeded", b'"said"')


async def reported(database: Database, job_id: int) -> Any:
    row = await find_live(database, job_id)
    return row if row is not None and row["progress"] is not None else None


async def test_the_budget_of_a_task_begins_when_its_process_has_loaded_the_application(tmp_path: Path) -> None:
    program = tmp_path / "slow_app.py"
    program.write_text(
        "import time\n"
        "from tidemill import App\n"
        "time.sleep(1.5)\n"
        "app = App('slow')\n"
        "@app.task(isolation='process')\n"
        "def act() -> str:\n"
        "    return 'done'\n"
    )
    local = App("slow")

    @local.task(isolation="process")
    def act() -> str:
        return "here"

    children, job = Children(str(program)), RunningJob(1, 1, "default", "act", b"null")
    job.budget, began = 1.0, job.started
    try:
        assert await children.run(act, b"{}", job) == b'"done"'
    finally:
        await children.close()
    assert job.started - began >= 1.5
    assert job.budget == 1.0


async def test_a_process_that_cannot_load_the_application_says_why(app: App, tmp_path: Path) -> None:
    program = tmp_path / "unguarded_app.py"
    program.write_text(
        "import asyncio\n"
        "from tidemill import App\n"
        "app = App('unguarded')\n"
        "async def main() -> None:\n"
        "    async with app.running():\n"
        "        pass\n"
        "asyncio.run(main())\n"
    )
    children, job = Children(str(program)), RunningJob(1, 1, "default", "where", b"null")
    try:
        with pytest.raises(TaskError, match="under `if __name__ == '__main__':`"):
            await children.run(app.declarations.task("where"), b"{}", job)
    finally:
        await children.close()


async def test_a_process_without_jobs_ends_the_later_the_longer_its_start_took(
    app: App, database, worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation, "SHORTEST_IDLE", 0.05)
    monkeypatch.setattr(isolation, "IDLE_PER_START", 0.0)
    first = msgspec.json.decode((await outcome(app, database, "where"))["result"])
    await eventually(lambda: not psutil.pid_exists(first["pid"]), what="the idle process has ended")
    second = msgspec.json.decode((await outcome(app, database, "where"))["result"])
    assert second["pid"] != first["pid"]
    monkeypatch.setattr(isolation, "IDLE_PER_START", 1000.0)
    third = msgspec.json.decode((await outcome(app, database, "where"))["result"])
    fourth = msgspec.json.decode((await outcome(app, database, "where"))["result"])
    assert third["pid"] == fourth["pid"]
