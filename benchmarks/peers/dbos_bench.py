"""DBOS: an async workflow on a queue polled every 10 ms (its default is 1 s); enqueued by `DBOSClient`.

It has no bulk call: the backlog of the drain is enqueued in one transaction, which no row reports.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import sqlalchemy
from dbos import (  # pyright: ignore[reportMissingImports]
    DBOS,
    DBOSClient,
    EnqueueOptions,
    run_dbos_database_migrations,
)

from benchmarks.peers import contest

POLL_S = 0.01
WORKER_CONNECTIONS = 20
OPTIONS: EnqueueOptions = {"workflow_name": "noop", "queue_name": "bench"}


class DBOSProducer:
    def __init__(self, client: DBOSClient, engine: sqlalchemy.Engine, threads: int) -> None:
        self._client = client
        self._engine = engine
        self._threads = ThreadPoolExecutor(threads) if threads > 1 else None

    async def one(self, n: int) -> object:
        if self._threads is None:
            return self._client.enqueue(OPTIONS, n)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._client.enqueue, OPTIONS, n)

    async def many(self, count: int) -> object:
        with self._engine.begin() as connection:
            for n in range(count):
                self._client.enqueue_in_transaction(connection, OPTIONS, n)


class DBOSQueue:
    unfinished = "SELECT EXISTS (SELECT FROM dbos.workflow_status WHERE status IN ('ENQUEUED', 'PENDING'))"

    async def install(self, dsn: str) -> None:
        run_dbos_database_migrations(system_database_url=dsn)

    @asynccontextmanager
    async def producer(self, dsn: str, connections: int) -> AsyncIterator[DBOSProducer]:
        engine = sqlalchemy.create_engine(
            sqlalchemy.make_url(dsn).set(drivername="postgresql+psycopg"),
            pool_size=connections,
        )
        client = DBOSClient(system_database_engine=engine, application_name="bench")
        yield DBOSProducer(client, engine, connections)
        client.destroy()

    async def work(self, dsn: str, on_start: Callable[[], None]) -> None:
        DBOS(
            config={
                "name": "bench",
                "system_database_url": dsn,
                "sys_db_pool_size": WORKER_CONNECTIONS,
                "application_version": "bench",
                "log_level": "ERROR",
            }
        )

        @DBOS.workflow(name="noop")
        async def noop(n: int) -> None:
            on_start()

        DBOS.launch()
        await DBOS.register_queue_async("bench", polling_interval_sec=POLL_S)
        await asyncio.Event().wait()


if __name__ == "__main__":
    contest.main(DBOSQueue())
