"""The raw limit of durable flows: asyncpg and uvloop on our journal's table, no engine.

`durable_steps` is group commit: 64 producers hand single ticks to one writer, which copies all that have come since
its last commit and then lets their producers go on. `step_p50` is one tick, inserted and committed by itself.
"""

import asyncio
import itertools
import statistics
import time

import asyncpg

from benchmarks.peers import flow_contest
from benchmarks.peers.flow_contest import Options, Tally
from benchmarks.shared.schema import install_schema

# As long as the tick of a step that returns a small event.
TICK = (
    '{"kind":"completed","at":1700000000.123456,"work":7,"events":[{"type":"benchmarks.peers.flow_contest.'
    'programs.<locals>.Turn","value":{"n":7,"last":10}}]}'
)
INSERT = "INSERT INTO tidemill.tick (run_id, seq, data) VALUES ($1, $2, $3)"
WARMUPS = 20


class GroupCommit:
    """One writer on one connection."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection
        self._waiting: list[tuple[tuple[int, int, str], asyncio.Future[None]]] = []
        self._news = asyncio.Event()

    async def put(self, run_id: int, seq: int) -> None:
        """Returns when the tick is durable."""
        done = asyncio.get_running_loop().create_future()
        self._waiting.append(((run_id, seq, TICK), done))
        self._news.set()
        await done

    async def write(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            taken, self._waiting = self._waiting, []
            await self._connection.copy_records_to_table(
                "tick", schema_name="tidemill", records=[row for row, _ in taken], columns=("run_id", "seq", "data")
            )
            for _, done in taken:
                done.set_result(None)


async def durable_steps(options: Options) -> float:
    """Ticks/s."""
    await install_schema(options.dsn)
    connection = await asyncpg.connect(options.dsn)
    numbers = itertools.count()
    ticks = Tally()
    group = GroupCommit(connection)
    writer = asyncio.create_task(group.write())

    async def one_tick() -> None:
        number = next(numbers)
        await group.put(number // flow_contest.STEPS, number % flow_contest.STEPS)
        ticks.done += 1

    try:
        return await flow_contest.crowded_rate(one_tick, ticks, options)
    finally:
        writer.cancel()
        await connection.close()


async def step_p50(options: Options) -> float:
    """Milliseconds of a commit."""
    await install_schema(options.dsn)
    connection = await asyncpg.connect(options.dsn)
    insert = await connection.prepare(INSERT)
    taken = []
    for number in range(WARMUPS + options.samples):
        began = time.perf_counter()
        await insert.fetch(1_000_000_000, number, TICK)
        taken.append((time.perf_counter() - began) * 1_000)
    await connection.close()
    return statistics.median(taken[WARMUPS:])


if __name__ == "__main__":
    flow_contest.main({"durable_steps": durable_steps, "step_p50": step_p50})
