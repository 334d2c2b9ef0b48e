"""Tidemill's flows in the contest: one process that starts, owns and drives its runs, through the public API.

`python -m benchmarks.flows.ours --dsn URL --scenario durable_steps`.
"""

import asyncio
import itertools
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import tidemill.flows
from benchmarks.peers import flow_contest
from benchmarks.peers.flow_contest import STEPS, Options, Tally
from benchmarks.shared.schema import install_schema
from tidemill import App
from tidemill.core.program import fold
from tidemill.core.ticks import Completed, RunWork, Started, Tick
from tidemill.engine.telemetry.logs import configure_logs
from tidemill.flows import Context, Event, HumanResponseEvent, StartEvent, StopEvent, Workflow, step
from tidemill.flows.definition.declared import declared
from tidemill.flows.encoding.journal import decode_tick, encode_tick
from tidemill.flows.reducer.reducer import FlowProgram
from tidemill.flows.reducer.step_ticks import Ended
from tidemill.flows.runner.restore import restore
from tidemill.store.runs.runs import load_run

CHAINED = Tally()
PROGRAMS = flow_contest.programs(tidemill.flows, CHAINED)
LATENCY_WARMUPS = 20
REPLAYED_STEPS = 5_000
RELEASE_WARMUPS = 2_000
TICKS_AT_ONCE = 500
ENDLESS_TICKS = [0]
RUN_BYTES = """
SELECT (SELECT coalesce(sum(pg_column_size(t.*)), 0) FROM tidemill.tick AS t WHERE run_id = $1)
     + (SELECT coalesce(sum(pg_column_size(s.*)), 0) FROM tidemill.snapshot AS s WHERE run_id = $1)
     + (SELECT coalesce(sum(pg_column_size(p.*)), 0) FROM tidemill.published AS p WHERE run_id = $1)
"""
AT_ONCE = 100
RELEASE_TIMEOUT_S = 60.0
COUNT_HELD = "SELECT count(*) FROM tidemill.run WHERE state = 'running' AND (owner IS NOT NULL OR awake)"


class Tock(Event):
    n: int


class Clocked(Workflow):
    """Notes when each of its steps begins."""

    begun: list[float]

    @step
    async def first(self, ev: StartEvent) -> Tock:
        self.begun = []
        return Tock(n=ev.steps)

    @step
    async def tock(self, ev: Tock) -> Tock | StopEvent:
        self.begun.append(time.perf_counter())
        return Tock(n=ev.n - 1) if ev.n else StopEvent()


class Tocked(Event):
    pass


class Endless(Workflow):
    """Starts again after every fan-out, and waits at last."""

    @step
    async def split(self, ctx: Context, ev: StartEvent) -> list[Tock]:
        return [Tock(n=n) for n in range(TICKS_AT_ONCE)]

    @step(num_workers=TICKS_AT_ONCE)
    async def tock(self, ev: Tock) -> Tocked:
        return Tocked()

    @step
    async def join(self, ctx: Context, evs: list[Tocked]) -> StopEvent:
        async with ctx.store.edit_state() as state:
            state.ticks = state.get("ticks", 0) + len(evs)
        if state.ticks < ENDLESS_TICKS[0]:
            return ctx.continue_as_new()
        await ctx.wait_for_event(HumanResponseEvent)
        return StopEvent()


class Ready(Event):
    pass


class Answered(Event):
    n: int


class ThreeWaits(Workflow):
    """Waits three times in its ninth step, each time for an answer of its own."""

    @step
    async def first(self, ev: StartEvent) -> Tock:
        return Tock(n=7)

    @step
    async def tock(self, ctx: Context, ev: Tock) -> Tock | Ready:
        await ctx.store.set(f"step_{ev.n}", ev.n)
        return Tock(n=ev.n - 1) if ev.n > 1 else Ready()

    @step
    async def ask(self, ctx: Context, ev: Ready) -> StopEvent:
        total = 0
        for n in range(1, 4):
            answer = await ctx.wait_for_event(Answered, requirements={"n": n})
            total += answer.n + await ctx.store.get("step_1")
        return StopEvent(result=total)


@asynccontextmanager
async def running_app(options: Options) -> AsyncIterator[App]:
    """An application with the programs of the contest, and everything that it needs, in this process."""
    configure_logs("error")
    await install_schema(options.dsn)
    app = App("bench", database_url=options.dsn)
    for workflow in (PROGRAMS.chain, PROGRAMS.ask, ThreeWaits, Clocked, Endless):
        app.workflow(workflow, timeout=None)
    async with app.running():
        yield app


async def durable_steps(options: Options) -> float:
    """Steps/s of whole runs: started by one call, their results awaited."""
    async with running_app(options) as app:

        async def chain() -> None:
            await (await app.start(PROGRAMS.chain, steps=STEPS))

        return await flow_contest.crowded_rate(chain, CHAINED, options)


