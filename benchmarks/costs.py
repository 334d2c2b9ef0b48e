"""The `costs` suite: what one job, step, message and state costs, and where.

Everything runs in this process, so that its processor time is that of Tidemill's Python; the processor time of
PostgreSQL is that of all of its processes. Bytes are those of the WAL, and of tables with their indexes afterwards.
Times of processors depend little on other work on the machine; bytes do not at all.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import asyncpg
import msgspec
import psutil

from benchmarks.growth import Counts
from benchmarks.shared import report
from benchmarks.shared.contenders import say
from benchmarks.shared.postgres import Server
from benchmarks.shared.schema import install_schema
from tidemill import App
from tidemill.engine.roles.role import Runnable
from tidemill.engine.telemetry.logs import configure_logs
from tidemill.pipelines import Pipeline, update_pipeline
from tidemill.roles import jobs_role, runs_role
from tidemill.sources import LogSource
from tidemill.store.database import Database, DatabaseSettings
from tidemill.store.streams.event_log import keep_log
from tidemill.streams import Plan as StreamPlan, Stream, task
from tidemill.streams.runner.role import dispatcher_role

STEPS_OF_A_RUN = 100
#: Bytes of all tables of an application with their indexes, without what PostgreSQL has for every table.
TABLE_BYTES = """
SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname LIKE 'tidemill%' AND c.relkind IN ('r', 'm')
"""

Work = Callable[[str, int], "AsyncIterator[Callable[[], Awaitable[None]]]"]


class Plan(msgspec.Struct, frozen=True):
    """How many of each are measured."""

    job: int
    step: int
    message: int
    state: int


QUICK = Plan(job=5_000, step=5_000, message=20_000, state=300)
FULL = Plan(job=40_000, step=40_000, message=200_000, state=2_000)
#: For tests: enough to see that it works, and nothing else.
TOY = Plan(job=5, step=STEPS_OF_A_RUN, message=5, state=2)


def run(server: Server, plan: Plan) -> list[report.Row]:
    """Four rows for each kind of work: microseconds in Python and PostgreSQL, bytes of WAL and of tables."""
    configure_logs("error")
    rows: list[report.Row] = []
    for kind, work in WORK.items():
        count = getattr(plan, kind)
        with server.database("costs") as dsn:
            cost = asyncio.run(_measured(dsn, work, count))
        say(f"{kind}: {cost}")
        for field in Cost.__struct_fields__:
            unit = "µs" if field.endswith("_us") else "bytes"
            rows.append(report.Row(f"{kind}_{field}", round(getattr(cost, field), 1), "", None, None, unit))
    return rows


class Cost(msgspec.Struct, frozen=True):
    """What one of many costs."""

    python_us: float
    postgres_us: float
    wal_bytes: float
    table_bytes: float


async def _measured(dsn: str, work: Work, count: int) -> Cost:
    await install_schema(dsn)
    connection = await asyncpg.connect(dsn)
    postmaster = psutil.Process(await connection.fetchval("SELECT pg_backend_pid()")).parent()
    assert postmaster is not None, "the server runs on this machine"
    async with asynccontextmanager(work)(dsn, count) as once:
        await connection.execute("CHECKPOINT")
        wal, size = await connection.fetchval("SELECT pg_current_wal_insert_lsn()"), await _table_bytes(connection)
        python, postgres = time.process_time(), _processor_time(postmaster)
        await once()
        python, postgres = time.process_time() - python, _processor_time(postmaster) - postgres
        written = await connection.fetchval("SELECT pg_current_wal_insert_lsn() - $1::pg_lsn", wal)
        grown = await _table_bytes(connection) - size
    await connection.close()
    return Cost(1e6 * python / count, 1e6 * postgres / count, float(written) / count, grown / count)


async def _table_bytes(connection: asyncpg.Connection) -> int:
    return int(await connection.fetchval(TABLE_BYTES) or 0)


def _processor_time(postmaster: psutil.Process) -> float:
    """Processor seconds of the server: its processes now, and those that have ended."""
    own = postmaster.cpu_times()
    spent = own.user + own.system + own.children_user + own.children_system
    for each in postmaster.children():
        try:
            times = each.cpu_times()
        except psutil.Error:
            continue
        spent += times.user + times.system
    return spent


@asynccontextmanager
async def _running(role: Runnable) -> AsyncIterator[None]:
    life = asyncio.create_task(role.run())
    await role.wait_ready()
    try:
        yield
    finally:
        role.stop()
        await life


async def _jobs(dsn: str, count: int) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Jobs that do nothing: enqueued in bulk, claimed, finished and moved to the history."""
    app = App("costs", database_url=dsn)
    ended, done = 0, asyncio.Event()

    @app.task
    async def noop(n: int) -> None:
        nonlocal ended
        ended += 1
        if ended == count:
            done.set()

    async def once() -> None:
        await app.enqueue_many(noop.call(n) for n in range(count))
        await done.wait()
        database = (await app.declarations.connections.open()).database
        while await database.fetch("SELECT FROM tidemill.job LIMIT 1"):
            await asyncio.sleep(0.05)

    async with app, _running(jobs_role(app.declarations, max_concurrency=200)):
        yield once


async def _steps(dsn: str, count: int) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Steps of durable runs of a hundred steps, a hundred runs at once."""
    app = App("costs", database_url=dsn)
    app.workflow(Counts)

    async def once() -> None:
        runs = [await app.start(Counts, steps=STEPS_OF_A_RUN) for _ in range(count // STEPS_OF_A_RUN)]
        await asyncio.gather(*(run.result() for run in runs))

    async with app, _running(runs_role(app.declarations)):
        yield once


async def _messages(dsn: str, count: int) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Messages of 100 bytes: published to the log, read, run and acknowledged."""
    app = App("costs", database_url=dsn)
    taken, done = 0, asyncio.Event()

    class Take(StreamPlan, eligibility="take"):
        @task
        async def take(self, ctx: object) -> None:
            nonlocal taken
            taken += 1
            if taken == count:
                done.set()

    stream = Stream("costs", plans=[Take], engines=0, sources=[LogSource("costs", eligibilities={"take"})])
    app.stream(stream)
    async with app, Database(DatabaseSettings(url=dsn)) as database:
        await keep_log(database, datetime.now(UTC).date(), keep_days=30)
        payload = {"text": "x" * 90}

        async def once() -> None:
            for _ in range(0, count, 1000):
                await app.streams.publish_many("costs", [payload] * min(1000, count))
            await done.wait()
            while await database.fetch("SELECT FROM tidemill.log_range LIMIT 1"):
                await asyncio.sleep(0.05)

        async with _running(dispatcher_role(stream, database)):
            yield once


async def _states(dsn: str, count: int) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """States of small files, built in this process."""
    with TemporaryDirectory() as folder:
        pipeline = Pipeline("costs", root=folder, approve_above=None)

        @pipeline.stage(input="in/{id}.txt", output="out/{id}.txt", in_process=True)
        def copy(entity: object, text: str) -> str:
            return text

        inputs = Path(folder) / "in"
        inputs.mkdir()
        for number in range(count):
            (inputs / f"{number}.txt").write_text(f"{number}\n")
        async with Database(DatabaseSettings(url=dsn)) as database:

            async def once() -> None:
                left = await update_pipeline(pipeline, database)
                assert not left.builds, left

            yield once


WORK: dict[str, Work] = {"job": _jobs, "step": _steps, "message": _messages, "state": _states}
