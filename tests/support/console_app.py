"""The application of the console's tests: every kind of work, controlled by the tests."""

import asyncio
import os
from pathlib import Path
from typing import Any, Literal

import structlog

from tidemill import App, current_job
from tidemill.dags import Dag, input_node, node, ref
from tidemill.flows import Context, Event, HumanResponseEvent, InputRequiredEvent, StartEvent, StopEvent, Workflow, step
from tidemill.monitors import Monitor, sustained
from tidemill.pipelines import Pipeline
from tidemill.sinks import HttpSink
from tidemill.sources import JsonlSource
from tidemill.streams import Plan, Stream, task as plan_task

app = App("harbour", workflow_folder="workflows")


@app.task(queue="mail")
async def send(to: str) -> dict:
    return {"sent": to}


@app.task(queue="mail", retry=app.retry(max_attempts=2, backoff="10ms"), tags=["flaky"])
async def broken(number: int = 0) -> None:
    structlog.get_logger().warning("looks at the label", number=number)
    raise ValueError(f"parcel {number} has no address")


@app.task(queue="slow")
async def until(file: str) -> str:
    """Run until a file exists."""
    job = current_job()
    job.report(0.5, f"waits for {Path(file).name}")
    while not Path(file).exists():
        await asyncio.sleep(0.02)
    return "seen"


LONG_NAME = "recalculate_" + "the_shipping_costs_of_" * 6 + "every_order"


@app.task(name=LONG_NAME, queue="mail")
async def fail_with_long_name() -> None:
    raise ValueError("no_order_" * 20)


@app.task(queue="mail", every="1h")
async def count_ships() -> int:
    return 3


@app.task(queue="wide")
async def pass_on(value: int) -> int:
    return value


SIGNATURE = {
    "type": "object",
    "required": ["name", "copies"],
    "properties": {
        "name": {"type": "string", "title": "Your name"},
        "copies": {"type": "integer", "title": "Copies", "minimum": 1, "maximum": 9},
        "kind": {"enum": ["paper", "screen"], "title": "Kind"},
        "urgent": {"type": "boolean", "title": "Urgent"},
    },
}

app.dag(
    Dag(
        "release",
        nodes=[
            node("weigh", "pass_on", args={"value": 7}),
            input_node("sign", prompt="Who signs for {{$.weigh}} tons?", deps=["weigh"], schema=SIGNATURE),
            node("ship", "send", args={"to": ref("sign.name")}, deps=["sign"]),
        ],
    )
)

app.dag(Dag("doomed", nodes=[node("first", "pass_on", args={"value": 1}), node("bad", "broken", deps=["first"])]))

app.dag(Dag("fleet", nodes=[node("weigh", "pass_on", map=[3, 5, 8], args={"value": ref("item")})]))

#: Two thousand nodes: forty chains between a beginning and an end.
app.dag(
    Dag(
        "wide",
        nodes=[
            node("begin", "pass_on", args={"value": 0}),
            *(
                node(f"n{i}", "pass_on", args={"value": i}, deps=["begin"] if i < 40 else [f"n{i - 40}"])
                for i in range(1998)
            ),
            node("end", "pass_on", args={"value": 1}, deps=[f"n{i}" for i in range(1958, 1998)]),
        ],
    )
)


class Draft(Event):
    text: str


class Topic(StartEvent):
    topic: str | None = None


@app.workflow
class Article(Workflow):
    """Writes, then waits for a person."""

    @step
    async def write(self, ev: Topic) -> Draft:
        return Draft(text=f"About {ev.topic}")

    @step
    async def approve(self, ctx: Context, ev: Draft) -> StopEvent:
        said = await ctx.wait_for_event(HumanResponseEvent, waiter_event=InputRequiredEvent(), timeout=3600)
        return StopEvent(result={"text": ev.text, "said": said.get("response")})

    def __init__(self, **options: object) -> None:
        super().__init__(**{"timeout": None, **options})  # pyright: ignore[reportArgumentType]


@app.workflow
class Pilot(Workflow):
    """Brings one ship in."""

    @step
    async def steer(self, ev: StartEvent) -> StopEvent:
        return StopEvent(result=ev.ship)


@app.workflow
class Convoy(Workflow):
    """Starts a run for each ship, and waits for them."""

    @step
    async def enter(self, ctx: Context, ev: StartEvent) -> StopEvent:
        return StopEvent(result=await asyncio.gather(*(ctx.child(Pilot, ship=ship) for ship in ev.ships)))


class Moored(HumanResponseEvent):
    quay: int
    words: str = ""
    side: Literal["port", "starboard"]


@app.workflow(timeout=None)
class Berth(Workflow):
    """Asks where a ship lies; the answer has fields."""

    @step
    async def moor(self, ctx: Context, ev: StartEvent) -> StopEvent:
        asked = InputRequiredEvent(question=f"At which quay does {ev.ship} lie?")
        said = await ctx.wait_for_event(Moored, waiter_event=asked, timeout=3600)
        return StopEvent(result={"quay": said.quay, "words": said.words, "side": said.side})


charts = Pipeline("charts", root="charts")


@charts.stage(input="soundings/{bay}.txt", output="charts/{bay}.txt", in_process=True)
def draw(entity: Any, text: str) -> str:
    return f"{entity.bay}: {text}"


app.pipeline(charts)


class Sort(Plan, eligibility="sort"):
    """Sorts letters; what has no address is given up, unless the file `forgiven` is there."""

    @plan_task
    async def sort(self, ctx: Any) -> dict:
        if ctx.value.get("bad") and not Path("forgiven").exists():
            raise ValueError("no address")
        if ctx.value.get("abroad"):
            ctx.emit("ferry", {"number": ctx.value["number"]})
        return {"shelf": ctx.value.get("number")}


app.stream(
    Stream(
        "letters",
        plans=[Sort],
        engines=0,
        retry=app.retry(2, backoff="10ms"),
        grpc=os.environ.get("HARBOUR_LIVE"),
        sources=[JsonlSource(path="letters.jsonl", name="box", weight=1, eligibilities=frozenset({"sort"}))],
        sinks=[HttpSink("http://127.0.0.1:9/quay", name="ferry")],  # Nothing listens there.
    )
)


class Ship:
    """Since when a ship is too deep in the water."""

    def on_event(self, state: Any, event: Any) -> None:
        state.deep_since = event.at if event["draught"] > 9 else None


app.monitor(
    Monitor(
        "ships",
        source=JsonlSource("readings.jsonl"),
        entity=lambda event: event["ship"],
        fold=Ship,
        idle=0.1,
        triggers=[
            sustained("deep", when=lambda s, now: s.deep_since is not None, since=lambda s: s.deep_since, realert="1h")
        ],
    )
)
