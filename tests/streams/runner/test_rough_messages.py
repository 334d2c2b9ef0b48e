"""Messages that end badly in unusual ways: each is given up by itself, and no other is held up by it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from structlog.testing import capture_logs

from tests.support import eventually, locked_out, value
from tests.support.operate_streams import replay_dead
from tests.support.streams import all_read, publish, running_stream
from tidemill.core.retry import retry
from tidemill.engine.application.load_app import load_module
from tidemill.sources import LogSource
from tidemill.sources.delivery import Delivery
from tidemill.store.database import Database
from tidemill.store.streams.dead_letters import DeadFilter, count_dead
from tidemill.store.streams.streams import RENEW_RETRIES, claim_retries
from tidemill.streams import Batch, Filtered, Plan, Stream, task
from tidemill.streams.runner.retries import RetryFeeder

ONCE = retry(1)


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class InLoop(Plan, eligibility="loop"):
    @task
    async def run(self, ctx: Any) -> None:
        if ctx.value == "bad":
            raise Speechless


class InThread(Plan, eligibility="thread"):
    @task
    def run(self, ctx: Any) -> None:
        if ctx.value == "bad":
            next(iter(()))


class Together(Plan, eligibility="batch"):
    @task(batch=Batch(max_size=1))
    def run(self, items: Any) -> list[None]:
        if items[0].value == "bad":
            next(iter(()))
        return [None]


class Noting(Plan, eligibility="note"):
    seen: list[Any]

    @task
    async def run(self, ctx: Any) -> None:
        Noting.seen.append(ctx.value)


def stream_of(plan: type[Plan], **options: Any) -> Stream:
    source = LogSource("posts", eligibilities={str(plan.eligibility)}, **options)
    return Stream("s", plans=[plan], sources=[source], engines=0, retry=ONCE)


async def dead(database: Database) -> list[tuple[bytes, str]]:
    return [(row["payload"], row["kind"]) for row in await database.fetch("SELECT * FROM tidemill.dead_letter")]


@pytest.mark.parametrize(
    ("plan", "kind"), [(InLoop, "Speechless"), (InThread, "RuntimeError"), (Together, "RuntimeError")]
)
async def test_an_error_that_cannot_be_told_as_it_is_gives_its_message_up(
    database: Database, database_url: str, plan: type[Plan], kind: str
) -> None:
    """One without words; and a StopIteration, which no future carries out of a thread."""
    async with running_stream(stream_of(plan), database_url):
        await publish(database, "posts", ["good", "bad", "good"])
        await all_read(database, "posts")
    assert await dead(database) == [(b'"bad"', kind)]


HALF = """
from tidemill.core.retry import retry
from tidemill.streams import Plan, Stream, task
from tidemill.sources import LogSource

class Half(Plan, eligibility="a"):
    @task
    async def run(self, ctx):
        if ctx.value == "bad":
            raise ValueError("half a character: " + chr(0xD800))

stream = Stream("halves", plans=[Half], sources=[LogSource("posts", eligibilities={"a"})], engines=1,
    retry=retry(1))
