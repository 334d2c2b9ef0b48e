"""PGQueuer: asyncpg, batches of 500, the list form of `enqueue` in bulk.

A pool lets the worker write completions while it claims; its own single-connection driver takes turns.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import asyncpg
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver  # pyright: ignore[reportMissingImports]
from pgqueuer.qm import QueueManager  # pyright: ignore[reportMissingImports]
from pgqueuer.queries import Queries  # pyright: ignore[reportMissingImports]

from benchmarks.peers import contest

BATCH = 500
WORKER_CONNECTIONS = 4


class PGQueuerProducer:
    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    async def one(self, n: int) -> object:
        return await self._queries.enqueue("noop", b'{"n": %d}' % n)

    async def many(self, count: int) -> object:
        payloads = [b'{"n": %d}' % n for n in range(count)]
        return await self._queries.enqueue(["noop"] * count, payloads, [0] * count)


class PGQueuer:
    unfinished = "SELECT EXISTS (SELECT FROM pgqueuer)"

    async def install(self, dsn: str) -> None:
        connection = await asyncpg.connect(dsn)
        await Queries(AsyncpgDriver(connection)).install()
        await connection.close()

    @asynccontextmanager
    async def producer(self, dsn: str, connections: int) -> AsyncIterator[PGQueuerProducer]:
        if connections == 1:
            connection = await asyncpg.connect(dsn)
            yield PGQueuerProducer(Queries(AsyncpgDriver(connection)))
            await connection.close()
        else:
            async with asyncpg.create_pool(dsn, min_size=connections, max_size=connections) as pool:
                yield PGQueuerProducer(Queries(AsyncpgPoolDriver(pool)))

    async def work(self, dsn: str, on_start: Callable[[], None]) -> None:
        async with asyncpg.create_pool(dsn, min_size=2, max_size=WORKER_CONNECTIONS) as pool:
            manager = QueueManager(Queries(AsyncpgPoolDriver(pool)))

            @manager.entrypoint("noop")
            async def noop(job: object) -> None:
                on_start()

            await manager.run(batch_size=BATCH)


if __name__ == "__main__":
    contest.main(PGQueuer())
