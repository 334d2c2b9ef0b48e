"""An application in which every piece of work behaves as it is told: what `tests/containment/test_matrix.py` runs.

`TIDEMILL_CONTAINED` is a folder: `plain/`, `loop/` and `worker/` hold the inputs of a pipeline each, `events.jsonl` the
events of the monitor. A piece of work that ends well notes that in `done/`, once for each call.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tidemill import App
from tidemill.core.retry import retry
from tidemill.dags import Dag, node, ref
from tidemill.flows import StartEvent, StopEvent, Workflow, step
from tidemill.monitors import Monitor, sustained
from tidemill.pipelines import Pipeline
from tidemill.sources import JsonlSource, LogSource
from tidemill.streams import Batch, Plan, Stream, task

CONTAINED = Path(__file__)
FOLDER = Path(os.environ.get("TIDEMILL_CONTAINED", "."))

LIMIT = 8.0
"""The timeout or budget of every piece of work that can have one."""
LATE = 5 * LIMIT
SLOW = 1.5
LOSSES = 2
LARGE = 50_000_000


class Unencodable(Exception):
    """An exception that can be neither shown nor pickled nor written as JSON."""

    def __init__(self) -> None:
        super().__init__(threading.Lock(), "\ud800", b"\x00")

    def __str__(self) -> str:
        raise RuntimeError("this exception cannot be shown")

    def __reduce__(self) -> Any:
        raise RuntimeError("this exception cannot be pickled")


def misbehave(how: str) -> Any:
    """Do what this place is told; returns its result."""
    if how.startswith("slow "):
        mark(how, "begun ")
        time.sleep(SLOW)
        mark(how, "ended ")
        return "done"
    match how:
        case "raises":
            raise ValueError("misbehaved")
        case "unencodable":
            raise Unencodable
        case "blocks" | "hangs" | "swallows":
            time.sleep(600.0)
        case "late":
            time.sleep(LATE)
        case "gil":
            ctypes.PyDLL(None).sleep(600)
        case "exit":
            os._exit(3)
        case "segfault":
            ctypes.string_at(0)
        case "memory":
            hoard = [bytearray(16 << 20) for _ in range(64)]
            return str(len(hoard))
        case "output":
            for _ in range(20):
                sys.stdout.write("x" * (1 << 20) + "\n")
        case "result":
            return "x" * LARGE
        case "leaks":
            for _ in range(10):
                threading.Thread(target=time.sleep, args=(600.0,), daemon=True).start()
                os.dup(0)
        case "background":
            threading.Thread(target=time.sleep, args=(600.0,), daemon=True).start()
        case _:
            time.sleep(0.05)
    return "done"


_background: set[asyncio.Task[None]] = set()


async def misbehave_async(how: str) -> Any:
    """The same for async places."""
    if how.startswith("slow "):
        mark(how, "begun ")
        await asyncio.sleep(SLOW)
        mark(how, "ended ")
        return "done"
    if how == "swallows":
        while True:
            try:
                await asyncio.sleep(600.0)
            except asyncio.CancelledError:
                continue
    if how == "background":
        _background.add(asyncio.create_task(asyncio.sleep(600.0)))
        return "done"
    if how == "hangs":
        await asyncio.sleep(600.0)
    return misbehave(how)


def mark(how: str, what: str) -> None:
    """A slow call has begun or ended."""
    with (FOLDER / "slow" / how.removeprefix("slow ")).open("a") as file:
        file.write(what)


def note(place: str, name: str) -> None:
    """A call has ended well."""
    with (FOLDER / "done" / f"{place}.{name}").open("a") as file:
        file.write("x")


app = App("contained")
POLICY = app.retry(1, max_losses=LOSSES, backoff=0.01, cap=0.01)


@app.task(budget=LIMIT, retry=POLICY)
async def job_async(how: str, name: str) -> Any:
    return await misbehave_async(how)


@app.task(budget=LIMIT, retry=POLICY)
def job_plain(how: str, name: str) -> Any:
    return misbehave(how)


@app.task(budget=4 * LIMIT, retry=POLICY, isolation="process", memory="400 MB")
def job_isolated(how: str, name: str) -> Any:
    return misbehave(how)


class StepAsync(Workflow):
    @step(timeout=LIMIT)
    async def act(self, ev: StartEvent) -> StopEvent:
        return StopEvent(result=await misbehave_async(ev.how))


class StepPlain(Workflow):
    @step(timeout=LIMIT)
    def act(self, ev: StartEvent) -> StopEvent:
        return StopEvent(result=misbehave(ev.how))


class StepQueue(Workflow):
    @step(queue="steps", budget=LIMIT)
    async def act(self, ev: StartEvent) -> StopEvent:
        return StopEvent(result=await misbehave_async(ev.how))


for kind in (StepAsync, StepPlain, StepQueue):
    app.workflow(kind)
dag = app.dag(Dag("dag_node", nodes=[node("act", "job_async", args={"how": ref("run.how"), "name": "node"})]))


def decode_message(payload: bytes) -> Any:
    """The decoder of the stream."""
    message = json.loads(payload)
    if message["place"] == "stream_decoder":
        misbehave(message["how"])
    return message


class Act(Plan, eligibility="act", timeout=LIMIT):
    """A message says in which of the tasks it misbehaves."""

    @task
    async def loop(self, ctx: Any) -> None:
        if ctx.value["place"] == "stream_async":
            await misbehave_async(ctx.value["how"])

    @task
    def thread(self, ctx: Any) -> None:
        if ctx.value["place"] == "stream_plain":
            misbehave(ctx.value["how"])

    @task(batch=Batch(max_size=4, max_wait="5ms"))
    async def together(self, items: list[Any]) -> list[Any]:
        for ctx in items:
            if ctx.value["place"] == "stream_batch":
                await misbehave_async(ctx.value["how"])
        return [None] * len(items)

    @task(after=("loop", "thread", "together"))
    async def end(self, ctx: Any) -> None:
        note(ctx.value["place"], ctx.value["name"])


app.stream(
    Stream(
        "messages",
        plans=[Act],
        sources=[LogSource("messages", eligibilities=frozenset({"act"}), decoder=decode_message)],
        engines=1,
        retry=retry(3, backoff=0.1),
        max_losses=LOSSES,
        silence="3s",
        drain="5s",
    )
)


pipelines = {name: Pipeline(name, FOLDER / name, backoff=("1h",)) for name in ("plain", "loop", "worker")}
STAGE: dict[str, Any] = {"input": "in/{name}.txt", "output": "out/{name}.txt", "budget": LIMIT}


@pipelines["plain"].stage(**STAGE, in_process=True)
def build_plain(entity: Any, text: str) -> Any:
    return misbehave(text)


@pipelines["loop"].stage(**STAGE, in_process=True)
async def build_loop(entity: Any, text: str) -> Any:
    return await misbehave_async(text)


@pipelines["worker"].stage(**STAGE)
async def build_worker(entity: Any, text: str) -> Any:
    return await misbehave_async(text)


for declared in pipelines.values():
    app.pipeline(declared)


class Follow:
    """The fold of the monitor."""

    def on_event(self, state: Any, event: Any) -> None:
        if event["place"] == "monitor_fold":
            misbehave(event["how"])
        state.place, state.how = event["place"], event["how"]
        state.count = (state.count or 0) + 1


def entity_of(event: Any) -> str:
    if event["place"] == "monitor_entity":
        misbehave(event["how"])
    return event["name"]


def is_there(state: Any, now: float) -> bool:
    if state.place == "monitor_trigger":
        misbehave(state.how)
    return True


app.monitor(
    Monitor(
        "watch",
        source=JsonlSource(FOLDER / "events.jsonl"),
        entity=entity_of,
        fold=Follow,
        triggers=[sustained("there", when=is_there)],
        idle=0.1,
        idle_max=0.2,
    )
)
