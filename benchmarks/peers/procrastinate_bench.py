"""Procrastinate: psycopg pool, `batch_defer_async` in bulk.

It fetches one job per query, so more concurrency only adds waiting: 10 did 930 jobs/s, 30 and 50 did 810 to
840. Finished jobs are deleted, its lighter way of finishing.
"""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import procrastinate  # pyright: ignore[reportMissingImports]

from benchmarks.peers import contest

CONCURRENCY = 10
WORKER_CONNECTIONS = 10


class ProcrastinateProducer:
    def __init__(self, app: procrastinate.App) -> None:
        self._noop = app.configure_task("noop")

    async def one(self, n: int) -> object:
        return await self._noop.defer_async(n=n)

    async def many(self, count: int) -> object:
        return await self._noop.batch_defer_async(*({"n": n} for n in range(count)))


class Procrastinate:
    unfinished = "SELECT EXISTS (SELECT FROM procrastinate_jobs WHERE status IN ('todo', 'doing'))"

    async def install(self, dsn: str) -> None:
        async with _app(dsn, 1).open_async() as app:
            await app.schema_manager.apply_schema_async()

    @asynccontextmanager
    async def producer(self, dsn: str, connections: int) -> AsyncIterator[ProcrastinateProducer]:
        async with _app(dsn, connections).open_async() as app:
            yield ProcrastinateProducer(app)

    async def work(self, dsn: str, on_start: Callable[[], None]) -> None:
        async with _app(dsn, WORKER_CONNECTIONS).open_async() as app:

            @app.task(name="noop")
            async def noop(n: int) -> None:
                on_start()

            await app.run_worker_async(concurrency=CONCURRENCY, delete_jobs="successful")


def _app(dsn: str, connections: int) -> procrastinate.App:
    connector = procrastinate.PsycopgConnector(conninfo=dsn, min_size=connections, max_size=connections)
    return procrastinate.App(connector=connector)


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    contest.main(Procrastinate())
