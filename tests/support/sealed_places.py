"""Work that stores payloads in less common places: batches, `once`, sinks, pipelines, problems and notices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.sealed_app import MARKER, Cargo
from tidemill import App
from tidemill.flows import Context, StopEvent, Workflow, step
from tidemill.monitors import Channel, Monitor, momentary
from tidemill.pipelines import DatabaseStates, Pipeline
from tidemill.sinks import HttpSink, LogSink
from tidemill.sources import LogSource
from tidemill.streams import Plan, Stream, task as plan_task


class Chandler(Workflow):
    """A step that does something once, gathers jobs, waits for a child, and runs a step on a queue."""

    @step
    async def provide(self, ctx: Context, ev: Cargo) -> StopEvent:
        bought = await ctx.once("buy", lambda: {"bought": ev.text})
        carried = await ctx.gather_jobs(self.app.declarations.tasks["carry"].call(text=ev.text))
        return StopEvent(result=[bought, carried])

    app: App


class Forward(Plan, eligibility="forward"):
    @plan_task
    async def forward(self, ctx: Any) -> None:
        ctx.emit("refusing", {"text": ctx.value["text"]})
        ctx.emit("away", {"text": ctx.value["text"]})
        ctx.emit("kept", {"text": ctx.value["text"]})
        ctx.enqueue(Chandler.app.declarations.tasks["carry"].call(text=ctx.value["text"]))
        ctx.write_state("inbox/handed.txt", ctx.value["text"])


class Puzzled:
    def on_event(self, state: Any, event: Any) -> None:
        state.setdefault("seen", []).append({"id": event.id, "at": event.at, "text": event["text"]})
        if event["text"].endswith("puzzle"):
            raise ValueError(f"what is {event['text']}?")


class Hoarse(Channel, frozen=True, tag="hoarse"):
    """A channel that cannot say what it has to."""

    def send(self, notice: Any) -> None:
        raise RuntimeError(f"cannot say {MARKER}: {notice}")


async def close_books(month: str) -> str:
    return month


def declare_places(app: App, root: Path, refusing: str) -> None:
    """`refusing` is the address of a receiver that refuses everything with its body."""
    Chandler.app = app
    app.workflow(Chandler)
    app.task(close_books)
    inbox = LogSource("forwarded", eligibilities=frozenset({"forward"}))
    sinks = [
        HttpSink(refusing, name="refusing"),
        HttpSink("http://127.0.0.1:9/nothing-listens", name="away"),
        LogSink("kept", name="kept"),
    ]
    app.stream(Stream("forwarding", plans=[Forward], sources=[inbox], sinks=sinks, engines=0))
    notes = Pipeline("notes", root=root, store=DatabaseStates("notes"))

    @notes.stage(input="inbox/{name}.txt", output="upper/{name}.txt")
    def shout(entity: Any, text: str) -> str:
        entity.note(f"shouts {text}")
        return f"{text}!"

    @notes.stage(input="upper/{name}.txt", output="broken/{name}.txt")
    def tear(entity: Any, text: str) -> str:
        entity.note(f"tears {text}")
        raise ValueError(f"cannot tear {text}")

    app.pipeline(notes)
    seen = momentary("seen", of=lambda state: state.seen, evidence=lambda one: one["text"])
    puzzles = LogSource("puzzles")
    app.monitor(
        Monitor("riddles", source=puzzles, entity=lambda e: "quay", fold=Puzzled, triggers=[seen], notify=[Hoarse()])
    )
