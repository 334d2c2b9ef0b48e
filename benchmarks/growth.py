"""The `growth` suite: how the cost of the same work grows with what there is of something, over three sizes.

A row is the exponent that fits the sizes best: 0 if the cost stays, 1 if it grows as the size does, 2 if it grows as
its square. Work whose amount grows with the size should be linear, and work beside it should not notice.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from benchmarks.jobs.ours import FILL_HISTORY
from benchmarks.monitors import scenarios as monitors
from benchmarks.shared import report
from benchmarks.shared.contenders import say
from benchmarks.shared.postgres import Server
from benchmarks.shared.schema import install_schema
from tidemill import App
from tidemill.core.clock import VirtualClock
from tidemill.dags import Dag, node
from tidemill.declarations import DECLARERS
from tidemill.engine.jobs.task import Call
from tidemill.engine.roles.lease import Lease
from tidemill.engine.roles.scheduler import Scheduler
from tidemill.engine.telemetry.logs import configure_logs
from tidemill.flows import Context, Event, HumanResponseEvent, StartEvent, StopEvent, Workflow, step
from tidemill.monitors.runner.runner import MonitorDriver, MonitorRunner
from tidemill.ops.jobs.jobs import ListJobs, list_jobs
from tidemill.store.jobs.schedules.schedules import declare_schedules
from tidemill.store.maintenance.partitions import make_daily

#: What exponents are to stay below: a little above 1 and 0, for the noise of a machine.
LINEAR, FLAT = 1.2, 0.25
HISTORY_DAYS = 28  # What is kept without a setting, but for the days at its ends.
LEAST = 0.01  # A cost that falls with the size counts as one that stays.

#: A run that is in memory, or about to be.
HELD = "SELECT FROM tidemill.run WHERE state = 'running' AND (owner IS NOT NULL OR awake) LIMIT 1"

Cost = Callable[[str, int, "Plan"], Awaitable[float]]


class Plan(msgspec.Struct, frozen=True):
    """By how much each size is larger than the one before, how large the first is, and how much work is timed."""

    factor: int
    jobs: int
    runs: int
    rounds: int
    ticks: int
    nodes: int
    waiting_runs: int
    schedules: int
    queues: int
    fair_keys: int
    finished_jobs: int
    entities: int


QUICK = Plan(
    factor=4, jobs=500, runs=20, rounds=5, ticks=100, nodes=50, waiting_runs=50, schedules=200, queues=4,
    fair_keys=10, finished_jobs=5_000, entities=500,
)  # fmt: skip
FULL = Plan(
    factor=10, jobs=5_000, runs=100, rounds=20, ticks=1_000, nodes=100, waiting_runs=1_000, schedules=100, queues=10,
    fair_keys=100, finished_jobs=1_000_000, entities=10_000,
)  # fmt: skip
#: For tests: enough to see that it works, and nothing else.
TOY = Plan(
    factor=2, jobs=5, runs=1, rounds=1, ticks=3, nodes=2, waiting_runs=1, schedules=2, queues=1, fair_keys=1,
    finished_jobs=10, entities=5,
)  # fmt: skip


class Tock(Event):
    n: int


class Counts(Workflow):
    """As many steps as it is told."""

    @step
    async def first(self, ev: StartEvent) -> Tock:
        return Tock(n=ev.steps)

    @step
    async def tock(self, ev: Tock) -> Tock | StopEvent:
        return Tock(n=ev.n - 1) if ev.n > 1 else StopEvent()


class Waits(Workflow):
    """Waits for a person."""

    @step
    async def wait(self, ctx: Context, ev: StartEvent) -> StopEvent:
        await ctx.wait_for_event(HumanResponseEvent, timeout=None)
        return StopEvent()


def run(server: Server, plan: Plan, only: tuple[str, ...] = ()) -> list[report.Row]:
    """The exponent of each cost; `only` names those that are measured, if not all."""
    configure_logs("error")
    rows = []
    for name, (cost, limit) in COSTS.items():
        if only and name not in only:
            continue
        first = getattr(plan, name)
        sizes = [first * plan.factor**power for power in range(3)]
        costs = []
        for size in sizes:
            with server.database("growth") as dsn:
                costs.append(asyncio.run(_measured(cost, dsn, size, plan)))
        said = ", ".join(f"{size:,}: {seconds * 1000:,.1f} ms" for size, seconds in zip(sizes, costs, strict=True))
        say(f"growth_{name}: {said}")
        exponent = max(LEAST, fitted_exponent(sizes, costs))
        rows.append(report.compare(f"growth_{name}", "exponent", exponent, "limit", limit, less_is_better=True))
    return rows


def fitted_exponent(sizes: list[int], costs: list[float]) -> float:
    """The slope of the line that fits the logarithms best."""
    points = [(math.log(size), math.log(cost)) for size, cost in zip(sizes, costs, strict=True)]
    middle_x, middle_y = (sum(values) / len(points) for values in zip(*points, strict=True))
    above = sum((x - middle_x) * (y - middle_y) for x, y in points)
    return above / sum((x - middle_x) ** 2 for x, _ in points)


async def _measured(cost: Cost, dsn: str, size: int, plan: Plan) -> float:
    await install_schema(dsn)
    return await cost(dsn, size, plan)


@asynccontextmanager
async def _running(dsn: str, queues: int = 1) -> AsyncIterator[App]:
    """An application at work, with a task on each of so many queues."""
    app = App("bench", database_url=dsn)
    app.workflow(Counts, timeout=None)
    app.workflow(Waits, timeout=None)

    for number in range(queues):

        @app.task(name=f"noop{number}", queue=f"queue{number}")
        async def noop(n: int = 0) -> None: ...

    @app.task(queue="queue0", fair_key="tenant {tenant}")
    async def shared(tenant: int) -> None: ...

    async with app.running(max_concurrency=100):
        yield app


async def _drained(app: App, calls: list[Call[Any]]) -> float:
    """How long it takes to enqueue these jobs in one call, and to run them."""
    began = time.perf_counter()
    await app.enqueue_many(calls)
    await _until_empty(app)
    return time.perf_counter() - began


async def _until_empty(app: App) -> None:
    opened = await app.declarations.connections.open()
    while await opened.database.fetch("SELECT FROM tidemill.job LIMIT 1"):
        await asyncio.sleep(0.002)


async def _ticks(dsn: str, size: int, plan: Plan) -> float:
    async with _running(dsn) as app:
        began = time.perf_counter()
        await (await app.start(Counts, steps=size)).result()
        return time.perf_counter() - began


async def _nodes(dsn: str, size: int, plan: Plan) -> float:
    async with _running(dsn) as app:
        nodes = [node("n0", "noop0"), *(node(f"n{n}", "noop0", deps=[f"n{(n - 1) // 10}"]) for n in range(1, size))]
        tree = app.dag(Dag("tree", nodes))
        began = time.perf_counter()
        await (await app.start(tree)).result()
        return time.perf_counter() - began


async def _waiting_runs(dsn: str, size: int, plan: Plan) -> float:
    async with _running(dsn) as app:
        for start in range(0, size, 200):
            await asyncio.gather(*(app.start(Waits) for _ in range(min(200, size - start))))
        opened = await app.declarations.connections.open()
        while await opened.database.fetch(HELD):
            await asyncio.sleep(0.01)
        began = time.perf_counter()
        for _ in range(plan.runs):
            await (await app.start(Counts, steps=2)).result()
        return time.perf_counter() - began


async def _schedules(dsn: str, size: int, plan: Plan) -> float:
    app = App("bench", database_url=dsn)

    @app.task
    async def noop() -> None: ...

    for number in range(size):
        app.schedule(f"later{number}", noop.call(), every="30d")
    app.schedule("now", noop.call(), every="1s")
    async with app.declarations.database() as database:
        await declare_schedules(database, app.declarations.stored_schedules(), by=DECLARERS)
        scheduler = Scheduler(database, None)
        began = time.perf_counter()
        for _ in range(plan.rounds):
            await scheduler.fire()
        return time.perf_counter() - began


async def _queues(dsn: str, size: int, plan: Plan) -> float:
    async with _running(dsn, queues=size) as app:
        tasks = [app.declarations.task(f"noop{number}") for number in range(size)]
        return await _drained(app, [tasks[n % size].call() for n in range(plan.jobs)])


async def _fair_keys(dsn: str, size: int, plan: Plan) -> float:
    async with _running(dsn) as app:
        shared = app.declarations.task("shared")
        return await _drained(app, [shared.call(tenant=n % size) for n in range(plan.jobs)])


async def _finished_jobs(dsn: str, size: int, plan: Plan) -> float:
    """Jobs enqueued and drained, and listed, beside finished ones of `HISTORY_DAYS` days, a partition each."""
    async with _running(dsn) as app:
        database = (await app.declarations.connections.open()).database
        first = datetime.now(UTC).date() - timedelta(days=HISTORY_DAYS - 1)
        await make_daily(database, "job_history", "finished_at", first, days_ahead=HISTORY_DAYS - 1)
        for days_ago in reversed(range(HISTORY_DAYS)):
            await database.fetch(FILL_HISTORY, math.ceil(size / HISTORY_DAYS), days_ago)
        await database.fetch("ANALYZE tidemill.job_history")
        await database.fetch("CHECKPOINT")  # Its writes are not part of what is measured.
        took = await _drained(app, [app.declarations.task("noop0").call() for _ in range(plan.jobs)])
        began = time.perf_counter()
        for _ in range(plan.rounds):
            await app.do(list_jobs, ListJobs())
        return took + time.perf_counter() - began


async def _entities(dsn: str, size: int, plan: Plan) -> float:
    """Ticks with an event of one entity each, beside all others, which are quiet."""
    database = await monitors.open_database(dsn)
    await monitors.prepare(database, size)
    clock = VirtualClock(time.time())
    source = monitors.Steady(clock.now())
    watch = monitors.counting(source)
    runner = MonitorRunner(database, {watch.name: watch})
    lease = Lease(database, runner.describe, lease_seconds=600.0, heartbeat_seconds=60.0)
    driver = MonitorDriver(database, watch, clock=clock)
    await driver.prepare(await lease.take(lambda why: None))
    took = 0.0
    for number in range(plan.rounds + 1):
        clock.advance(1.0)
        source.add(clock.now())
        began = time.perf_counter()
        await driver.one_tick()
        if number:  # The first tick reads the past.
            took += time.perf_counter() - began
    await lease.stop_renewing()
    await lease.end("stopped")
    await database.close()
    return took


COSTS: dict[str, tuple[Cost, float]] = {
    "ticks": (_ticks, LINEAR),
    "nodes": (_nodes, LINEAR),
    "waiting_runs": (_waiting_runs, FLAT),
    "schedules": (_schedules, FLAT),
    "queues": (_queues, FLAT),
    "fair_keys": (_fair_keys, FLAT),
    "finished_jobs": (_finished_jobs, FLAT),
    "entities": (_entities, FLAT),
}