async def step_p50(options: Options) -> float:
    """Milliseconds from the first line of a step to that of the next, with one run in the process."""
    async with running_app(options) as app:
        await (await app.start(Clocked, steps=LATENCY_WARMUPS + options.samples))
        clocked = next(
            flow for flow in (kind.workflow for kind in app.runs.flows.values()) if isinstance(flow, Clocked)
        )
        gaps = [after - before for before, after in itertools.pairwise(clocked.begun)]
        return statistics.median(gaps[LATENCY_WARMUPS:]) * 1_000


async def waiting_bytes(options: Options) -> float:
    """After all of them were written down and left memory.

    Up to some thousand are in memory before the first are released, which the process keeps as free heap and uses
    again. The warm-up goes through that; what is counted is what stays for each run.
    """
    async with running_app(options) as app:
        await _wait_with(app, RELEASE_WARMUPS)
        before = flow_contest.resident_bytes()
        await _wait_with(app, options.runs)
        return max(0, flow_contest.resident_bytes() - before) / options.runs


async def _wait_with(app: App, count: int) -> None:
    for begin in range(0, count, AT_ONCE):
        await asyncio.gather(*(app.start(PROGRAMS.ask) for _ in range(min(AT_ONCE, count - begin))))
    await _until_released(app)


async def _until_released(app: App) -> None:
    async with asyncio.timeout(RELEASE_TIMEOUT_S), app.database() as database:
        while (await database.fetch(COUNT_HELD))[0][0]:
            await asyncio.sleep(0.1)


async def ticks_1m_bytes(options: Options) -> float:
    """Bytes that are stored of a run without end after so many ticks."""
    return (await _endless(options))[0]


async def ticks_1m_resume(options: Options) -> float:
    """Milliseconds to bring the same run back: from what is stored to its state."""
    return (await _endless(options))[1]


_measured: list[tuple[float, float]] = []


async def _endless(options: Options) -> tuple[float, float]:
    if not _measured:
        ENDLESS_TICKS[0] = 1_000_000 if options.runs >= 10_000 else 20_000  # A quick run has no time for a million.
        async with running_app(options) as app, app.database() as database:
            run = await app.start(Endless)
            while not await database.fetch("SELECT FROM tidemill.run WHERE id = $1 AND owner IS NULL", run.id):
                await asyncio.sleep(0.1)
            stored = (await database.fetch(RUN_BYTES, run.id))[0][0]
            spent = []
            for _ in range(20):
                began = time.perf_counter()
                _, snapshot, ticks = await load_run(database, run.id)
                restore(Endless(), snapshot, ticks)
                spent.append(time.perf_counter() - began)
            _measured.append((float(stored), statistics.median(spent) * 1_000))
    return _measured[0]


async def resume(options: Options) -> float:
    """Runs/s that were released at their third wait, are brought back and end."""
    async with running_app(options) as app:
        runs = await asyncio.gather(*(app.start(ThreeWaits) for _ in range(options.samples)))
        await asyncio.gather(*(run.send_event(Answered(n=n)) for run in runs for n in (1, 2)))
        await _until_released(app)
        began = time.perf_counter()
        await asyncio.gather(*(run.send_event(Answered(n=3)) for run in runs))
        results = await asyncio.gather(*(run.result(timeout=RELEASE_TIMEOUT_S) for run in runs))
        assert set(results) == {9}
        return len(runs) / (time.perf_counter() - began)


async def replay(options: Options) -> float:
    """Ticks/s from the journal's bytes to the state of the run."""
    journal, workflow = _journal()

    async def once() -> None:
        restore(workflow, None, journal)

    return len(journal) * await flow_contest.steady_rate(once, options.seconds)


async def replay_fold(options: Options) -> float:
    """Ticks/s from ticks that are in memory already."""
    journal, workflow = _journal()
    ticks = [decode_tick(data) for data in journal]
    program = FlowProgram(declared(workflow).topology)

    async def once() -> None:
        fold(program, ticks)

    return len(journal) * await flow_contest.steady_rate(once, options.seconds)


def _journal() -> tuple[list[bytes], Workflow]:
    """What a long run of `Clocked` would have written."""
    workflow = Clocked(timeout=None)
    program = FlowProgram(declared(workflow).topology)
    state = program.begin()
    ticks: list[Tick] = [Started(0.0, StartEvent(steps=REPLAYED_STEPS))]
    commands = program.reduce(state, ticks[0])
    for n in range(REPLAYED_STEPS, 0, -1):
        work = next(command.work for command in commands if isinstance(command, RunWork))
        tick = Completed(float(n), work, Ended((Tock(n=n),), False, ()))
        ticks.append(tick)
        commands = program.reduce(state, tick)
    return [encode_tick(tick) for tick in ticks], workflow


if __name__ == "__main__":
    flow_contest.main(
        {
            **flow_contest.in_memory(PROGRAMS),
            "durable_steps": durable_steps,
            "step_p50": step_p50,
            "waiting_bytes": waiting_bytes,
            "ticks_1m_bytes": ticks_1m_bytes,
            "ticks_1m_resume": ticks_1m_resume,
            "resume": resume,
            "replay": replay,
            "replay_fold": replay_fold,
        }
    )
