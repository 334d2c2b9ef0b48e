"""Tidemill in the contest: one worker process, measured exactly as the peers are (`peers/contest.py`).

`python -m benchmarks.jobs.ours --dsn URL`. Maintenance process runs beside the worker, as it would for a user
(`--under maintenance`); the other circumstances are those that kill queues in production.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import asyncpg

from benchmarks.peers import contest
from benchmarks.shared.schema import install_schema
from tidemill import App
from tidemill.engine.telemetry.logs import configure_logs
from tidemill.roles import jobs_role

QUEUE = "bench"
CONCURRENCY = 200

# Rows like those that finished jobs of this benchmark leave, in the partition of the day that is so many days ago.
FILL_HISTORY = """
INSERT INTO tidemill.job_history (
    id, due_at, created_at, started_at, finished_at, worker_id, attempt, failures, losses, priority, state, queue,
    task, args, origin, result)
SELECT nextval('tidemill.job_id_seq'), day, day, day, day, 0, 1, 0, 0, 5, 'succeeded', 'bench', 'noop',
       json_build_object('n', n), '{"by":"app bench","host":"a-host","pid":4711}', 'null'
FROM generate_series(1, $1::int) AS n, (SELECT now() - make_interval(days => $2::int) AS day)
"""


_tenants = 0  # how many fair keys the jobs of the backlog have
_is_batch = False


class TidemillProducer:
    def __init__(self, app: App) -> None:
        self._app = app

    async def one(self, n: int) -> object:
        return await self._app.enqueue("noop", n=n)

    async def many(self, count: int) -> object:
        if _tenants:
            return await self._app.enqueue_many("shared_noop", [{"tenant": n % _tenants} for n in range(count)])
        if _is_batch:
            noop = self._app.declarations.task("noop")
            return await self._app.batch(noop.call(n) for n in range(count))
        return await self._app.enqueue_many("noop", [{"n": n} for n in range(count)])


class Tidemill:
    # Jobs that are delayed on purpose are not part of the backlog.
    unfinished = "SELECT EXISTS (SELECT FROM tidemill.job WHERE state <> 'ready' OR due_at <= now())"

    async def install(self, dsn: str) -> None:
        await install_schema(dsn)

    @asynccontextmanager
    async def producer(self, dsn: str, connections: int) -> AsyncIterator[TidemillProducer]:
        async with bench_app(dsn, lambda: None, pool_size=connections) as app:
            yield TidemillProducer(app)

    async def work(self, dsn: str, on_start: Callable[[], None]) -> None:
        await jobs_role(bench_app(dsn, on_start).declarations, [QUEUE], max_concurrency=CONCURRENCY).run()


def bench_app(dsn: str, on_start: Callable[[], None], *, pool_size: int = 8) -> App:
    """An application with the one task of the contest."""
    configure_logs("error")
    app = App("bench", database_url=dsn, pool_size=pool_size)

    @app.task(queue=QUEUE)
    async def noop(n: int) -> None:
        on_start()

    @app.task(queue=QUEUE, fair_key="tenant {tenant}")
    async def shared_noop(tenant: int) -> None:
        on_start()

    return app


@asynccontextmanager
async def an_maintenance(dsn: str, _: int) -> AsyncIterator[None]:
    """Maintenance walks its rounds in a process of its own."""
    arguments = ("-m", "benchmarks.shared.actors", "maintenance", "--dsn", dsn)
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.DEVNULL)
    try:
        yield  # it gets ready while the backlog is enqueued
    finally:
        process.kill()
        await process.wait()


@asynccontextmanager
async def finished_jobs(dsn: str, count: int) -> AsyncIterator[None]:
    """`count` jobs have finished today; vacuumed and on disk, as those of a few minutes ago would be."""
    connection = await asyncpg.connect(dsn)
    await connection.execute(FILL_HISTORY.replace("$1", str(count)).replace("$2", "0"))
    await connection.execute("VACUUM (ANALYZE) tidemill.job_history")
    await connection.execute("CHECKPOINT")
    await connection.close()
    yield


@asynccontextmanager
async def delayed_jobs(dsn: str, count: int) -> AsyncIterator[None]:
    """`count` jobs of the same queue wait for tomorrow."""
    async with bench_app(dsn, lambda: None) as app:
        await app.enqueue_many("noop", ({"n": n} for n in range(count)), delay="1d")
    yield


@asynccontextmanager
async def held_xmin(dsn: str, _: int) -> AsyncIterator[None]:
    """Another transaction has taken a snapshot and stays open: rows that die from now on cannot be removed."""
    connection = await asyncpg.connect(dsn)
    async with connection.transaction(isolation="repeatable_read"):
        await connection.fetchval("SELECT count(*) FROM tidemill.job")
        yield
    await connection.close()


@asynccontextmanager
async def fair_keys(_: str, count: int) -> AsyncIterator[None]:
    """The jobs belong to so many tenants, which share the queue."""
    global _tenants
    _tenants = count
    yield


@asynccontextmanager
async def a_batch(_: str, count: int) -> AsyncIterator[None]:
    """The jobs are one batch."""
    global _is_batch
    _is_batch = True
    yield


CIRCUMSTANCES = {
    "maintenance": an_maintenance,
    "history": finished_jobs,
    "delayed": delayed_jobs,
    "held_xmin": held_xmin,
    "fair": fair_keys,
    "batch": a_batch,
}

if __name__ == "__main__":
    contest.main(Tidemill(), CIRCUMSTANCES)
