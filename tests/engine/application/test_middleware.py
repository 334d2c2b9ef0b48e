"""Middleware surrounds calls of every shape in the order of its list, and its errors are errors of the call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support import eventually, value
from tests.support.waiting import PATIENT
from tidemill import INJECTED, App, Invocation
from tidemill.core.errors import ConfigError
from tidemill.dags import Dag, node
from tidemill.dags.errors import DagRunError
from tidemill.flows import StartEvent, StopEvent, Workflow, step
from tidemill.monitors import Monitor
from tidemill.pipelines import Pipeline
from tidemill.sources import JsonlSource, LogSource
from tidemill.store.database import Database
from tidemill.streams import Context, Plan, Stream, task as stream_task

SHAPES = {"task", "plain task", "step", "stream task", "stage", "fold"}


class Shop:
    """An application with a function of every shape; `ran` says which were called, `fails` lets them raise."""

    def __init__(self, url: str, folder: Path, middleware: list[Any], *, fails: bool = False) -> None:
        self.app = app = App("shop", middleware=middleware, database_url=url, **PATIENT)
        self.ran: list[str] = []

        def run(shape: str) -> None:
            self.ran.append(shape)
            if fails:
                raise KeyError("of the function")

        @app.task
        async def send() -> str:
            run("task")
            return "sent"

        @app.task
        def send_plainly() -> None:
            run("plain task")

        @app.workflow
        class Article(Workflow):
            @step
            async def write(self, ev: StartEvent) -> StopEvent:
                run("step")
                return StopEvent(result="done")

        class Spam(Plan, eligibility="spam"):
            @stream_task
            async def score(self, ctx: Context) -> None:
                run("stream task")

        class Count:
            def on_event(self, state: Any, event: Any) -> None:
                run("fold")

        app.stream(Stream("posts", sources=[LogSource("posts", eligibilities={"spam"})], plans=[Spam], engines=0))
        blog = Pipeline("blog", folder)

        @blog.stage(input="in/{name}.txt", output="out/{name}.txt")
        def page(text: str) -> str:
            run("stage")
            return text

        app.pipeline(blog)
        (folder / "in").mkdir()
        (folder / "in" / "a.txt").write_text("a")
        events = folder / "events.jsonl"
        events.write_text('{"id": "1", "at": 1000, "machine": "m1"}\n')
        app.monitor(Monitor("machines", source=JsonlSource(events), entity=lambda event: event["machine"], fold=Count))
        app.dag(Dag("order", [node("send", "send")]))
        self.workflow = Article

    async def errors(self, database: Database) -> dict[str, str]:
        """Run everything, and return what each shape says about its failure."""
        app, found = self.app, dict[str, str]()
        for name in ("send", "send_plainly"):
            ended = await app.wait(await app.enqueue(name), timeout=60)
            found[name] = ended.errors[-1]["message"] if ended.errors else ended.state
        for shape, what in (("step", self.workflow), ("dag", "order")):
            try:
                await (await app.start(what)).result(timeout=60)
            except (RuntimeError, KeyError, DagRunError) as error:
                found[shape] = str(error)
        await app.publish("posts", "hello")
        for shape, query in (
            ("stage", "SELECT error FROM tidemill.state_failure"),
            ("stream task", "SELECT row_to_json(d)::text FROM tidemill.dead_letter AS d"),
            ("fold", "SELECT row_to_json(m)::text FROM tidemill.monitor_entity AS m WHERE problem IS NOT NULL"),
        ):
            found[shape] = await eventually(lambda query=query: value(database, query), what=query)
        return found


def broken(how: str) -> Any:
    @contextmanager
    def middleware(call: Invocation) -> Iterator[None]:
        if how == "before":
            raise RuntimeError("of the middleware")
        try:
            yield
        except KeyError:
            if how != "swallows":
                raise
        if how == "after":
            raise RuntimeError("of the middleware")

    return middleware


@pytest.mark.parametrize("how", ["before", "after", "swallows"])
async def test_an_error_of_middleware_is_one_of_the_call_and_none_is_hidden(
    database_url: str, database: Database, tmp_path: Path, how: str
) -> None:
    left: list[str] = []

    @asynccontextmanager
    async def outer(call: Invocation) -> AsyncIterator[None]:
        try:
            yield
        finally:
            left.append(call.shape)

    shop = Shop(database_url, tmp_path, [outer, broken(how)], fails=how == "swallows")
    async with shop.app.running():
        found = await shop.errors(database)
    wanted = "of the function" if how == "swallows" else "of the middleware"
    assert {shape: said for shape, said in found.items() if wanted not in said} == {}
    assert set(shop.ran) == (set() if how == "before" else SHAPES)
    assert set(left) == SHAPES - {"plain task"}


async def test_the_first_of_the_list_is_the_outermost_for_every_shape(
    database_url: str, database: Database, tmp_path: Path
) -> None:
    seen: dict[str, list[str]] = {}

    @contextmanager
    def first(call: Invocation) -> Iterator[None]:
        seen.setdefault(call.name, []).append("first")
        yield
        seen[call.name].append("/first")

    @asynccontextmanager
    async def second(call: Invocation) -> AsyncIterator[None]:
        seen[call.name].append("second")
        yield
        seen[call.name].append("/second")

    shop = Shop(database_url, tmp_path, [first, second])
    async with shop.app.running():
        for name in ("send", "send_plainly"):
            await app_ended(shop.app, name)
        await (await shop.app.start(shop.workflow)).result(timeout=60)
        await shop.app.publish("posts", "hello")
        names = {"send", "send_plainly", "Article.write", "posts/Spam.score", "blog/page", "machines"}
        await eventually(lambda: names <= seen.keys() and all(len(each) % 4 == 0 for each in seen.values()))
    assert {tuple(each[:4]) for each in seen.values()} == {("first", "second", "/second", "/first")}


async def app_ended(app: App, task: str) -> None:
    assert (await app.wait(await app.enqueue(task), timeout=60)).state == "succeeded"


class Mailer:
    """What is injected."""


def _generator(call: Invocation) -> Iterator[None]:
    yield


async def _async_generator(call: Invocation) -> AsyncIterator[None]:
    yield


async def _coroutine(call: Invocation) -> None: ...


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"middleware": [_generator]}, "is not a context manager: decorate it with @contextmanager"),
        ({"middleware": [_async_generator]}, "is not a context manager: decorate it with @asynccontextmanager"),
        ({"middleware": [_coroutine]}, "is not a context manager: decorate it with @asynccontextmanager"),
        ({"dependencies": {"Mailer": Mailer}}, r"'Mailer' is a text; write the annotation itself: \{Mailer: ...\}"),
        ({"dependencies": {Mailer: lambda n: n}}, "needs 'n', which nothing gives: give it a default or INJECTED"),
    ],
)
def test_what_is_declared_wrongly_is_refused_with_what_to_write(wrong: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        App("shop", **wrong)


@pytest.mark.parametrize(("made", "said"), [(7, "made a int, and not a Mailer"), (None, "made None, and not a Mailer")])
async def test_a_dependency_of_another_class_is_an_error_of_the_call(database_url: str, made: Any, said: str) -> None:
    app = App("shop", dependencies={Mailer: lambda: made}, database_url=database_url, **PATIENT)

    @app.task
    async def send(mailer: Mailer = INJECTED) -> None: ...

    @app.task
    def send_plainly(mailer: Mailer = INJECTED) -> None: ...

    async with app.running():
        for task in (send, send_plainly):
            ended = await app.wait(await app.enqueue(task.call()), timeout=60)
            assert said in ended.errors[-1]["message"]


async def test_middleware_that_gives_no_context_manager_is_named(database_url: str) -> None:
    def nothing(call: Invocation) -> Any:
        return None

    app = App("shop", middleware=[nothing], database_url=database_url, **PATIENT)

    @app.task
    async def send() -> None: ...

    async with app.running():
        ended = await app.wait(await app.enqueue(send.call()), timeout=60)
    assert "nothing gave None, which is not a context manager" in ended.errors[-1]["message"]
