"""awa: its queue-storage engine, 1000 workers, one claimer, `enqueue_many_copy` in bulk.

More claimers were slower on two cores (5 600 to 6 400 jobs/s instead of 7 100 to 7 600).
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import awa  # pyright: ignore[reportMissingImports]

from benchmarks.peers import contest

WORKERS = 1_000
WORKER_CONNECTIONS = 10


@dataclass
class Noop:
    n: int


class AwaProducer:
    def __init__(self, client: awa.AsyncClient) -> None:
        self._client = client

    async def one(self, n: int) -> object:
        return await self._client.insert(Noop(n), queue="bench")

    async def many(self, count: int) -> object:
        return await self._client.enqueue_many_copy([Noop(n) for n in range(count)], queue="bench")


class Awa:
    unfinished = """
        SELECT (SELECT sum(claimed_count) FROM awa.ready_claim_attempt_batches)
             > (SELECT coalesce(sum(completed_count), 0) FROM awa.receipt_completion_batches)
    """

    async def install(self, dsn: str) -> None:
        async with awa.AsyncClient(_with_a_host(dsn), max_connections=1) as client:
            await client.migrate()
            await client.install_queue_storage()

    @asynccontextmanager
    async def producer(self, dsn: str, connections: int) -> AsyncIterator[AwaProducer]:
        async with awa.AsyncClient(_with_a_host(dsn), max_connections=connections) as client:
            yield AwaProducer(client)

    async def work(self, dsn: str, on_start: Callable[[], None]) -> None:
        client = awa.AsyncClient(_with_a_host(dsn), max_connections=WORKER_CONNECTIONS)

        @client.task(Noop, queue="bench")
        async def noop(job: object) -> None:
            on_start()

        await client.start([("bench", WORKERS)])
        await asyncio.Event().wait()


def _with_a_host(dsn: str) -> str:
    """Its driver refuses an empty host, even where `?host=` names the directory of a Unix socket."""
    url = urlsplit(dsn)
    host = "" if url.hostname else "localhost"
    return f"{url.scheme}://{url.netloc}{host}{url.path}?{url.query}"


if __name__ == "__main__":
    contest.main(Awa())
