"""How jobs that share a queue wait for each other."""

import asyncio
import statistics
import time

import msgspec

from benchmarks.ours import install_schema
from tidemill import App
from tidemill.engine.logs import configure_logs
from tidemill.roles import jobs_role

QUEUE = "shared"
BACKLOG, SMALL, JOB_S, CONCURRENCY = 10_000, 15, 0.02, 10


class FlowControl(msgspec.Struct, frozen=True):
    """`fair_wait`: how long a small tenant's job waits behind another's thousands, in lengths of a job."""

    fair_wait: float


async def measure(dsn: str) -> FlowControl:
    """Measure on an empty database."""
    configure_logs("error")
    await install_schema(dsn)
    return FlowControl(fair_wait=await _fair_wait(dsn))


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
