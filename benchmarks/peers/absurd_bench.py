"""Absurd's Python SDK: tasks of ten no-op steps, 64 under way, async workers with a connection each in one process.

Its engine is a file of SQL, which `absurd-sdk` does not bring. It is taken from `absurdctl`, its command line tool,
where that is installed in the peers' environment; without it there is no figure.
"""

import asyncio
import importlib

import asyncpg
from absurd_sdk import AsyncAbsurd  # pyright: ignore[reportMissingImports]

from benchmarks.peers import flow_contest
from benchmarks.peers.flow_contest import IN_FLIGHT, STEPS, Options, Tally

QUEUE = "bench"
WORKERS = 8
POLL_S = 0.01


async def durable_steps(options: Options) -> float:
    await _install_sql(options.dsn)
    ended: dict[int, asyncio.Event] = {}
    steps = Tally()
    workers = [_client(options.dsn, ended, steps) for _ in range(WORKERS)]
    producer = _client(options.dsn, ended, steps)
    await producer.create_queue(QUEUE)
    tasks = [
        asyncio.create_task(worker.start_worker(concurrency=IN_FLIGHT // WORKERS, poll_interval=POLL_S))
        for worker in workers
    ]
    started = 0

    async def chain() -> None:
        nonlocal started
        started += 1
        number = started
        ended[number] = asyncio.Event()
        await producer.spawn("chain", {"number": number})
        await ended[number].wait()

    try:
        return await flow_contest.crowded_rate(chain, steps, options)
    finally:
        for worker in workers:  # One that is cancelled may go on.
            worker.stop_worker()
        await asyncio.gather(*tasks)


def _client(dsn: str, ended: dict[int, asyncio.Event], steps: Tally) -> AsyncAbsurd:
    client = AsyncAbsurd(dsn, queue_name=QUEUE)

    @client.register_task(name="chain")
    async def chain(params, ctx):
        async def turn() -> int:
            steps.done += 1
            return 1

        for number in range(STEPS):
            await ctx.step(f"turn-{number}", turn)
        # In its favour: the task counts as ended a moment before its result is stored.
        ended[params["number"]].set()
        return STEPS

    return client


async def _install_sql(dsn: str) -> None:
    try:
        tool = importlib.import_module("absurdctl")
    except ImportError:
        raise SystemExit("absurd-sdk comes without its SQL, and absurdctl, which has it, is not installed") from None
    connection = await asyncpg.connect(dsn)
    await connection.execute(tool.BUNDLED_SCHEMA_SQL)
    await connection.close()


if __name__ == "__main__":
    flow_contest.main({"durable_steps": durable_steps})
