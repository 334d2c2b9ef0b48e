"""The application that servers of tests serve: a few tasks, a flow that waits, a dag that asks."""

from __future__ import annotations

import os
from typing import Any

from tests.support.web_pipelines import make_greetings, make_notes
from tidemill import App
from tidemill.dags import Dag, input_node, node
from tidemill.flows import Context, Event, StartEvent, StopEvent, Workflow, step
from tidemill.monitors import Monitor, sustained
from tidemill.sources import JsonlSource

SCHEMA = {"type": "object", "properties": {"answer": {"enum": ["yes", "no"]}}, "required": ["answer"]}


class Word(Event):
    word: str


class Asking(Workflow):
    """Shows something, waits for a word, and ends with it."""

    @step
    async def ask(self, ctx: Context, ev: StartEvent) -> StopEvent:
        ctx.write_event_to_stream(Word(word="what is the word?"))
        given = await ctx.wait_for_event(Word)
        ctx.write_event_to_stream(Word(word=f"it is {given.word}"))
        return StopEvent(result={"word": given.word, "from": ev.get("who", "")})


def make_app(**settings: Any) -> App:
    """A new application; the server has one of its own."""
    app = App("test", **settings)

    @app.task(queue="mail")
    async def send(order: int, bad: bool = False) -> dict:
        if bad:
            raise ValueError(f"order {order} cannot be read")
        return {"sent": order}

    @app.task(queue="slow", tags=["nightly"])
    async def count(upto: int = 3) -> int:
        return upto

    @app.task(queue="mail", cron="0 4 1 1 *")
    def yearly() -> None: ...

    app.workflow(Asking, name="Asking", timeout=None)
    app.dag(
        Dag(
            "order",
            [
                node("pack", "send", args={"order": {"$from": "run.order"}}),
                input_node("approve", prompt="Really?", schema=SCHEMA, deps=["pack"]),
                node("ship", "send", args={"order": 2}, deps=["approve"]),
            ],
        )
    )
    return app


class Oven:
    """Since when an oven has been hot."""

    def on_event(self, state: Any, event: Any) -> None:
        state.hot_since = (state.hot_since or event.at) if event["celsius"] >= 80 else None


def make_ovens() -> Monitor:
    """A monitor with one trigger; the server does not run it."""
    hot = sustained("hot", when=lambda s, now: s.hot_since, since=lambda s: s.hot_since)
    return Monitor("ovens", source=JsonlSource("ovens.jsonl"), entity=lambda e: e["oven"], fold=Oven, triggers=[hot])


app = make_app(workflow_folder=os.environ.get("WEB_WORKFLOWS"), secret_key_file=os.environ.get("WEB_SECRET_KEY_FILE"))
app.pipeline(make_notes())
for workflow in make_greetings():
    app.trigger(workflow)
if "WEB_WORKFLOWS" in os.environ:  # Where every operation is tried, and no process runs the monitor.
    app.monitor(make_ovens())
