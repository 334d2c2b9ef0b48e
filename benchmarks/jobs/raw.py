"""The raw limit: hand-written SQL, asyncpg and uvloop, no engine. What any design on PostgreSQL runs into.

One connection claims a batch of 100 and completes it, two statements per batch, on the same rows of the same
tables as ours. Measured like a peer (`peers/contest.py`): `python -m benchmarks.jobs.raw --dsn URL`.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from benchmarks.jobs.ours import QUEUE
from benchmarks.peers import contest
from benchmarks.shared.schema import install_schema

BATCH = 100
NOTIFY_EVERY_S = 0.005
BACKSTOP_POLL_S = 1.0

# What an engine of ours would store with each job, so that the rows are as wide as its rows.
ORIGIN = '{"by":"app bench","host":"a-host","pid":4711}'

# Takes the next due jobs of one queue; all of them have the usual priority.
CLAIM = """
UPDATE tidemill.job SET state = 'running', attempt = attempt + 1, worker_id = $2, started_at = now()
WHERE ctid = ANY (ARRAY (
    SELECT ctid FROM tidemill.job
    WHERE queue = $1 AND priority = 5 AND state = 'ready' AND fair_key IS NULL AND due_at <= now()
    ORDER BY due_at, id LIMIT $3
    FOR UPDATE SKIP LOCKED
))
RETURNING id, attempt, task, args
"""

# Moves finished jobs to the history.
COMPLETE = """
WITH finished AS (DELETE FROM tidemill.job WHERE id = ANY ($1::bigint[]) RETURNING *)
INSERT INTO tidemill.job_history (
    id, due_at, created_at, deadline, started_at, worker_id, attempt, failures, losses, priority, state, queue,
    task, args, options, origin, tags, unique_key, concurrency_key, result, note, errors)
SELECT id, due_at, created_at, deadline, started_at, worker_id, attempt, failures, losses, priority, 'succeeded',
       queue, task, args, options, origin, tags, unique_key, concurrency_key, 'null', note, errors
FROM finished
"""

INSERT = "INSERT INTO tidemill.job (queue, task, args, origin) VALUES ($1, $2, $3, $4)"
INSERT_AND_NOTIFY = f"WITH job AS ({INSERT} RETURNING id) SELECT pg_notify('raw_job', '') FROM job"


class RawProducer:
    """Notifies at once when idle and every 5 ms when busy, as a real engine can."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool
        self._notified_at = 0.0

    async def one(self, n: int) -> object:
        now = time.monotonic()
        if quiet := now - self._notified_at > NOTIFY_EVERY_S:
            self._notified_at = now
        statement = INSERT_AND_NOTIFY if quiet else INSERT
        async with self._pool.acquire() as connection:
            return await connection.fetch(statement, QUEUE, "noop", json.dumps({"n": n}), ORIGIN)

    async def many(self, count: int) -> object:
        rows = ((QUEUE, "noop", json.dumps({"n": n}), ORIGIN) for n in range(count))
        async with self._pool.acquire() as connection:
            return await connection.copy_records_to_table(
                "job", schema_name="tidemill", records=rows, columns=("queue", "task", "args", "origin")
            )


class Raw:
    unfinished = "SELECT EXISTS (SELECT FROM tidemill.job)"

    async def install(self, dsn: str) -> None:
        await install_schema(dsn)

    @asynccontextmanager
    async def producer(self, dsn: str, connections: int) -> AsyncIterator[RawProducer]:
        # `reset` would be one more round trip at each release.
        async with asyncpg.create_pool(dsn, min_size=connections, max_size=connections, reset=_keep_session) as pool:
            yield RawProducer(pool)

    async def work(self, dsn: str, on_start: Callable[[], None]) -> None:
        connection = await asyncpg.connect(dsn)
        woken = asyncio.Event()
        await connection.add_listener("raw_job", lambda *_: woken.set())
        claim = await connection.prepare(CLAIM)
        complete = await connection.prepare(COMPLETE)
        while True:
            woken.clear()
            while jobs := await claim.fetch(QUEUE, 1, BATCH):
                for _ in jobs:
                    on_start()
                await complete.fetch([job["id"] for job in jobs])
            try:
                await asyncio.wait_for(woken.wait(), BACKSTOP_POLL_S)
            except TimeoutError:
                continue


async def _keep_session(connection: Any) -> None:
    return None


if __name__ == "__main__":
    contest.main(Raw())
