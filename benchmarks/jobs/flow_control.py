"""Other ways to enqueue a job, and how jobs that share a queue wait for each other."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

import asyncpg
import msgspec

from benchmarks.jobs.ours import bench_app
from benchmarks.shared.schema import install_schema
from tidemill import App
from tidemill.engine.telemetry.logs import configure_logs
from tidemill.roles import jobs_role
from tidemill.store.database import Database, DatabaseSettings
from tidemill.store.jobs.declared import declare

QUEUE = "shared"
ENQUEUE = "SELECT tidemill.enqueue('noop', $1::text::jsonb)"
ROUNDS = 3
SHORTEST_S = 0.4  # of a window: shorter ones measure a second of the disk
BACKLOG, SMALL, JOB_S, CONCURRENCY = 10_000, 15, 0.02, 10


class FlowControl(msgspec.Struct, frozen=True):
    """`fair_wait`: how long a small tenant's job waits behind another's thousands, in lengths of a job."""

    fair_wait: float
    enqueue_sql: float
    debounced: float
    enqueue_one: float


async def measure(dsn: str, seconds: float) -> FlowControl:
    """Measure on an empty database, each way to enqueue for so many seconds."""
    configure_logs("error")
    await install_schema(dsn)
    rates = await _enqueue_rates(dsn, seconds)
    return FlowControl(await _fair_wait(dsn), *rates)


async def _enqueue_rates(dsn: str, seconds: float) -> tuple[float, float, float]:
    """Calls a second of the SQL function, with `debounce=`, and of a plain `app.enqueue`, which take turns."""
    async with bench_app(dsn, lambda: None) as app, Database(DatabaseSettings(url=dsn)) as database:
        await declare(database, app.declarations.templates())
        connection = await asyncpg.connect(dsn)
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: connection.fetchval(ENQUEUE, '{"n": 1}'),
            lambda: app.enqueue("noop", n=1, unique_key="k", debounce="1m"),
            lambda: app.enqueue("noop", n=1),
        ]
        rates = [[await _rate(call, max(seconds / ROUNDS, SHORTEST_S)) for call in calls] for _ in range(ROUNDS)]
        await connection.close()
    enqueue_sql, debounced, enqueue_one = (statistics.median(taken) for taken in zip(*rates, strict=True))
    return enqueue_sql, debounced, enqueue_one


async def _rate(call: Callable[[], Awaitable[object]], seconds: float) -> float:
    begin, calls = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        await call()
        calls += 1
    return calls / (time.perf_counter() - begin)


async def _fair_wait(dsn: str) -> float:
    app = App("bench", database_url=dsn)
    started: asyncio.Queue[float] = asyncio.Queue()

    @app.task(queue=QUEUE, fair_key="{tenant}")
    async def work(tenant: str) -> None:
        if tenant != "large":
            started.put_nowait(time.perf_counter())
        await asyncio.sleep(JOB_S)

    waits = []
    async with app:
        await app.enqueue_many(work, [{"tenant": "large"}] * BACKLOG)
        worker = asyncio.create_task(jobs_role(app.declarations, [QUEUE], max_concurrency=CONCURRENCY).run())
        await asyncio.sleep(1)
        for n in range(SMALL):
            await asyncio.sleep(JOB_S * (0.5 + n % 3))
            began = time.perf_counter()
            await app.enqueue(work.call(f"small {n}"))
            waits.append((await started.get() - began) / JOB_S)
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
    return statistics.median(waits)
