"""The measurement every contender goes through: same steps, same order, same clock.

A contender is a module with a class that follows `Contender` and ends in `contest.main(ItsClass())`. It is
run as

    python -m benchmarks.peers.pgqueuer_bench --dsn URL --scenario drain start --jobs 20000

against an empty database of its own, and prints one JSON line per scenario: `{"scenario", "value"}`.

* `drain`: jobs/s. The backlog is enqueued first; a worker process of its own then starts. The clock runs
  from the first line of the first job to the moment the database knows that every job has finished.
* `start`: a list of ms from just before the enqueue call to the first line of the job, one job at a time
  on an idle queue; the worker is the process that has just drained the backlog.
* `enqueue_many`: jobs/s in calls of `BULK` jobs, the median call.
* `enqueue_one`, `enqueue_one_16`: calls/s, one after the other, or from 16 tasks with a connection each.

`--under NAME[=AMOUNT]` measures under a circumstance that the contender's module offers, from before the
backlog is enqueued to the end: maintenance that runs beside, jobs that wait, a transaction held open.
`--under workers=4` drains with as many worker processes, for every contender.

Only the standard library, asyncpg and uvloop are imported here: it runs in the peer venv and in ours.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import asyncpg
import uvloop

SCENARIOS = ("drain", "start", "enqueue_many", "enqueue_one", "enqueue_one_16")
BULK = 5_000
CONCURRENT_ENQUEUERS = 16
START_WARMUPS = 5
START_EVERY_S = 0.02
START_PAUSE_S = 0.005
FINISH_POLL_S = 0.005


class Producer(Protocol):
    """An open connection, or pool, that enqueues the no-op job with the arguments `{"n": int}`."""

    async def one(self, n: int) -> object: ...

    async def many(self, count: int) -> object:
        """Enqueue `count` jobs with the fastest bulk call there is."""


class Contender(Protocol):
    """One job engine, configured the way its authors would for a benchmark."""

    unfinished: str
    """SQL: a single boolean, whether any job is not yet recorded as finished."""

    async def install(self, dsn: str) -> None:
        """Create the engine's schema in an empty database."""

    def producer(self, dsn: str, connections: int) -> AbstractAsyncContextManager[Producer]: ...

    async def work(self, dsn: str, on_start: Callable[[], None]) -> None:
        """Work until killed; each job calls `on_start` first and does nothing else."""


Circumstance = Callable[[str, int], AbstractAsyncContextManager[None]]
"""Entered with the database's URL and an amount before the measurement, left after it."""


class Tally:
    """Counts the jobs of the backlog; prints the start time of each job after it."""

    def __init__(self, backlog: int) -> None:
        self._backlog = backlog
        self._started = 0
        self._loop = asyncio.get_running_loop()
        self.first_start = 0.0
        self.backlog_has_run = asyncio.Event()

    def on_start(self) -> None:
        now = time.time()
        self._started += 1
        if self._started == 1:
            self.first_start = now
            _emit("first", now)
        if self._started == self._backlog:
            # Some engines run jobs in a thread of their own.
            self._loop.call_soon_threadsafe(self.backlog_has_run.set)
        elif self._started > self._backlog:
            _emit("started", now)


