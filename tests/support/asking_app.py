"""Flows that ask people, in both ways: a step that waits, and a step that returns its question."""

from __future__ import annotations

from typing import Any

from tidemill import App
from tidemill.flows import Context, Event, HumanResponseEvent, InputRequiredEvent, StartEvent, StopEvent, Workflow, step


class NeedsApproval(InputRequiredEvent):
    text: str


class Approval(HumanResponseEvent):
    ok: bool
    note: str = ""
    by: str


class Ping(Event):
    """From a program: nobody is asked for it."""


class Publishing(Workflow):
    """Waits for a program first, and then for an editor."""

    @step
    async def publish(self, ctx: Context, ev: StartEvent) -> StopEvent:
        await ctx.wait_for_event(Ping, timeout=None)
        said = await ctx.wait_for_event(
            Approval, waiter_event=NeedsApproval(text=f"Print {ev.title}?"), requirements={"by": "editor"}, timeout=None
        )
        return StopEvent(result={"ok": said.ok, "note": said.note, "by": said.by})


class Prompt(InputRequiredEvent):
    prefix: str


class Scan(Workflow):
    """Asks twice, and takes the answers as they come."""

    @step
    async def ask(self, ctx: Context, ev: StartEvent) -> list[Prompt]:
        return [Prompt(prefix="How many?"), Prompt(prefix="Of what?")]

    @step
    async def take(self, ctx: Context, ev: HumanResponseEvent) -> StopEvent | None:
        said = [*await ctx.store.get("said", default=[]), ev.get("response")]
        await ctx.store.set("said", said)
        return StopEvent(result=said) if len(said) == 2 else None


def make_app(**settings: Any) -> App:
    """A new application; the server has one of its own."""
    app = App("asking", **settings)
    app.workflow(Publishing, name="Publishing", timeout=None)
    app.workflow(Scan, name="Scan", timeout=None)
    return app


app = make_app()