"""


async def test_an_error_with_half_a_character_in_it_takes_no_other_answer_along(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "half_app.py"
    file.write_text(HALF)
    try:
        stream = load_module(str(file)).stream
        async with running_stream(stream, database_url, target=str(file)):
            await publish(database, "posts", ["good", "bad", "good"])
            await all_read(database, "posts")
    finally:
        sys.modules.pop("half_app", None)
    assert await dead(database) == [(b'"bad"', "ValueError")]


async def test_a_message_kept_for_a_plan_that_is_gone_is_not_dropped(database: Database, database_url: str) -> None:
    await database.fetch(
        "INSERT INTO tidemill.dead_letter (stream, source, place, why, attempts, at, plans, error, payload) "
        "VALUES ('s', 'posts', '0:1', 'failed', 1, now(), '{OldName}', 'bad', '\\x31')"
    )
    assert await replay_dead(database, DeadFilter(stream="s")) == 1
    async with running_stream(stream_of(InLoop), database_url):
        await eventually(lambda: dead(database))
    (row,) = await database.fetch("SELECT plans, kind, error FROM tidemill.dead_letter")
    assert (row["plans"], row["kind"]) == (["OldName"], "PlanGone")
    assert "no longer has a plan of this name" in row["error"]


async def test_dead_letters_are_found_by_their_error_as_it_is_written(database: Database) -> None:
    for error in ("order_id is 100% wrong", "orderXid is 100 times wrong", "ORDER_ID is \\"):
        await database.fetch(
            "INSERT INTO tidemill.dead_letter (stream, source, place, why, attempts, at, error, payload) "
            "VALUES ('s', 'posts', '0:1', 'failed', 1, now(), $1, '\\x31')",
            error,
        )
    found = {text: await count_dead(database, DeadFilter(error=text)) for text in ("Order_Id", "100%", "\\", "%")}
    assert found == {"Order_Id": 2, "100%": 1, "\\": 1, "%": 1}


@pytest.mark.parametrize("settings", [{"disabled": True}, {"disabled_for": ("posts",)}])
async def test_a_message_kept_for_a_plan_that_is_switched_off_is_not_dropped(
    database: Database, database_url: str, settings: dict[str, Any]
) -> None:
    await database.fetch(
        "INSERT INTO tidemill.dead_letter (stream, source, place, why, attempts, at, plans, error, payload) "
        "VALUES ('s', 'posts', '0:1', 'failed', 1, now(), '{InLoop}', 'bad', '\\x31')"
    )
    assert await replay_dead(database, DeadFilter(stream="s")) == 1
    source = LogSource("posts", eligibilities={str(InLoop.eligibility)})
    stream = Stream("s", plans=[InLoop], sources=[source], engines=0, plan_settings={"InLoop": settings})
    async with running_stream(stream, database_url):
        await eventually(lambda: dead(database))
    (row,) = await database.fetch("SELECT plans, kind, error FROM tidemill.dead_letter")
    assert (row["plans"], row["kind"]) == (["InLoop"], "PlanSwitchedOff")
    assert "switch it on again" in row["error"]


async def test_kept_messages_of_a_source_that_is_gone_wait_for_it_and_are_told_of_once(
    database: Database, database_url: str
) -> None:
    async def keep(source: str) -> None:
        await database.fetch(
            "INSERT INTO tidemill.dead_letter (stream, source, place, why, attempts, at, error, payload) "
            "VALUES ('s', $1, '0:1', 'failed', 1, now(), 'bad', '\\x31')", source,
        )  # fmt: skip
        await replay_dead(database, DeadFilter(stream="s"))

    Noting.seen = []
    await keep("removed")
    with capture_logs() as lines:
        async with running_stream(stream_of(Noting), database_url):
            for number in (1, 2):
                await keep("posts")
                await keep("removed")
                await eventually(lambda number=number: len(Noting.seen) == number)
    told = [line["source"] for line in lines if "a source that the stream no longer has" in line["event"]]
    assert told == ["removed"]
    rows = await database.fetch("SELECT source, claimed_by FROM tidemill.stream_retry")
    assert [tuple(row) for row in rows] == [("removed", None)] * 3


async def test_messages_that_were_taken_in_an_answer_that_never_came_are_taken_again(
    database: Database, database_url: str
) -> None:
    """What a dispatcher owns according to the table, and not according to itself, is not kept from others for ever."""
    Noting.seen = []
    async with running_stream(stream_of(Noting, lease=1.0), database_url) as dispatcher:
        async with database.transaction() as lost:
            await lost.execute("SELECT FROM tidemill.log_group FOR UPDATE")
            await publish(database, "posts", [1, 2])
            await lost.execute(TAKEN, dispatcher.consumers[0]._owner)  # pyright: ignore[reportAttributeAccessIssue]
        await eventually(lambda: sorted(Noting.seen) == [1, 2])
        await all_read(database, "posts")


TAKEN = """
WITH taken AS (
    INSERT INTO tidemill.log_range (name, topic, from_xid, from_id, to_xid, to_id, owner, lease_until)
    SELECT g.name, g.topic, g.xid, g.id, e.xid, e.id, $1, now() + interval '1 second'
    FROM tidemill.log_group AS g JOIN tidemill.event_log AS e USING (topic) RETURNING to_xid, to_id)
