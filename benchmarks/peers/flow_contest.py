"""What every engine of the `flows` suite goes through: same programs, same steps, same clock.

    python -m benchmarks.peers.llama_workflows_bench --scenario runs steps --seconds 2

prints one JSON line per scenario, `{"scenario", "value"}`. The programs are written once against the authoring API
that ours and LlamaIndex Workflows share, and each is measured after a warm-up, in one process, with uvloop.

* `runs`: runs/s of a workflow with one no-op step, one after the other.
* `steps`: steps/s of a run in which one step goes round `ROUNDS` times.
* `fanout_N`: events/s; one step sends N events, another passes each on, a third collects them all.
* `waiting_bytes`: what the resident memory of the process grows by per run that waits for an event from outside.

Only the standard library, asyncpg and uvloop are imported here: it runs in the peer venv and in ours.
"""

# pyright: reportInvalidTypeForm=false

import argparse
import asyncio
import gc
import json
import resource
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import uvloop

STEPS = 10
IN_FLIGHT = 64
ROUNDS = 200
FANOUTS = (1_000, 2_000, 4_000)
WAITING_WARMUPS = 200
BLOCKS = 5


class Options(NamedTuple):
    """How long, how many: `runs` is how many wait for `waiting_bytes`, `samples` are those of a latency."""

    dsn: str
    seconds: float
    runs: int
    samples: int


Scenario = Callable[[Options], Awaitable[float]]


def main(scenarios: Mapping[str, Scenario]) -> None:
    """Measure the scenarios named on the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dsn", default="")
    parser.add_argument("--scenario", nargs="+", choices=sorted(scenarios), default=list(scenarios))
    parser.add_argument("--jobs", type=int, default=500, help="runs that wait")
    parser.add_argument("--starts", type=int, default=200, help="samples of a latency")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of each measurement of a rate")
    parser.add_argument("--under", nargs="*", default=[], help=argparse.SUPPRESS)
    given = parser.parse_args()
    options = Options(given.dsn, given.seconds, given.jobs, given.starts)
    for scenario in given.scenario:
        value = uvloop.run(_measure(scenarios[scenario], options))
        print(json.dumps({"scenario": scenario, "value": value}), flush=True)


async def _measure(scenario: Scenario, options: Options) -> float:
    return await scenario(options)


# -- the clock ------------------------------------------------------------------------------------


async def steady_rate(work: Callable[[], Awaitable[object]], seconds: float) -> float:
    """Calls/s of `work`, one after the other: the median of some blocks, after a warm-up of one block's length."""
    await _block(work, seconds / BLOCKS)
    return statistics.median([await _block(work, seconds / BLOCKS) for _ in range(BLOCKS)])


async def _block(work: Callable[[], Awaitable[object]], seconds: float) -> float:
    began = time.perf_counter()
    calls = 0
    while (passed := time.perf_counter() - began) < seconds or not calls:
        await work()
        calls += 1
    return calls / passed


class Tally:
    """Counts what has been done. Single steps, not whole runs: runs that began together also end together."""

    def __init__(self) -> None:
        self.done = 0


async def crowded_rate(work: Callable[[], Awaitable[object]], tally: Tally, options: Options) -> float:
    """What `tally` counts, per second, with `IN_FLIGHT` calls of `work` under way.

    Counted after a warm-up of a third, in the middle of which the tables of every engine get the statistics that
    autovacuum would have given them within a minute.
    """
    seconds = options.seconds
    enough = False

    async def keep_going() -> None:
        while not enough:
            await work()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(IN_FLIGHT):
            tasks.create_task(keep_going())
        await asyncio.sleep(seconds / 6)
        await analyze(options.dsn)
        await asyncio.sleep(seconds / 6)
        began, before = time.perf_counter(), tally.done
        await asyncio.sleep(seconds)
        # An engine that blocks the loop wakes us late: what counts is the time that has passed.
        rate = (tally.done - before) / (time.perf_counter() - began)
        enough = True
    return rate


async def analyze(dsn: str) -> None:
    """Give the planner the statistics that autovacuum would have given it within a minute."""
    connection = await asyncpg.connect(dsn)
    await connection.execute("ANALYZE")
    await connection.close()


def resident_bytes() -> int:
    """The resident memory of this process, once the garbage is out."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


# -- the programs ---------------------------------------------------------------------------------


class Programs(NamedTuple):
    """Workflow classes, made with one engine's authoring API."""

    noop: Any
    chain: Any
    fan: Any
    ask: Any


def programs(api: Any, steps: Tally) -> Programs:
    """The programs of the contest for an engine whose names are attributes of `api`; `Chain` counts its steps."""
    Workflow, step, Context = api.Workflow, api.step, api.Context
    Event, StartEvent, StopEvent = api.Event, api.StartEvent, api.StopEvent
    HumanResponseEvent = api.HumanResponseEvent

    class Turn(Event):
        n: int
        last: int

    class Part(Event):
        n: int

    class Passed(Event):
        n: int
        of: int

    class Noop(Workflow):
        @step
        async def only(self, ev: StartEvent) -> StopEvent:
            return StopEvent(result=None)

    class Chain(Workflow):
        """`steps` steps, one after the other: the first, and then one that goes round."""

        @step
        async def first(self, ev: StartEvent) -> Turn | StopEvent:
            steps.done += 1
            return Turn(n=2, last=ev.steps)

        @step
        async def turn(self, ev: Turn) -> Turn | StopEvent:
            steps.done += 1
            if ev.n >= ev.last:
                return StopEvent(result=ev.n)
            return Turn(n=ev.n + 1, last=ev.last)

    class Fan(Workflow):
        @step
        async def spread(self, ctx: Context, ev: StartEvent) -> Part | None:
            await ctx.store.set("width", ev.width)
            for n in range(ev.width):
                ctx.send_event(Part(n=n))

        @step
        async def hand_on(self, ctx: Context, ev: Part) -> Passed:
            return Passed(n=ev.n, of=0)

        @step
        async def join(self, ctx: Context, ev: Passed) -> StopEvent | None:
            width = await ctx.store.get("width")
            collected = ctx.collect_events(ev, [Passed] * width)
            return None if collected is None else StopEvent(result=len(collected))

    class Ask(Workflow):
        @step
        async def ask(self, ctx: Context, ev: StartEvent) -> StopEvent:
            answer = await ctx.wait_for_event(HumanResponseEvent)
            return StopEvent(result=answer.get("text"))

    return Programs(Noop, Chain, Fan, Ask)


def in_memory(made: Programs) -> dict[str, Scenario]:
    """The scenarios that need no database."""

    async def runs(options: Options) -> float:
        workflow = made.noop(timeout=None)
        return await steady_rate(lambda: _result(workflow), options.seconds)

    async def steps(options: Options) -> float:
        workflow = made.chain(timeout=None)
        return ROUNDS * await steady_rate(lambda: _result(workflow, steps=ROUNDS), options.seconds)

    def fanout(width: int) -> Scenario:
        async def measure(options: Options) -> float:
            await _result(made.fan(timeout=None), width=50)
            began = time.perf_counter()
            collected = await _result(made.fan(timeout=None), width=width)
            if collected != width:
                raise RuntimeError(f"{collected} events were collected instead of {width}")
            return width / (time.perf_counter() - began)

        return measure

    return {"runs": runs, "steps": steps, **{f"fanout_{width}": fanout(width) for width in FANOUTS}}


async def _result(workflow: Any, **fields: Any) -> Any:
    return await workflow.run(**fields)
