"""What docs/flows.md takes for granted: events, other workflows, a table, and runs at the right place."""

from __future__ import annotations

import asyncio
import contextlib
import json
import textwrap
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import asyncpg
import pydantic

from tests.support.guide import database_url
from tidemill import App
from tidemill.core.errors import NotFoundError
from tidemill.flows import (
    CompensationEvent,
    Context,
    Event,
    HumanResponseEvent,
    InputRequiredEvent,
    Resource,
    ResourceConfig,
    StartEvent,
    StepFailedEvent,
    StopEvent,
    Workflow,
    catch_error,
    step,
)

__all__ = ["Annotated", "CompensationEvent", "Resource", "ResourceConfig", "StepFailedEvent", "catch_error", "json"]


class Page(Event):
    number: int = 0


class Words(Event):
    count: int = 0


class Embedded(Event): ...


class Paid(StopEvent):
    order: int = 0
    amount: int = 0


class NeedsApproval(InputRequiredEvent):
    text: str


class Approval(HumanResponseEvent):
    ok: bool
    by: str


class Message(HumanResponseEvent):
    text: str


class HowMany(HumanResponseEvent):
    of: str


class Client: ...


class Limits(pydantic.BaseModel):
    words: int = 0


def get_client() -> Client:
    return Client()


def charge(order: int) -> None: ...


class Publishing(Workflow):
    @step
    async def publish(self, ctx: Context, ev: StartEvent) -> StopEvent:
        answer = await ctx.wait_for_event(
            Approval, waiter_event=NeedsApproval(text=ev.draft), requirements={"by": "editor"}
        )
        return StopEvent(result=answer.ok)


class Summary(Workflow):
    @step
    async def summarise(self, ev: StartEvent) -> StopEvent:
        return StopEvent(result=ev.text[:10])


class Shop(Workflow):
    @step
    async def wait(self, ctx: Context, ev: StartEvent) -> StopEvent:
        await ctx.store.set("apples", 3)
        await ctx.wait_for_event(Approval)
        return StopEvent()

    @step
    async def answer(self, ctx: Context, ev: HowMany) -> None:
        ctx.reply(await ctx.store.get(ev.of))


draft = "On tides"
executed: Counter[str] = Counter()

#: Sent to each run of a step's body, for what it waits for.
ANSWERS = [Approval(ok=True, by="editor"), Message(text="hello"), Message(text="bye")]


async def body(source: str, names: dict[str, Any]) -> None:
    """Run a block as the body of a step of a durable run."""
    text = textwrap.indent(source, " " * 8)
    program = (
        "class Fragment(Workflow):\n    @step\n"
        f"    async def body(self, ctx: Context, ev: StartEvent) -> StopEvent:\n{text}\n        return StopEvent()\n"
    )
    exec(program, names)
    app = App("fragments")
    app.workflow(Summary)
    fragment = app.workflow(names["Fragment"])
    async with app.running():
        run = await app.start(fragment, text="a long text", amount=3, account=1)
        with contextlib.suppress(NotFoundError):  # It has ended: it did not wait for all of them.
            for answer in ANSWERS:
                await run.send_event(answer)
        await run
    await app.close()


async def prepare(names: dict[str, Any]) -> None:
    Path("limits.json").write_text('{"small": {"words": 3}}')
    connection = await asyncpg.connect(database_url())
    await connection.execute("CREATE TABLE account (id integer, balance integer)")
    await connection.close()


async def a_run_that_answers(names: dict[str, Any]) -> None:
    app: App = names["app"]
    app.workflow(Shop)
    names["run"] = await app.start(Shop)


async def a_run_that_waits(names: dict[str, Any]) -> None:
    names["flow"] = Publishing()
    names["handler"] = names["flow"].run(draft=draft)
    await asyncio.sleep(0)


async def a_run_that_ends(names: dict[str, Any]) -> None:
    names["handler"] = names["Article"]().run(topic="tides")


BEFORE = {
    "Ask a run": a_run_that_answers,
    "Save a run and resume it": a_run_that_waits,
    "Test and draw": a_run_that_ends,
}
NOT_RUN = {
    "Run a program written for LlamaIndex Workflows": "it needs a language model; tests/support/agents_app.py runs it",
}