UPDATE tidemill.log_group SET xid = to_xid, id = to_id FROM taken
"""


async def test_kept_messages_that_were_claimed_in_an_answer_that_never_came_are_not_kept_claimed(
    database: Database,
) -> None:
    me = uuid4()
    await database.fetch(
        "INSERT INTO tidemill.stream_retry (stream, source, place, due_at, attempts, at, payload) "
        "SELECT 's', 'posts', n::text, now(), 1, now(), '' FROM generate_series(1, 2) AS n"
    )
    known, unknown = await claim_retries(database, "s", {"posts": 2}, me, size=1000, lease=0.0)
    assert [row["id"] for row in await database.fetch(RENEW_RETRIES, me, 60.0, [known["id"]])] == [known["id"]]
    again = await claim_retries(database, "s", {"posts": 2}, uuid4(), size=1000, lease=60.0)
    assert [row["id"] for row in again] == [unknown["id"]]


async def test_what_a_cancelled_flush_was_dropping_is_dropped_by_the_next(
    database: Database, database_url: str
) -> None:
    """A dispatcher that ends cancels its flushes: an attempt that is over must not be made again by the next one."""
    await database.fetch(
        "INSERT INTO tidemill.stream_retry (stream, source, place, due_at, attempts, at, payload) "
        "VALUES ('s', 'posts', '0:1', now() + interval '1 hour', 1, now(), '')"
    )
    row = await value(database, "SELECT id FROM tidemill.stream_retry")
    async with running_stream(stream_of(Noting), database_url) as dispatcher:
        feeder = RetryFeeder(database, dispatcher)
        feeder.ack(Delivery(b"", 1, retry_row=row))
        async with database.transaction() as other:
            await other.execute("SELECT FROM tidemill.stream_retry FOR UPDATE")
            flushing = asyncio.create_task(feeder.flush())
            await eventually(lambda: locked_out(database, "%stream_retry%"))
            flushing.cancel()
            await asyncio.wait([flushing])
        await feeder.give_back([])
    assert await value(database, "SELECT count(*) FROM tidemill.stream_retry") == 0


class Chosen:
    """A decoded value whose field is the user's code."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload

    @property
    def plans(self) -> str:
        if self._payload == b"bad":
            raise LookupError("no plans here")
        return "note"


def itself(payload: bytes) -> Any:
    return Chosen(payload)


@pytest.mark.parametrize(
    ("decoder", "bad", "good", "error"),
    [
        (None, b'{"plans": 5}', b'{"plans": ["note"]}', "5 names no plans"),
        (itself, b"bad", b"good", "no plans here"),
    ],
)
async def test_a_message_that_names_its_plans_in_a_strange_way_is_answered(
    database: Database, database_url: str, decoder: Any, bad: bytes, good: bytes, error: str
) -> None:
    Noting.seen = []
    stream = stream_of(Noting, eligibilities_from="field:plans", decoder=decoder)
    async with running_stream(stream, database_url):
        await publish(database, "posts", [bad, good])
        await all_read(database, "posts")
    assert len(Noting.seen) == 1
    assert error in await value(database, "SELECT error FROM tidemill.dead_letter WHERE why = 'undecodable'")


class Unreadable:
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Filtering(Plan, eligibility="filter"):
    @task
    async def run(self, ctx: Any) -> None:
        raise Filtered(Unreadable())  # pyright: ignore[reportArgumentType]


async def test_a_reason_that_cannot_be_read_filters_its_message_all_the_same(
    database: Database, database_url: str
) -> None:
    async with running_stream(stream_of(Filtering), database_url):
        await publish(database, "posts", [1])
        await all_read(database, "posts")
    assert await dead(database) == []


class Dated(LogSource, frozen=True, tag="dated"):
    """Its messages carry times of a producer that counts nanoseconds, and ids with a NUL."""

    def consumer(self, context: Any) -> Any:
        consumer = super().consumer(context)
        poll = consumer.poll

        async def dated(most: int) -> list[Delivery]:
            deliveries = await poll(most)
            for each in deliveries:
                each.at, each.headers = 1.7e15, (("id", b"a\x00b"),)
            return deliveries

        consumer.poll = dated
        return consumer


async def test_a_message_with_a_time_and_an_id_that_no_database_stores_is_given_up_by_itself(
    database: Database, database_url: str
) -> None:
    source = Dated("posts", eligibilities=frozenset({"loop"}), message_id="header:id", delay="1ms")
    async with running_stream(Stream("s", plans=[InLoop], sources=[source], engines=0, retry=ONCE), database_url):
        await publish(database, "posts", ["bad"])
        await all_read(database, "posts")
        await publish(database, "posts", ["good"])
        await all_read(database, "posts")
    assert await dead(database) == [(b'"bad"', "Speechless")]
    assert await value(database, "SELECT message_id FROM tidemill.dead_letter") == "a\\x00b"
