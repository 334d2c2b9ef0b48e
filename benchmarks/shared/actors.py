"""The processes of ours that a suite runs: `python -m benchmarks.shared.actors ROLE --dsn URL`.

Each prints one line when it is ready. A `worker` and a `feeder` keep a log that survives SIGKILL: the numbers of
the jobs that were started, and the ids of the jobs that were acknowledged, eight bytes each.
"""

import argparse
import asyncio
import os
import struct
import time
from collections.abc import Callable

import asyncpg
import uvloop

from tidemill import App
from tidemill.core.errors import StoreError
from tidemill.engine.roles.maintenance import maintenance_role
from tidemill.engine.telemetry.logs import configure_logs
from tidemill.roles import jobs_role

QUEUE = "bench"
TASK_S = 0.02
BATCH = 200
MOST_WAITING = 4_000
COUNT_WAITING = f"SELECT count(*) FROM (SELECT FROM tidemill.job WHERE state = 'ready' LIMIT {MOST_WAITING}) AS ready"


# What the driver raises when the server goes; the last one if it is told so between two queries.
_AWAY = (StoreError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shared.actors", description=__doc__)
    parser.add_argument("role", choices=("maintenance", "worker", "feeder"))
    parser.add_argument("--dsn", required=True)
    parser.add_argument("--log", default=os.devnull, help="where to note numbers or ids")
    parser.add_argument("--max-concurrency", type=int, default=20)
    options = parser.parse_args()
    configure_logs("critical")
    roles = {"maintenance": orchestrate, "worker": work, "feeder": feed}
    uvloop.run(roles[options.role](options))


async def orchestrate(options: argparse.Namespace) -> None:
    """Migrate and sweep."""
    maintenance = maintenance_role(App("bench", database_url=options.dsn).database())
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(maintenance.run())
        await maintenance.wait_ready()
        _say_ready()


async def work(options: argparse.Namespace) -> None:
    """Work on jobs that take a while, so that `max_concurrency` is the limit and not the processor."""
    worker = jobs_role(
        _app(options.dsn, _log(options.log)).declarations, [QUEUE], max_concurrency=options.max_concurrency
    )
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.run())
        await worker.wait_ready()
        _say_ready()


async def feed(options: argparse.Namespace) -> None:
    """Keep some thousand jobs waiting, through whatever happens; log the ids of those that are acknowledged."""
    acknowledge = _log(options.log)
    number = 0
    connection = None
    async with _app(options.dsn, lambda _: None) as app:
        _say_ready()
        while True:
            try:
                if connection is None:
                    connection = await asyncpg.connect(options.dsn, timeout=2)
                if await connection.fetchval(COUNT_WAITING) >= MOST_WAITING:
                    await asyncio.sleep(0.02)
                    continue
                calls = [{"n": number + index} for index in range(BATCH)]
                number += BATCH
                for ref in await app.enqueue_many("nap", calls):
                    acknowledge(ref.id)
            except _AWAY:
                # Not acknowledged: these may or may not be stored. The next batch has new numbers.
                if connection is not None:
                    connection.terminate()
                connection = None
                await asyncio.sleep(0.05)


def _app(dsn: str, on_start: Callable[[int], None]) -> App:
    app = App("bench", database_url=dsn)

    @app.task(queue=QUEUE, retry=app.retry(max_attempts=3))
    async def nap(n: int) -> float:
        on_start(n)
        await asyncio.sleep(TASK_S)
        return time.time()

    return app


def _log(path: str) -> Callable[[int], None]:
    """Appends numbers to a file, each at once: what was written stays when the process is killed."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def note(number: int) -> None:
        os.write(file, struct.pack("<q", number))

    return note


def read_log(path: str) -> list[int]:
    """The numbers in a log."""
    with open(path, "rb") as file:
        return [number for (number,) in struct.iter_unpack("<q", file.read())]


def _say_ready() -> None:
    print("ready", flush=True)


if __name__ == "__main__":
    main()
