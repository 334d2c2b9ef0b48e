"""Every call that starts work takes the options of the table in `docs/jobs.md`, on every connection, and no others."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import eventually
from tests.support.callers import CALLERS, Caller, plain_without_connection, without_connection
from tests.support.shop import Asking, Word
from tests.support.start_table import CALLS, OPTIONS, groups_of, guide_reasons, guide_table
from tidemill import App, ModelSpec
from tidemill.core.errors import ConfigError
from tidemill.dags import Dag, input_node, node
from tidemill.engine.jobs.enqueue_options import EnqueueOptions
from tidemill.engine.runs.start_options import NOT_FOR_RUNS, StartOptions
from tidemill.ops.runs.runs import RunRef, get_run
from tidemill.pipelines import DatabaseStates, Pipeline
from tidemill.store.database import Database

GUIDE = Path(__file__).parents[3] / "docs" / "jobs.md"
FORMS = {**CALLERS, "no connection": without_connection, "no connection, plain code": plain_without_connection}

notes = Pipeline("notes", store=DatabaseStates("notes"))


@notes.stage(input="raw/{name}.txt", output="done/{name}.txt")
def finish(text: bytes) -> bytes:
    return text


class Shop:
    """An application with work of every shape, a run that waits for an event, and one that asks people."""

    def __init__(self, app: App) -> None:
        self.app = app

        @app.task(queue="mail")
        async def send(n: int = 0) -> None: ...

        self.send = send
        app.workflow(Asking, timeout=None, rate=1000)
        self.order = app.dag(Dag("order", [node("send", "send", args={"n": 1})]), rate=1000)
        self.asks = app.dag(Dag("asks", [input_node("approve", prompt="?")]))
        app.pipeline(notes)

    async def prepare(self) -> None:
        async with self.app.running(queues=["none"]):
            self.run = await self.app.start(Asking)
            self.question = await self.app.start(self.asks)
            await eventually(self.question.inputs)
            await eventually(self.has_begun)
        self.run = await self.app.runs.get(self.run.id)

    async def has_begun(self) -> bool:
        return (await self.app.do(get_run, RunRef(id=self.run.id))).ticks > 0

    def calls(self, caller: Caller) -> dict[str, Callable[..., Awaitable[Any]]]:
        app, send = self.app, self.send
        return {
            "enqueue": lambda **options: caller.enqueue(app, send.call(n=1), **options),
            "enqueue_many": lambda **options: caller.enqueue_many(app, send, [{"n": 1}], **options),
            "batch": lambda **options: caller.batch(app, [send.call(n=1)], **options),
            "start_flow": lambda **options: caller.start(app, Asking, **options),
            "start_dag": lambda **options: caller.start(app, self.order, **options),
            "send_event": lambda **options: caller.send_event(self.run, Word(text="a"), **options),
            "publish": lambda **options: caller.publish(app, "news", {"n": 1}, **options),
            "submit": lambda **options: caller.submit(app, self.question, "approve", {"n": 1}, **options),
            "write": lambda **options: caller.write_state(app, "raw/{name}.txt", {"name": "a"}, "text", **options),
        }


@pytest.fixture
def shop(database_url: str) -> Iterator[Shop]:
    app = App("test", database_url=database_url, models=[ModelSpec("tiny", load=object)], webhook_secret="s")
    yield Shop(app)
    app.close_sync()


def can_run(form: str) -> bool:
    return "Async" not in form or importlib.util.find_spec("greenlet") is not None


async def test_every_option_does_the_same_for_every_shape_on_every_connection(
    shop: Shop, database: Database, database_url: str
) -> None:
    await shop.prepare()
    wrong: list[str] = []
    for form, connect in FORMS.items():
        if not can_run(form):
            continue
        async with connect(database_url) as caller:
            for call, start in shop.calls(caller).items():
                for options in groups_of(call):
                    if "no connection" not in form:
                        wrong += await run_cells(f"{call} on {form}", caller, start, call, options, database)
                        await caller.rollback()
                    elif call != "submit":  # The question is answered once: that is the last cell.
                        wrong += await run_cells(f"{call} on {form}", caller, start, call, options, database)
                        await clean(database)
                for option, (given, takers, _) in OPTIONS.items():
                    if call not in takers:
                        wrong += await refused_cell(f"{call}({option}=) on {form}", start, option, given)
    assert wrong == []
    async with shop.app.running(queues=["none"]):
        assert await shop.app.submit(shop.question, "approve", {"n": 1}, by="ann", key="k")
        assert await asyncio.to_thread(shop.app.submit_sync, shop.question.id, "approve", {"n": 1}, by="ann", key="k")


async def run_cells(
    where: str, caller: Caller, start: Any, call: str, options: list[str], database: Database
) -> list[str]:
    """Start something with these options; the cells whose effect is not in the row that is stored."""
    given = {name: value for option in options for name, value in OPTIONS[option][0].items()}
    try:
        await start(**given)
    except Exception as error:  # noqa: BLE001 - any error is a wrong cell
        return [f"{where}, {options}: {error!r}"]
    table = CALLS[call][0]
    effects = ", ".join(f"({OPTIONS[option][2][table]})" for option in options)
    order = "path" if table == "state_blob" else "id"
    newest = f"FROM tidemill.{table} AS t ORDER BY {order} DESC LIMIT 1"
    newest = f"SELECT to_jsonb(t)::text AS row, ARRAY[{effects}] AS held {newest}"
    rows = [tuple(row) for row in await caller.fetch(database, newest)]
    if not rows:
        return [f"{where}, {options}: nothing is stored"]
    row, held = rows[0]
    return [f"{where}, {option}: {row}" for option, is_right in zip(options, held, strict=True) if not is_right]


async def refused_cell(cell: str, start: Any, option: str, given: dict[str, Any]) -> list[str]:
    try:
        await start(**given)
    except (ConfigError, TypeError) as error:
        return [] if any(f"'{name}'" in str(error) for name in (option, *given)) else [f"{cell}: {error!r}"]
    return [f"{cell}: it was accepted"]


async def clean(database: Database) -> None:
    """Remove what a call without a connection of the caller's has committed."""
    tables = ("job", "unique_window", "concurrency_key", "batch", "inbox", "event_log", "state_blob")
    deletes = "".join(f"DELETE FROM tidemill.{table};" for table in tables)
    await database.run(lambda connection: connection.execute(f"{deletes} DELETE FROM tidemill.run WHERE seq = 0"))


def test_the_guide_shows_the_table_that_is_tested() -> None:
    assert guide_table() in GUIDE.read_text()
    assert guide_reasons() in GUIDE.read_text()


def test_the_table_has_every_option() -> None:
    assert {*EnqueueOptions.__annotations__, *StartOptions.__annotations__, "conn"} == OPTIONS.keys()
    assert EnqueueOptions.__annotations__.keys() - StartOptions.__annotations__.keys() == NOT_FOR_RUNS.keys()