def main(contender: Contender, circumstances: Mapping[str, Circumstance] | None = None) -> None:
    """Run the scenarios named on the command line, or, with `--worker`, be the worker process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dsn", required=True)
    parser.add_argument("--scenario", nargs="+", choices=SCENARIOS, default=list(SCENARIOS))
    parser.add_argument("--jobs", type=int, default=1_000, help="backlog of the drain")
    parser.add_argument("--starts", type=int, default=100, help="samples of the start latency")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of each enqueue measurement")
    parser.add_argument("--under", nargs="*", default=[], help="circumstances, each NAME or NAME=AMOUNT")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.set_defaults(workers=1)
    options = parser.parse_args()
    if options.worker:
        uvloop.run(_work(contender, options.dsn, options.jobs))
    else:
        uvloop.run(_install_and_measure(contender, options, circumstances or {}))


async def _install_and_measure(
    contender: Contender, options: argparse.Namespace, circumstances: Mapping[str, Circumstance]
) -> None:
    await contender.install(options.dsn)
    async with contextlib.AsyncExitStack() as stack:
        for wish in options.under:
            name, _, amount = wish.partition("=")
            if name == "workers":
                options.workers = int(amount)
                continue
            await stack.enter_async_context(circumstances[name](options.dsn, int(amount or 0)))
        await _measure(contender, options)


async def _measure(contender: Contender, options: argparse.Namespace) -> None:
    wanted = set(options.scenario)
    if wanted & {"drain", "start"}:
        await _measure_worker(contender, options, wanted)
    if wanted & {"enqueue_many", "enqueue_one"}:
        async with contender.producer(options.dsn, 1) as producer:
            await producer.many(100)
            if "enqueue_many" in wanted:
                _emit("enqueue_many", await _bulk_rate(producer, options.seconds))
            if "enqueue_one" in wanted:
                _emit("enqueue_one", await _single_rate(producer, options.seconds, 1))
    if "enqueue_one_16" in wanted:
        async with contender.producer(options.dsn, CONCURRENT_ENQUEUERS) as producer:
            _emit("enqueue_one_16", await _single_rate(producer, options.seconds, CONCURRENT_ENQUEUERS))


async def _measure_worker(contender: Contender, options: argparse.Namespace, wanted: set[str]) -> None:
    async with contender.producer(options.dsn, 1) as producer:
        await producer.many(options.jobs)
        await _analyze(options.dsn)
        if options.workers > 1:
            _emit("drain", await _drain_by_several(contender, options))
            return
        async with _worker_process(options.dsn, options.jobs) as reports:
            rate = await _report(reports, "drained")
            if "drain" in wanted:
                _emit("drain", rate)
            if "start" in wanted:
                _emit("start", await _start_latencies(producer, reports, options.starts))


async def _drain_by_several(contender: Contender, options: argparse.Namespace) -> float:
    """Jobs/s of several worker processes. None of them can count the jobs of all, so each says when it began."""
    connection = await asyncpg.connect(options.dsn)
    async with contextlib.AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(_worker_process(options.dsn, options.jobs)) for _ in range(options.workers)
        ]
        reports = [asyncio.create_task(_report(worker, "first")) for worker in workers]
        began, _ = await asyncio.wait(reports, return_when=asyncio.FIRST_COMPLETED)
        while await connection.fetchval(contender.unfinished):
            await asyncio.sleep(FINISH_POLL_S)
        rate = options.jobs / (time.time() - min(report.result() for report in began))
        for report in reports:
            report.cancel()
    await connection.close()
    return rate


async def _analyze(dsn: str) -> None:
    """Give every contender the statistics that autovacuum would have given it within a minute."""
    connection = await asyncpg.connect(dsn)
    await connection.execute("ANALYZE")
    await connection.close()


@contextlib.asynccontextmanager
async def _worker_process(dsn: str, backlog: int):
    module = sys.modules["__main__"].__spec__
    if module is None:
        raise RuntimeError("run this contender as a module: python -m benchmarks.peers.NAME")
    arguments = ("-m", module.name, "--worker", "--dsn", dsn, "--jobs", str(backlog))
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield process.stdout
    finally:
        # The database is dropped next, so no engine is asked for a clean shutdown.
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _report(reports: asyncio.StreamReader, scenario: str) -> Any:
    async for line in reports:
        if line.startswith(b'{"scenario"'):  # engines may print banners
            report = json.loads(line)
            if report["scenario"] == scenario:
                return report["value"]
    raise RuntimeError(f"the worker process ended before it reported {scenario!r}")


async def _start_latencies(producer: Producer, reports: asyncio.StreamReader, samples: int) -> list[float]:
    latencies = []
    before = 0.0
    for n in range(START_WARMUPS + samples):
        # The pause lets the engine finish the last job and go idle, however long that one took to start.
        await asyncio.sleep(max(before + START_EVERY_S - time.time(), START_PAUSE_S))
        before = time.time()
        await producer.one(n)
        latencies.append((await _report(reports, "started") - before) * 1_000)
    return latencies[START_WARMUPS:]


async def _bulk_rate(producer: Producer, seconds: float) -> float:
    rates = []
    end = time.perf_counter() + seconds
    while (before := time.perf_counter()) < end:
        await producer.many(BULK)
        rates.append(BULK / (time.perf_counter() - before))
    return statistics.median(rates)


async def _single_rate(producer: Producer, seconds: float, concurrency: int) -> float:
    numbers = itertools.count()
    begin = time.perf_counter()

    async def enqueue_until_the_end() -> int:
        calls = 0
        while time.perf_counter() - begin < seconds:
            await producer.one(next(numbers))
            calls += 1
        return calls

    calls = await asyncio.gather(*(enqueue_until_the_end() for _ in range(concurrency)))
    return sum(calls) / (time.perf_counter() - begin)


async def _work(contender: Contender, dsn: str, backlog: int) -> None:
    tally = Tally(backlog)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(contender.work(dsn, tally.on_start))
        tasks.create_task(_report_drain(contender, dsn, backlog, tally))


async def _report_drain(contender: Contender, dsn: str, backlog: int, tally: Tally) -> None:
    connection = await asyncpg.connect(dsn)
    await tally.backlog_has_run.wait()
    while await connection.fetchval(contender.unfinished):
        await asyncio.sleep(FINISH_POLL_S)
    _emit("drained", backlog / (time.time() - tally.first_start))
    await connection.close()


def _emit(scenario: str, value: object) -> None:
    print(json.dumps({"scenario": scenario, "value": value}), flush=True)
