"""A wrong call of what starts work is answered with what to write, before anything is stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tidemill import App
from tidemill.core.errors import TidemillError
from tidemill.dags import Dag, input_node
from tidemill.flows import Context, Event, StartEvent, StopEvent, Workflow, step
from tidemill.ops.runs.events import SendEvent, send_event
from tidemill.pipelines import DatabaseStates, Pipeline


class Word(Event):
    text: str


class Topic(StartEvent):
    topic: str = ""


class Asking(Workflow):
    @step
    async def ask(self, ctx: Context, ev: Topic) -> StopEvent:
        return StopEvent(result=(await ctx.wait_for_event(Word)).text)


class Undeclared(Asking):
    pass


class Shop:
    def __init__(self, app: App) -> None:
        @app.task
        async def send(n: int = 0) -> None: ...

        notes = Pipeline("notes", store=DatabaseStates("notes"))

        @notes.stage(input="raw/{name}.txt", output="done/{name}.txt")
        def finish(text: bytes) -> bytes:
            return text

        self.app: Any = app
        self.send: Any = send
        app.workflow(Asking, timeout=None)
        app.dag(Dag("asks", [input_node("approve", prompt="?")]))
        app.pipeline(notes)

    async def write(self, pattern: str, content: Any) -> Any:
        return await self.app.states("notes").write(pattern, {"name": "a"}, content)

    async def event(self, event: Any, *args: Any, **options: Any) -> None:
        await (await self.app.start(Asking)).send_event(event, *args, **options)

    async def event_by_request(self, step: str) -> None:
        run = await self.app.start(Asking)
        await self.app.do(send_event, SendEvent(id=run.id, type="Word", fields={"text": "a"}, step=step))


Wrong = Callable[[Shop], Any]

WRONG: list[tuple[Wrong, str]] = [
    (lambda shop: shop.app.start(shop.send), "'send' is a task, and not a workflow or dag: enqueue it with"),
    (lambda shop: shop.app.start(shop.send.call()), "'send' is a task, and not a workflow or dag: enqueue it with"),
    (lambda shop: shop.app.start(None), "start takes a workflow, a dag, or the name of one, and not None"),
    (lambda shop: shop.app.start(Undeclared), r"declare it: app.workflow\(Undeclared\)"),
    (lambda shop: shop.app.start("Askng"), "did you mean 'Asking'"),
    (lambda shop: shop.app.start(Asking, prioritty=3), "did you mean 'priority'"),
    (lambda shop: shop.app.start(Asking, Word(text="a")), "starts with a Topic, and not with"),
    (lambda shop: shop.app.publish("", {}), "'' is not a topic name"),
    (lambda shop: shop.app.publish("news", {}, key=7), "key=7 is not text"),
    (lambda shop: shop.app.publish("news", {}, ky="a"), "publish has no option 'ky'; did you mean 'key'"),
    (
        lambda shop: shop.app.publish("news", {}, delay=1),
        "no option 'delay'; its options are conn, headers",
    ),
    (lambda shop: shop.app.submit("r1", "approve", {}), "submit takes a run, such as app.start returns, or its number"),
    (lambda shop: shop.app.submit(1, "approve", {}, delay=1), "submit has no option 'delay'; its options are by, conn"),
    (lambda shop: shop.app.submit(999, "approve", {}), "there is no run 999"),
    (lambda shop: shop.event(Word), r"send_event takes an event, such as Word\(...\), and not"),
    (lambda shop: shop.event({"text": "a"}), r"send_event takes an event, such as Approved\(by='ann'\), and not"),
    (lambda shop: shop.event(Word(text="a"), "aks"), "Asking has no step 'aks'; its steps are ask; did you mean 'ask'"),
    (lambda shop: shop.event_by_request("aks"), "Asking has no step 'aks'; its steps are ask; did you mean 'ask'"),
    (
        lambda shop: shop.event(Word(text="a"), priority=7),
        "no option 'priority'; its options are at, conn",
    ),
    (lambda shop: shop.write("rw/{name}.txt", "x"), r"no stage takes in rw/a.txt; they take in raw/\{name\}.txt"),
    (lambda shop: shop.write("done/{name}.txt", "x"), "is made by stage finish: write what it takes in"),
    (
        lambda shop: shop.write("raw/{name}.txt", 7),
        "a state is text, bytes or chunks of bytes, and not 7",
    ),
    (lambda shop: shop.write("raw/{name}.txt", {"a": 1}), "the content of a state is text, bytes or chunks of bytes"),
    (
        lambda shop: shop.app.batch([], on_sucess=shop.send),
        "no option 'on_sucess'; did you mean 'on_success'",
    ),
]


async def test_a_wrong_call_is_answered_with_what_to_write(app: App) -> None:
    shop = Shop(app)
    for call, said in WRONG:
        with pytest.raises(TidemillError, match=said):
            await call(shop)
