"""Small applications with a job and a flow that waits for an event."""

from __future__ import annotations

from tests.support.waiting import PATIENT
from tidemill import App
from tidemill.flows import Context, Event, StartEvent, StopEvent, Workflow, step


class Go(Event):
    answer: int


class Ask(Workflow[StartEvent, int]):
    @step
    async def ask(self, ctx: Context, ev: StartEvent) -> StopEvent:
        return StopEvent(result=(await ctx.wait_for_event(Go)).answer)


class Word(Event):
    text: str


class Topic(StartEvent):
    topic: str = ""


class Asking(Workflow):
    @step
    async def ask(self, ctx: Context, ev: Topic) -> StopEvent:
        return StopEvent(result=(await ctx.wait_for_event(Word)).text)


def shop(url: str) -> App:
    app = App("shop", database_url=url, **PATIENT)
    app.workflow(Ask)

    @app.task
    async def double(number: int) -> int:
        return 2 * number

    return app
