"""An application in which every piece of work behaves as it is told: what `tests/containment/test_matrix.py` runs.

`TIDEMILL_CONTAINED` is a folder: `plain/`, `loop/` and `worker/` hold the inputs of a pipeline each, `events.jsonl` the
events of the monitor. A piece of work that ends well notes that in `done/`, once for each call. `TIDEMILL_SOURCES` are
the names of sources; each gives events when there is a file of its name in `sources/`.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.containment.misbehave import FOLDER, LIMIT, misbehave, misbehave_async
from tidemill import App, ModelSpec
from tidemill.core.retry import retry
from tidemill.dags import Dag, node, ref
from tidemill.flows import StartEvent, StopEvent, Workflow, step
from tidemill.monitors import Channel, Monitor, sustained
from tidemill.pipelines import Pipeline
from tidemill.sources import JsonlSource, LogSource
from tidemill.sources.base import RecordPage
from tidemill.sources.delivery import Delivery
from tidemill.streams import Batch, Plan, Stream, task

CONTAINED = Path(__file__)
LOSSES = 2

MODELS = (
    "good", "raises", "verdict", "unencodable", "background", "leaks", "output", "exit", "segfault", "gil", "blocks",
    "hangs", "late",
)  # fmt: skip


def note(place: str, name: str) -> None:
    """A call has ended well."""
    with (FOLDER / "done" / f"{place}.{name}").open("a") as file:
        file.write("x")


app = App(
    "contained",
    models=[ModelSpec(f"model-{how}", partial(misbehave, how), load_timeout=LIMIT) for how in MODELS],
)
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


@app.task(budget=LIMIT, retry=POLICY)
async def model_load(name: str) -> None:
    """Needs a model whose load misbehaves."""


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


def is_told(state: Any, now: float) -> bool:
    return state.place == "monitor_channel"


class Told(Channel, frozen=True, kw_only=True):
    """The channel of the monitor."""

    def send(self, notice: Any) -> None:
        entity = notice.alerts[0].entity
        place, _, name = entity.partition(".")
        misbehave("" if name.startswith("good") else name if name in MODELS else f"slow {entity}")
        note(place, name)


app.monitor(
    Monitor(
        "watch",
        source=JsonlSource(FOLDER / "events.jsonl"),
        entity=entity_of,
        fold=Follow,
        triggers=[sustained("there", when=is_there), sustained("told", when=is_told)],
        notify=[Told(triggers=("told",), group_by=("entity",), timeout=LIMIT)],
        idle=0.1,
        idle_max=0.2,
    )
)


class OwnReader:
    """Reads a source, which misbehaves as its name says."""

    overlap = overlap_most = 0.0

    def __init__(self, name: str) -> None:
        self._name = name

    async def pages(self, since: float | None, token: str | None, now: float) -> AsyncIterator[RecordPage]:
        if token is None and (FOLDER / "sources" / self._name).exists():
            await misbehave_async("" if self._name.startswith("good") else self._name)
            event = {"id": self._name, "at": now, "name": f"monitor_source.{self._name}", "place": "", "how": ""}
            yield RecordPage([Delivery(json.dumps(event).encode(), 1)], token="read")

    async def close(self) -> None: ...


for name in os.environ.get("TIDEMILL_SOURCES", "").split():
    app.monitor(
        Monitor(
            f"source-{name}",
            source=OwnReader(name),
            entity=entity_of,
            fold=Follow,
            triggers=[sustained("there", when=is_there)],
            idle=0.5,
            idle_max=1.0,
        )
    )
