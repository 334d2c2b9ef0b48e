"""Jobs and runs are found by what they were called with, what went wrong, and when they were created."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tidemill import App
from tidemill.core.errors import ArgumentError
from tidemill.flows import StartEvent, StopEvent, Workflow, step
from tidemill.store.database import Database
from tidemill.store.jobs.pages import JobFilter, RunFilter, list_job_page, list_run_page


class Chapter(StartEvent):
    title: str
    pages: int


class Book(Workflow):
    @step
    async def write(self, ev: Chapter) -> StopEvent:
        return StopEvent(result=ev.title)


async def ids(database: Database, wanted: JobFilter) -> list[int]:
    return [row["id"] for row in await list_job_page(database, wanted)]


async def run_ids(database: Database, wanted: RunFilter) -> list[int]:
    return [row["id"] for row in await list_run_page(database, wanted)]


#: Moves a job to the history as one that failed three days after it was created.
FAIL = """
WITH gone AS (DELETE FROM tidemill.job WHERE id = $1 RETURNING *)
INSERT INTO tidemill.job_history
    (id, due_at, created_at, attempt, failures, losses, priority, state, queue, task, args, note, errors)
SELECT id, due_at, now() - interval '3 days', 1, 1, 0, priority, 'failed', queue, task, args,
       'Gone: the Mailbox is full', '[{"message": "50% of it"}]' FROM gone
"""


async def test_jobs_are_found_by_argument_error_and_time(app: App, database: Database) -> None:
    @app.task
    async def send(to: str, order: int = 0, tags: list[str] | None = None) -> None: ...

    first = await app.enqueue(send.call(to="ann", order=7))
    second = await app.enqueue(send.call(to="7", order=8, tags=["a", "b"]))
    third = await app.enqueue(send.call(to="ben", order=9))
    await database.fetch(FAIL, third.id)

    assert await ids(database, JobFilter(arg=("order=7",))) == [first.id]
    assert await ids(database, JobFilter(arg=('to="7"',))) == [second.id]
    assert await ids(database, JobFilter(arg=("to=ben", "order=9"))) == [third.id]
    assert await ids(database, JobFilter(arg=("to=ben", "order=8"))) == []
    assert await ids(database, JobFilter(arg=('tags=["b"]',))) == [second.id]
    assert await ids(database, JobFilter(error="MAILBOX is")) == [third.id]
    assert await ids(database, JobFilter(error="50%")) == [third.id]
    assert await ids(database, JobFilter(error="_ailbox")) == [], "a text is a text and no pattern"

    yesterday = datetime.now(UTC) - timedelta(days=1)
    assert await ids(database, JobFilter(since=yesterday)) == [second.id, first.id]
    assert await ids(database, JobFilter(until=yesterday)) == [third.id]
    assert await ids(database, JobFilter(since=yesterday - timedelta(days=7), state=("failed",))) == [third.id]


async def test_runs_are_found_by_argument_tag_error_and_time(app: App, database: Database) -> None:
    app.workflow(Book)
    high = await app.start(Book, Chapter(title="high water", pages=3), tags=["tides"])
    low = await app.start(Book, Chapter(title="low water", pages=4))
    await database.fetch("UPDATE tidemill.run SET state = 'failed', note = 'no Ink' WHERE id = $1", low.id)

    assert await run_ids(database, RunFilter(arg=("pages=3",))) == [high.id]
    assert await run_ids(database, RunFilter(arg=("title=low water",))) == [low.id]
    assert await run_ids(database, RunFilter(tag="tides")) == [high.id]
    assert await run_ids(database, RunFilter(error="no ink")) == [low.id]
    later = datetime.now(UTC) + timedelta(hours=1)
    assert await run_ids(database, RunFilter(since=later)) == []
    assert await run_ids(database, RunFilter(until=later)) == [low.id, high.id]


def test_an_argument_without_a_value_is_refused() -> None:
    with pytest.raises(ArgumentError, match="write order_id=7"):
        JobFilter(arg=("order",)).validate()
