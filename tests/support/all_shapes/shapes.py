"""An application with work of all shapes, and a load of it that writes down what was acknowledged.

python shapes.py FILE        starts work until SIGTERM; FILE has a line for each acknowledgement

A line is what was started, its id and its number: `job 12 3`, `run 4 3`, `dag 5 3`, `message 0 3`. A message leads to a
job `noted` and an alert of its number. What fails to be stored is not acknowledged, and started no second time.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg

from tidemill import App, TidemillError
from tidemill.dags import Dag, node, ref
from tidemill.flows import Context, Event, StartEvent, StopEvent, Workflow, step
from tidemill.monitors import Monitor, momentary
from tidemill.pipelines import Pipeline
from tidemill.sources import LogSource
from tidemill.store.migrate import OWN_CHAIN
from tidemill.streams import Plan, Stream, task

app = App("shapes")


@app.task(retry=app.retry(10, backoff="100ms"))
async def double(number: int) -> int:
    return 2 * number


@app.task(retry=app.retry(10, backoff="100ms"))
async def noted(number: int) -> int:
    return number


@app.task(every="1s", catchup="skip")
async def tick() -> int:
    """Which schema the code of this worker knows."""
    return OWN_CHAIN.latest


class Asked(StartEvent):
    number: int


class Halved(Event):
    number: int


class Half(Workflow[Asked, float]):
    @step
    async def halve(self, ctx: Context, ev: Asked) -> StopEvent:
        return StopEvent(result=ev.number / 2)


class Order(Workflow[Asked, int]):
    @step
    async def begin(self, ctx: Context, ev: Asked) -> Halved:
        await ctx.child(Half, number=ev.number)
        return Halved(number=ev.number)

    @step(queue="default")
    async def end(self, ctx: Context, ev: Halved) -> StopEvent:
        return StopEvent(result=ev.number)


app.workflow(Half)
app.workflow(Order)


@dataclass
class Numbered:
    """The arguments of a run of the dag."""

    number: int


twice = app.dag(
    Dag(
        "twice",
        args=Numbered,
        nodes=[
            node("first", "double", args={"number": ref("$.run.number")}),
            node("second", "double", args={"number": {"$from": "first"}}),
        ],
    )
)


class Note(Plan, eligibility="note"):
    @task
    async def note(self, ctx: Any) -> None:
        ctx.enqueue(noted.call(number=ctx.value["number"]))


app.stream(
    Stream("numbers", plans=[Note], engines=0, sources=[LogSource("numbers", eligibilities={"note"}, lease=5.0)])
)


class Seen:
    """The numbers that a monitor has seen."""

    def on_event(self, state: Any, event: Any) -> None:
        state.numbers = [{"id": str(event["number"]), "at": event.at}]


app.monitor(
    Monitor(
        "numbers",
        source=LogSource("numbers"),
        entity=lambda event: f"number {event['number']}",
        fold=Seen,
        idle=0.05,
        triggers=[momentary("seen", of=lambda state: state.numbers or [])],
    )
)

ROOT = Path(os.environ.get("SHAPES_ROOT", "shapes"))
site = Pipeline("site", root=ROOT)


@site.stage(input="in/{name}.txt", output="out/{name}.txt")
def copy(entity: Any, text: str) -> str:
    return text


app.pipeline(site)


async def load(path: Path, pause: float) -> None:
    """Start work of every shape until SIGTERM, and write down what was acknowledged."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    first = int(os.environ.get("SHAPES_FIRST", "0"))
    (ROOT / "in").mkdir(parents=True, exist_ok=True)

    async def start_all(number: int, say: Callable[[str], None]) -> None:
        async def acknowledged(kind: str, starting: Awaitable[Any]) -> None:
            try:
                handle = await starting
            except (TidemillError, asyncpg.PostgresError, OSError) as error:
                print(f"not acknowledged: {kind} {number}: {error}", flush=True)
            else:
                say(f"{kind} {getattr(handle, 'id', 0)} {number}")

        await acknowledged("job", app.enqueue(double.call(number=number)))
        await acknowledged("run", app.start(Order, number=number))
        await acknowledged("dag", app.start(twice, Numbered(number=number)))
        event = {"id": f"n{number}", "number": number}
        await acknowledged("message", app.streams.publish("numbers", event))
        (ROOT / "in" / f"n{number}.txt").write_text(str(number))
        say(f"state 0 {number}")

    with path.open("a") as file:

        def say(line: str) -> None:
            file.write(line + "\n")
            file.flush()

        print("READY", flush=True)
        for number in itertools.count(first):
            await start_all(number, say)
            if stopped.is_set():
                break
            await asyncio.sleep(pause)
    await app.close()


if __name__ == "__main__":
    asyncio.run(load(Path(sys.argv[1]), float(os.environ.get("SHAPES_PAUSE", "0.1"))))
