"""The raw limit: hand-written SQL, asyncpg and uvloop, no engine. What any design on PostgreSQL runs into.

One connection claims a batch of 100 and completes it, two statements per batch, on tables of the shape that
ours have. Measured like a peer (`peers/contest.py`): `python -m benchmarks.raw --dsn URL`.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from benchmarks.peers import contest

BATCH = 100
QUEUE = "bench"
NOTIFY_EVERY_S = 0.005
BACKSTOP_POLL_S = 1.0

SCHEMA = """
CREATE TABLE raw_job (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue text COLLATE "C" NOT NULL,
    task text COLLATE "C" NOT NULL,
    priority smallint NOT NULL DEFAULT 0,
    state "char" NOT NULL DEFAULT 'r',
    due_at timestamptz NOT NULL DEFAULT now(),
    attempt int NOT NULL DEFAULT 0,
    worker_id bigint,
    started_at timestamptz,
    args json
);
CREATE INDEX raw_job_ready ON raw_job (queue, priority, due_at, id) WHERE state = 'r';
CREATE TABLE raw_job_history (
    id bigint NOT NULL,
    queue text COLLATE "C" NOT NULL,
    task text COLLATE "C" NOT NULL,
    priority smallint NOT NULL,
    due_at timestamptz NOT NULL,
    attempt int NOT NULL,
    worker_id bigint,
    started_at timestamptz,
    finished_at timestamptz NOT NULL,
    args json
) PARTITION BY RANGE (finished_at);
CREATE INDEX raw_job_history_id ON raw_job_history (id);
DO $$
BEGIN
    FOR day IN 0..1 LOOP
        EXECUTE format(
            'CREATE TABLE raw_job_history_%s PARTITION OF raw_job_history FOR VALUES FROM (%L) TO (%L)',
            day, current_date + day, current_date + day + 1
        );
    END LOOP;
END $$;
"""

# Takes the next due jobs of one queue.
CLAIM = """
UPDATE raw_job SET state = 'x', attempt = attempt + 1, worker_id = $2, started_at = now()
WHERE ctid = ANY (ARRAY (
    SELECT ctid FROM raw_job
    WHERE queue = $1 AND state = 'r' AND due_at <= now()
    ORDER BY priority, due_at, id LIMIT $3
    FOR UPDATE SKIP LOCKED
))
RETURNING id, attempt, task, args
"""

# Moves finished jobs to the history.
COMPLETE = """
WITH finished AS (
    DELETE FROM raw_job WHERE id = ANY ($1::bigint[])
    RETURNING id, queue, task, priority, due_at, attempt, worker_id, started_at, args
)
INSERT INTO raw_job_history
    (id, queue, task, priority, due_at, attempt, worker_id, started_at, args, finished_at)
SELECT *, now() FROM finished
"""

INSERT = "INSERT INTO raw_job (queue, task, args) VALUES ($1, $2, $3)"
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
            return await connection.fetch(statement, QUEUE, "noop", json.dumps({"n": n}))

    async def many(self, count: int) -> object:
        rows = ((QUEUE, "noop", json.dumps({"n": n})) for n in range(count))
        async with self._pool.acquire() as connection:
            return await connection.copy_records_to_table(
                "raw_job", records=rows, columns=("queue", "task", "args")
            )


class Raw:
    unfinished = "SELECT EXISTS (SELECT FROM raw_job)"

    async def install(self, dsn: str) -> None:
        connection = await asyncpg.connect(dsn)
        await connection.execute(SCHEMA)
        await connection.close()

    @asynccontextmanager
    async def producer(self, dsn: str, connections: int) -> AsyncIterator[RawProducer]:
        # `reset` would be one more round trip at each release.
        async with asyncpg.create_pool(
            dsn, min_size=connections, max_size=connections, reset=_keep_session
        ) as pool:
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
