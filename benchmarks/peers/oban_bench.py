"""Oban for Python: a psycopg pool, a limit of 200 jobs at once, `enqueue_many` in bulk.

It needs Python 3.12; with an older one its rows stay empty.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import oban.schema  # pyright: ignore[reportMissingImports]
from oban import Job, Oban, worker  # pyright: ignore[reportMissingImports]
from psycopg_pool import AsyncConnectionPool  # pyright: ignore[reportMissingImports]

from benchmarks.peers import contest

LIMIT = 200
WORKER_CONNECTIONS = 10
QUEUE = "bench"

# Oban makes the worker object itself, so the hook cannot be handed to it.
start_hooks: list[Callable[[], None]] = []


class ObanProducer:
    def __init__(self, engine: Oban) -> None:
        self._engine = engine

    async def one(self, n: int) -> object:
        return await self._engine.enqueue(_job(n))

    async def many(self, count: int) -> object:
        return await self._engine.enqueue_many(_job(n) for n in range(count))


class ObanForPython:
    unfinished = "SELECT EXISTS (SELECT FROM oban_jobs WHERE state IN ('available', 'executing'))"

    async def install(self, dsn: str) -> None:
        async with _pool(dsn, 1) as pool:
            await oban.schema.install(pool)

    @asynccontextmanager
    async def producer(self, dsn: str, connections: int) -> AsyncIterator[ObanProducer]:
        async with _pool(dsn, connections) as pool:
            yield ObanProducer(Oban(pool=pool))

    async def work(self, dsn: str, on_start: Callable[[], None]) -> None:
        start_hooks.append(on_start)
        async with _pool(dsn, WORKER_CONNECTIONS) as pool, Oban(pool=pool, queues={QUEUE: LIMIT}):
            await asyncio.Event().wait()


@worker(queue=QUEUE)
class Noop:
    async def process(self, job: object) -> None:
        for on_start in start_hooks:
            on_start()


def _job(n: int) -> Job:
    return Noop.new({"n": n})  # pyright: ignore[reportAttributeAccessIssue]: added by the decorator


def _pool(dsn: str, connections: int) -> AsyncConnectionPool:
    return AsyncConnectionPool(conninfo=dsn, min_size=connections, max_size=connections, open=False)


if __name__ == "__main__":
    contest.main(ObanForPython())
