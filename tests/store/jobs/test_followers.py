"""What followed from a job or a batch is found by an index, whose rows are only those that followed from something."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tidemill import App
from tidemill.store.database import Database
from tidemill.store.jobs.declared import declare
from tidemill.store.jobs.history import partitions
from tidemill.store.jobs.read import LIST_FOLLOWERS, list_followers

#: Finished jobs of an application, of which every hundredth was started by the job with half of its id.
FILL = """
INSERT INTO tidemill.job_history (
    id, due_at, created_at, started_at, finished_at, attempt, failures, losses, priority, state, queue, task, args,
    origin)
SELECT n, now(), now(), now(), now(), 1, 0, 0, 5, 'succeeded', 'mail', 'send', '{}', CASE WHEN n % 100 = 0
       THEN json_build_object('by', 'job ' || n / 2 || ' (send)', 'parent', n / 2)
       ELSE '{"by":"app shop","host":"web","pid":7}'::json END
FROM generate_series(1, 20000) AS n
"""
ADD = """
INSERT INTO tidemill.job (queue, task, args, origin) VALUES ('mail', 'send', '{}', $1::text::json) RETURNING id
"""


@pytest.mark.parametrize("of", ["5000", "b3"])
async def test_followers_of_an_old_job_are_found_without_reading_the_jobs_after_it(database: Database, of: str) -> None:
    await partitions.make_partitions(database, datetime.now(UTC).date())
    await database.fetch(FILL)
    await database.fetch("ANALYZE tidemill.job_history")
    plan = await database.fetch(f"EXPLAIN {LIST_FOLLOWERS}", of, 100)
    read = "\n".join(row[0] for row in plan)
    assert f"Seq Scan on job_history_{datetime.now(UTC):%Y%m%d}" not in read, read  # The other days are empty.


async def test_what_repeats_a_job_what_it_or_a_step_started_and_what_ends_a_batch_followed_from_it(
    database: Database,
) -> None:
    await database.fetch("SELECT setval('tidemill.job_id_seq', 100000)")
    origins = (
        '{"by": "job 7 (send)", "parent": 7}',
        '{"by": "ann", "parent": 3, "retry_of": 7}',
        '{"by":"batch 7","batch":7}',
        '{"by":"run r7","run":7}',
        '{"by":"app of a \\"parent\\"","host":"7"}',
    )
    started, repeats, ends, of_run, other = [str((await database.fetch(ADD, each))[0]["id"]) for each in origins]
    assert [row["id"] for row in await list_followers(database, "7", limit=10)] == [started, repeats]
    assert [row["id"] for row in await list_followers(database, "b7", limit=10)] == [ends]
    assert [row["id"] for row in await list_followers(database, "r7", limit=10)] == [of_run]
    assert not await list_followers(database, "3", limit=10), "it followed from the job that it repeats"
    assert other not in {row["id"] for row in await list_followers(database, "7", limit=10)}


async def test_what_programs_and_sql_enqueue_is_told_from_followers_by_its_beginning(
    app: App, database: Database
) -> None:
    """The condition of the index is evaluated by every insert and claim: it must not search through most origins."""

    @app.task
    async def noop() -> None: ...

    await declare(database, app.declarations.templates())
    await app.enqueue("noop")
    await database.fetch("SELECT tidemill.enqueue('noop')")
    beginnings = [
        row["origin"][:10] for row in await database.fetch("SELECT origin::text FROM tidemill.job ORDER BY id")
    ]
    assert beginnings == ['{"by":"app', '{"by" : "S']
    assert """origin::text NOT LIKE '{"by":"app %'""" in LIST_FOLLOWERS
    assert """origin::text NOT LIKE '{"by" : "SQL by %'""" in LIST_FOLLOWERS
