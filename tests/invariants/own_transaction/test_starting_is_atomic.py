"""Jobs, runs, events and messages that are started on the caller's connection exist if and only if it commits.

The table: what is started × the driver of the connection × what becomes of the transaction.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support import eventually, value
from tests.support.callers import Caller
from tidemill import App
from tidemill.core.errors import ConfigError, PayloadError
from tidemill.core.ticks import CancelAsked
from tidemill.dags import Dag, node
from tidemill.flows import Context, Event, StartEvent, StopEvent, Workflow, step
from tidemill.flows.encoding.journal import encode_tick
from tidemill.store.database import Database
from tidemill.store.runs.inbox import BEGIN_NOW, send_to_run

TABLES = ("job", "run", "inbox", "event_log")


class Word(Event):
    text: str


class Topic(StartEvent):
    topic: str = ""


class Asking(Workflow):
    @step
    async def ask(self, ctx: Context, ev: Topic) -> StopEvent:
        found = await ctx.wait_for_event(Word)
        return StopEvent(result=f"{ev.topic} {found.text}")


class Delayed(StartEvent):
    delay: str = ""


class Ambiguous(Workflow):
    @step
    async def only(self, ev: Delayed) -> StopEvent:
        return StopEvent(result=ev.delay)


order = Dag("order", [node("send", "send", args={"n": 1})])


@pytest.fixture
def shop(app: App) -> App:
    @app.task(queue="mail")
    async def send(n: int = 0) -> None: ...

    app.workflow(Asking)
    app.workflow(Ambiguous)
    app.dag(order)
    return app


#: Everything that can be started, and the table in which it then has one row more.
STARTS: dict[str, tuple[str, Callable[[Caller, App, Any], Awaitable[Any]]]] = {
    "a job": ("job", lambda caller, app, _: caller.enqueue(app, "send", n=1)),
    "a job with its options": (
        "job",
        lambda caller, app, _: caller.enqueue(
            app, "send", n=1, delay="1h", priority=9, tags=["a"], unique_key="k", deadline="2h", concurrency_key="c"
        ),
    ),
    "a flow": ("run", lambda caller, app, _: caller.start(app, Asking, topic="tides")),
    "a flow with its options": (
        "run",
        lambda caller, app, _: caller.start(app, "Asking", topic="tides", delay="1h", unique_key="k", tags=["a", "b"]),
    ),
    "a flow at a moment": (
        "run",
        lambda caller, app, _: caller.start(app, Asking, at=datetime.now(UTC) + timedelta(hours=1)),
    ),
    "a dag": ("run", lambda caller, app, _: caller.start(app, order, unique_key="k")),
    "a dag later": ("run", lambda caller, app, _: caller.start(app, "order", delay=60, tags=["night"])),
    "an event": ("inbox", lambda caller, app, run: caller.send_event(run, Word(text="a"))),
    "an event later": ("inbox", lambda caller, app, run: caller.send_event(run, Word(text="a"), delay="1h")),
    "a message": (
        "event_log",
        lambda caller, app, _: caller.publish(app, "news", {"text": "größe"}, key="k", headers={"a": "b"}),
    ),
    "a message of bytes": ("event_log", lambda caller, app, _: caller.publish(app, "news", b"\xff\x00%")),
}


async def counts(database: Database) -> dict[str, int]:
    found = {each: await value(database, f"SELECT count(*) FROM tidemill.{each}") for each in TABLES}
    return {**found, "purchase": await value(database, "SELECT count(*) FROM purchase")}


async def test_everything_appears_with_the_callers_commit_and_not_without_it(
    shop: App, database: Database, caller: Caller
) -> None:
    run = await shop.start(Asking, topic="before")
    for name, (table, begin) in STARTS.items():
        before = await counts(database)
        await caller.execute("INSERT INTO purchase VALUES (1)")
        await begin(caller, shop, run)
        await caller.rollback()
        assert await counts(database) == before, f"{name}: rolled back"
        await caller.execute("INSERT INTO purchase VALUES (1)")
        await begin(caller, shop, run)
        assert await counts(database) == before, f"{name}: not committed yet"
        await caller.commit()
        after = {**before, table: before[table] + 1, "purchase": before["purchase"] + 1}
        assert await counts(database) == after, name
        if table == "run":
            await database.fetch("DELETE FROM tidemill.run WHERE id <> $1", run.id)
        elif table == "job":
            await database.fetch("DELETE FROM tidemill.job")
    rows = await database.fetch("SELECT payloads, keys, headers FROM tidemill.event_log ORDER BY id")
    assert [row["payloads"] for row in rows] == [['{"text":"größe"}'.encode()], [b"\xff\x00%"]]
    assert rows[0]["keys"] == ["k"]


async def test_a_run_with_a_delay_begins_when_it_is_due_and_not_when_an_event_arrives(
    shop: App, database: Database
) -> None:
    async with shop.running():
        later = await shop.start(Asking, topic="later", delay="1h")
        await later.send_event(Word(text="early"))
        soon = await shop.start(Asking, topic="soon", delay=0.2, tags=["x"])
        await soon.send_event(Word(text="event"), delay=0.1)
        assert await soon.result(timeout=150) == "soon event"
        row = await database.fetchrow("SELECT seq, start_at, tags FROM tidemill.run WHERE id = $1", soon.id)
        assert (row["start_at"], row["tags"]) == (None, ["x"])  # pyright: ignore[reportOptionalSubscript]
        row = await database.fetchrow("SELECT seq, owner FROM tidemill.run WHERE id = $1", later.id)
        assert (row["seq"], row["owner"]) == (0, None)  # pyright: ignore[reportOptionalSubscript]
        await later.cancel()
        await eventually(lambda: has_state(later, "cancelled"))


async def test_a_run_with_a_delay_that_is_cancelled_is_announced_when_it_can_be_claimed(
    shop: App, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill.engine.runs.run_store.IDLE_POLL", 3600.0)
    async with shop.running():
        later = await shop.start(Asking, topic="later", delay="1h")
        await send_to_run(database, later.id, encode_tick(CancelAsked(0.0, "by the test")))
        other = await shop.start(Asking, topic="other")
        await other.send_event(Word(text="word"))
        assert await other.result(timeout=150) == "other word"
        await database.fetch(BEGIN_NOW, later.id)  # Owners have heard of the cancellation, and found nothing to claim.
        await eventually(lambda: has_state(later, "cancelled"))


async def has_state(run: Any, state: str) -> bool:
    return await run.state() == state


async def test_a_unique_key_gives_the_run_that_has_it_also_later(shop: App) -> None:
    first = await shop.start(Asking, topic="a", unique_key="k", delay="1h")
    second = await shop.start(Asking, topic="b", unique_key="k")
    assert (second.id, second.created) == (first.id, False)


def test_plain_code_starts_and_waits(shop: App) -> None:
    job = shop.enqueue_sync("send", n=3, delay="1h")
    run = shop.start_sync(Asking, Topic(topic="plain"), tags=["p"])
    run.send_event_sync(Word(text="w"))
    dag = shop.start_sync(order)
    shop.publish_sync("news", {"n": 1})
    assert len({job.id, run.id, dag.id}) >= 2
    with pytest.raises(TimeoutError):
        shop.wait_sync(run, timeout=0.05)
    shop.close_sync()


async def test_options_that_do_not_exist_or_do_not_fit_are_errors(shop: App) -> None:
    with pytest.raises(PayloadError, match="has no field 'delya'; did you mean 'delay'"):
        await shop.start(Asking, delya="10m")  # pyright: ignore[reportCallIssue]
    with pytest.raises(PayloadError, match="there is no argument 'tagz'"):
        await shop.start(order, tagz=["a"])
    with pytest.raises(PayloadError, match="'delay' is both an argument of it and an option of start"):
        await shop.start(Ambiguous, delay="10m")
    with pytest.raises(ConfigError, match="delay"):
        await shop.start(Asking, topic="a", delay="soon")
    with pytest.raises(ConfigError, match="either delay= or at="):
        await shop.start(Asking, topic="a", delay=1, at=datetime.now(UTC))
    with pytest.raises(ConfigError, match="no time zone"):
        await shop.start(Asking, topic="a", at=datetime(2030, 1, 1))
    with pytest.raises(ConfigError, match="tags='a' is one string"):
        await shop.start(Asking, topic="a", tags="a")
    with pytest.raises(ConfigError, match="Tidemill's own keys"):
        await shop.start(Asking, topic="a", unique_key="~a")
    run = await shop.start(Ambiguous, Delayed(delay="10m"), delay="1h")
    assert run.created
