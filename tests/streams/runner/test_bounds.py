"""What streams keep is bounded: in memory by bytes, beside a cursor by what is under way."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.support import eventually, value
from tests.support.streams import publish, running_stream
from tidemill.sources import JsonlSource, LogSource
from tidemill.sources.delivery import Delivery
from tidemill.store.database import Database
from tidemill.store.streams.streams import claim_retries
from tidemill.streams import Plan, Stream, task
from tidemill.streams.runner.dispatcher import Dispatcher
from tidemill.streams.runner.prefetch import Prefetch

MB = 10**6


class Weighing(Plan, eligibility="weigh"):
    """Notes how many messages wait while it runs."""

    dispatcher: Dispatcher
    waiting: list[int]
    gate: asyncio.Event

    @task
    async def weigh(self, ctx: Any) -> None:
        await Weighing.gate.wait()
        Weighing.waiting.append(Weighing.dispatcher.reducer.waiting(0))


class Storing(Plan, eligibility="store"):
    """Stores numbers; the first waits until it may."""

    gate: asyncio.Event

    @task
    async def store(self, ctx: Any) -> None:
        if ctx.value == 0:
            await Storing.gate.wait()
        ctx.execute("INSERT INTO stored VALUES ($1)", ctx.value)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Weighing.waiting = []
    Weighing.gate, Storing.gate = asyncio.Event(), asyncio.Event()


async def test_large_messages_are_not_all_read_ahead(database: Database, database_url: str) -> None:
    await publish(database, "films", ["x" * MB for _ in range(12)])
    source = LogSource("films", eligibilities={"weigh"})
    stream = Stream("s", plans=[Weighing], sources=[source], engines=0, max_concurrency=1, prefetch="8 MB")
    async with running_stream(stream, database_url) as dispatcher:
        Weighing.dispatcher = dispatcher
        Weighing.gate.set()
        await eventually(lambda: len(Weighing.waiting) == 12)
    assert max(Weighing.waiting) <= 4, "half of 8 MB, for the other half is for second attempts"


def test_how_far_is_read_ahead_follows_the_size_of_messages() -> None:
    ahead = Prefetch(1000, 64 * 2**20)
    assert ahead.room(0, 0) == 64, "nothing is known yet: messages may be large"
    for _ in range(20):
        ahead.update_size([Delivery(b"small")])
    assert ahead.room(0, 0) == 1000
    assert ahead.room(800, 4000) == 0, "enough messages"
    ahead.update_size([Delivery(bytes(32 * 2**20))])
    assert ahead.room(0, 0) == 2
    assert ahead.room(1, 63 * 2**20) == 0, "enough bytes"
    assert not ahead.is_low(1, 63 * 2**20)
    assert ahead.is_low(500, 1000)
    ahead.update_size([Delivery(bytes(200 * 2**20))])
    assert ahead.room(0, 0) == 1, "one that is larger than all there is comes alone"


async def test_kept_messages_are_claimed_until_there_are_enough_bytes(database: Database) -> None:
    await database.fetch(
        "INSERT INTO tidemill.stream_retry (stream, source, place, due_at, attempts, at, payload) "
        "SELECT 's', 'posts', n::text, now(), 1, now(), repeat('x', 100)::bytea FROM generate_series(1, 9) AS n"
    )
    sizes = [
        len(await claim_retries(database, "s", {"posts": most}, uuid4(), size=250, lease=60.0)) for most in (9, 2, 9, 9)
    ]
    assert sizes == [3, 2, 3, 1]


async def test_what_is_done_beyond_a_stuck_message_is_one_range_and_not_done_again(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    await database.fetch("CREATE TABLE stored (number int)")
    file = tmp_path / "numbers.jsonl"
    file.write_text("".join(f"{number}\n" for number in range(500)))

    def declared() -> Stream:
        source = JsonlSource(str(file), eligibilities={"store"})
        return Stream("s", plans=[Storing], sources=[source], engines=0, drain=0)

    async with running_stream(declared(), database_url):
        await eventually(lambda: value(database, "SELECT count(*) = 499 FROM stored"))
    (row,) = await database.fetch("SELECT position, done::text FROM tidemill.source_cursor")
    first, last = len("0\n"), file.stat().st_size
    assert (row["position"], row["done"]) == (None, f"{{[{first + 1},{last + 1})}}")
    Storing.gate.set()
    async with running_stream(declared(), database_url):
        await eventually(lambda: value(database, "SELECT count(*) >= 500 FROM stored"))
    rows = await database.fetch("SELECT number FROM stored ORDER BY number")
    assert [row["number"] for row in rows] == list(range(500)), "each once"
    (row,) = await database.fetch("SELECT position, done::text FROM tidemill.source_cursor")
    assert (row["position"], row["done"]) == (last, "{}")
