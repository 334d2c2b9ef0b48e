"""A database that is away or full: streams pause, take no more than they can settle, and go on without loss."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.support import eventually, value
from tests.support.streams import all_read, publish, running_stream
from tests.support.wire import Wire
from tidemill.core.retry import retry
from tidemill.sources import JsonlSource, LogSource
from tidemill.store.database import Database
from tidemill.streams import Plan, Stream, task

ONCE = retry(1)


class Failing(Plan, eligibility="fail"):
    """Every message fails for good, so that each has an outcome that must be stored."""

    begun: list[int]
    gate: asyncio.Event

    @task
    async def fail(self, ctx: Any) -> None:
        Failing.begun.append(ctx.value)
        await Failing.gate.wait()
        raise ValueError("bad news")


def stream_of(source: Any) -> Stream:
    Failing.begun, Failing.gate = [], asyncio.Event()
    return Stream("s", plans=[Failing], sources=[source], engines=0, max_concurrency=4, retry=ONCE)


async def test_an_unreachable_database_pauses_and_goes_on_without_loss(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "posts.jsonl"
    file.write_text("".join(f"{number}\n" for number in range(40)))
    stream = stream_of(JsonlSource(str(file), eligibilities=frozenset({"fail"})))
    async with Wire(database_url).open() as wire, running_stream(stream, wire.url) as dispatcher:
        await eventually(lambda: len(Failing.begun) == 4)
        wire.shut()
        Failing.gate.set()
        await eventually(lambda: len(dispatcher.reducer._committing) == 4)
        tries = wire.refused
        await eventually(lambda: wire.refused > tries + 5, what="it has tried again and again")
        assert Failing.begun == [0, 1, 2, 3], "nothing more is taken than can be settled"
        assert await value(database, "SELECT count(*) FROM tidemill.dead_letter") == 0
        wire.mend()
        await eventually(lambda: value(database, "SELECT count(*) = 40 FROM tidemill.dead_letter"))
    assert Failing.begun == list(range(40)), "each once"
    assert await value(database, "SELECT count(DISTINCT place) FROM tidemill.dead_letter") == 40


async def test_the_log_is_read_on_after_the_database_was_away(database: Database, database_url: str) -> None:
    stream = stream_of(LogSource("posts", eligibilities=frozenset({"fail"})))
    Failing.gate.set()
    async with Wire(database_url).open() as wire, running_stream(stream, wire.url):
        await publish(database, "posts", range(20))
        await eventually(lambda: len(Failing.begun) >= 4)
        wire.shut()
        await publish(database, "posts", range(20, 40))
        await eventually(lambda: wire.refused > 3)
        wire.mend()
        await all_read(database, "posts")
    assert set(Failing.begun) == set(range(40))
    assert await value(database, "SELECT count(DISTINCT place) FROM tidemill.dead_letter") == 40


async def test_an_unwritable_database_pauses_and_goes_on_without_loss(database: Database, database_url: str) -> None:
    """Outcomes that cannot be stored hold their slots, so no more is taken than can be settled."""
    await database.fetch("CREATE SEQUENCE tries")  # which counts on though a transaction is undone
    async with running_stream(stream_of(LogSource("posts")), database_url) as dispatcher:
        await database.fetch(
            "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM nextval('tries'); "
            "RAISE EXCEPTION 'No space left on device' USING ERRCODE = 'disk_full'; END $$"
        )
        await database.fetch(
            "CREATE TRIGGER no_room BEFORE INSERT ON tidemill.dead_letter EXECUTE FUNCTION full_disk()"
        )
        await publish(database, "posts", [b"{bad"] * 10)
        await eventually(lambda: len(dispatcher.reducer._committing) == 4)
        await eventually(lambda: value(database, "SELECT last_value > 3 FROM tries"), what="it has tried again")
        assert dispatcher.reducer.busy == 4
        assert dispatcher.reducer.waiting(0) == 6
        await database.fetch("DROP TRIGGER no_room ON tidemill.dead_letter")
        await eventually(lambda: value(database, "SELECT count(*) = 10 FROM tidemill.dead_letter"))
        await all_read(database, "posts")
