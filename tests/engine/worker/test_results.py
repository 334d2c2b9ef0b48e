"""What a task returns, and the history row that remains."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Any

import msgspec
import pydantic
import pytest

from tests.support import eventually, find_live, finished, puppet, running_worker, value
from tidemill import App
from tidemill.core.errors import ConfigError
from tidemill.core.jobs.job import Finish
from tidemill.store.database import Database


@dataclasses.dataclass
class Total:
    sum: int
    at: datetime


class Report(pydantic.BaseModel):
    lines: list[Total]


MOMENT = datetime(2024, 2, 29, tzinfo=UTC)


@pytest.mark.parametrize(
    ("returned", "kept"),
    [
        (None, None),
        (7, 7),
        ({"a": [1, None]}, {"a": [1, None]}),
        (Total(3, MOMENT), {"sum": 3, "at": "2024-02-29T00:00:00Z"}),
        (Report(lines=[Total(1, MOMENT)]), {"lines": [{"sum": 1, "at": "2024-02-29T00:00:00Z"}]}),
        ("with nul \x00 inside", "with nul \x00 inside"),
        ("x" * 1_000_000, "x" * 1_000_000),
    ],
    ids=["none", "number", "dict", "dataclass", "model", "nul", "megabyte"],
)
async def test_a_result_is_kept_as_json(app: App, database: Database, returned: Any, kept: Any) -> None:
    @app.task
    async def give() -> Any:
        return returned

    async with running_worker(app):
        result = await app.wait(await app.enqueue(give), timeout=150)
    assert (result.state, result.result) == ("succeeded", kept)


@pytest.mark.parametrize("returned", [object(), {1j: 2}, "\ud800"], ids=["object", "complex key", "surrogate"])
async def test_a_result_that_is_not_json_fails_the_job_and_is_not_retried(
    app: App, database: Database, returned: Any
) -> None:
    @app.task(retry=app.retry(5, backoff=0.01))
    async def give() -> Any:
        return returned

    async with running_worker(app):
        row = await finished(database, (await app.enqueue(give)).id)
    assert (row["state"], row["attempt"]) == ("failed", 1)
    assert "task give returned something that is not JSON" in row["note"]


async def test_a_finished_job_leaves_everything_about_it_in_the_history(app: App, database: Database) -> None:
    @app.task(queue="mail", priority=7, retry=app.retry(2), tags=["a"])
    async def send(to: str) -> int:
        return len(to)

    ref = await app.enqueue(send.call("ann"), unique_key="u", concurrency_key="c", deadline="1h", tags=["b"])
    live = await find_live(database, ref.id)
    assert live is not None
    async with running_worker(app) as worker:
        row = await finished(database, ref.id)
    for column in ("id", "due_at", "created_at", "deadline", "priority", "queue", "task", "args", "options", "origin",
                   "tags", "unique_key", "concurrency_key"):  # fmt: skip
        assert row[column] == live[column], column
    assert (row["state"], row["result"], row["note"], row["errors"]) == ("succeeded", b"3", None, None)
    assert (row["attempt"], row["failures"], row["losses"], row["worker_id"]) == (1, 0, 0, worker.worker_id)
    assert row["created_at"] <= row["started_at"] <= row["finished_at"]
    assert msgspec.json.decode(row["options"]) == {"retry": {"max_attempts": 2}}
    assert (row["tags"], row["unique_key"], row["concurrency_key"]) == (["a", "b"], "u", "c")
    assert await find_live(database, ref.id) is None
    assert await value(database, "SELECT count(*) FROM tidemill.job") == 0


async def test_a_failed_job_enqueues_its_task_for_failures_with_the_facts_that_it_takes(
    app: App, database: Database
) -> None:
    told: list[tuple[int, str, dict[str, int], str]] = []

    @app.task(queue="news", retry=3)
    async def tell(job: int, task: str, args: dict[str, int], error: str) -> None:
        told.append((job, task, args, error))

    @app.task(queue="news")
    async def note(job: int) -> None:
        told.append((job, "", {}, ""))

    @app.task(on_failure=tell, retry=app.retry(max_attempts=2, schedule=[0]))
    async def broken(n: int) -> None:
        raise RuntimeError(f"no {n}")

    @app.task(on_failure=note)
    async def fine(n: int) -> None:
        if n:
            raise ValueError

    async with running_worker(app, ["default", "news"]):
        failing = await app.enqueue(broken.call(7))
        await app.enqueue(fine.call(0))
        other = await app.enqueue(fine.call(1))
        await eventually(lambda: len(told) == 2, timeout=20)
    assert sorted(told) == sorted([(failing.id, "broken", {"n": 7}, "no 7"), (other.id, "", {}, "")])
    assert await value(database, "SELECT count(*) FROM tidemill.job_history WHERE queue = 'news'") == 2
    attempts = "SELECT options #>> '{retry,max_attempts}' FROM tidemill.job_history WHERE task = 'tell'"
    assert await value(database, attempts) == "3"


async def test_the_task_for_failures_of_an_application_is_for_all_tasks_without_their_own(
    app: App, database: Database
) -> None:
    @app.task
    async def early() -> None:
        raise ValueError("early")

    @app.on_failure
    @app.task
    async def tell(job: int, task: str) -> None:
        raise ValueError(f"{task} failed, and so does this")

    @app.task
    async def note(job: int) -> None: ...

    @app.task
    async def late() -> None:
        raise ValueError("late")

    @app.task(on_failure=note)
    async def other() -> None:
        raise ValueError("other")

    for task in (early, late, other):
        await app.enqueue(task)
    async with running_worker(app):
        await eventually(lambda: value(database, "SELECT count(*) = 6 FROM tidemill.job_history"))
    rows = await database.fetch("SELECT args ->> 'task' AS of FROM tidemill.job_history WHERE task = 'tell'")
    assert sorted(row["of"] for row in rows) == ["early", "late"]
    assert await value(database, "SELECT count(*) FROM tidemill.job_history WHERE task = 'note'") == 1
    assert await value(database, "SELECT count(*) FROM tidemill.job") == 0


def test_a_task_for_failures_that_needs_something_else_is_refused(app: App) -> None:
    @app.task
    async def tell(order: int) -> None: ...

    with pytest.raises(ConfigError, match="needs 'order': a task for failures takes any of job, task, args, error"):
        app.task(on_failure=tell)(lambda: None)


async def test_jobs_that_end_together_keep_their_own_results_and_attempts(app: App, database: Database) -> None:
    @app.task(queue="default")
    async def give() -> None: ...

    async with puppet(database) as worker:
        jobs = {job.id: job for job in (await app.enqueue_many(give.call() for _ in range(3)))}
        first = await worker.claim(3)
        assert await worker.give_back(first[0]) == [first[0].id]
        again, *_ = await eventually(lambda: worker.claim(1))
        assert (again.id, again.attempt) == (first[0].id, 2)
        late = Finish(again.id, 1, "succeeded")
        await worker.turn([late])
        assert await find_live(database, again.id) is not None
        others = [Finish(job.id, job.attempt, "succeeded", b"7" if job is first[1] else None) for job in first[1:]]
        await worker.turn([Finish(again.id, 2, "succeeded", b"8"), *others])
    ended = [await finished(database, id) for id in jobs]
    assert {(row["id"], row["attempt"], row["result"]) for row in ended} == {
        (first[0].id, 2, b"8"),
        (first[1].id, 1, b"7"),
        (first[2].id, 1, None),
    }
