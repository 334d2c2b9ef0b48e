"""A file, a table or an API is read by one dispatcher at a time; the next one goes on where it stopped."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.support import eventually
from tests.support.receiver import Request, receiver
from tests.support.streams import running_stream
from tidemill.sources import HttpSource, JsonlSource, PostgresSource, Source
from tidemill.store.database import Database
from tidemill.streams import Plan, Stream, task


class Noting(Plan, eligibility="note"):
    """Notes which numbers ran, however often; none passes a gate that is closed."""

    ran: list[int]
    gate: asyncio.Event

    @task
    async def note(self, ctx: Any) -> None:
        await Noting.gate.wait()
        await asyncio.sleep(0.001)
        Noting.ran.append(ctx.value["id"])


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Noting.ran, Noting.gate = [], asyncio.Event()
    Noting.gate.set()


class Feed:
    """Numbers in a file, a table or an API, and a source that reads them."""

    def __init__(self, kind: str, database: Database, folder: Path, url: Callable[[], str]) -> None:
        self.kind, self.database, self.file, self.url = kind, database, folder / "numbers.jsonl", url
        self.numbers: list[int] = []

    async def add(self, numbers: range) -> None:
        self.numbers += numbers
        if self.kind == "file":
            with self.file.open("a") as file:
                file.writelines(json.dumps({"id": number}) + "\n" for number in numbers)
        elif self.kind == "table":
            await self.database.fetch("CREATE TABLE IF NOT EXISTS number (id int, at timestamptz)")
            await self.database.fetch(
                "INSERT INTO number SELECT i, clock_timestamp() FROM unnest($1::int[]) AS i", list(numbers)
            )

    def source(self, **options: Any) -> Source:
        common = {"name": "feed", "page": 20, "eligibilities": frozenset({"note"}), **options}
        if self.kind == "file":
            return JsonlSource(self.file, **common)
        if self.kind == "table":
            return PostgresSource("number", poll=(0.02, 0.1), **common)
        return HttpSource(self.url(), poll=(0.02, 0.1), **common)

    def answer(self, request: Request) -> tuple[int, bytes]:
        query = {name: values[0] for name, values in parse_qs(urlsplit(request.path).query).items()}
        begin = int(query.get("cursor", 0))
        found = self.numbers[begin : begin + int(query["limit"])]
        return 200, json.dumps({"items": [{"id": each} for each in found], "cursor": begin + len(found)}).encode()


def stream_of(feed: Feed, **options: Any) -> Stream:
    return Stream("s", plans=[Noting], sources=[feed.source(**options)], engines=0, max_concurrency=8)


@pytest.mark.parametrize("kind", ["file", "table", "api"])
async def test_two_dispatchers_do_not_both_run_what_one_of_them_reads(
    database: Database, database_url: str, tmp_path: Path, kind: str
) -> None:
    with receiver(lambda request: feed.answer(request)) as server:
        feed = Feed(kind, database, tmp_path, lambda: server.url)
        await feed.add(range(100))
        async with running_stream(stream_of(feed), database_url) as second_after:
            async with running_stream(stream_of(feed), database_url) as waiting:
                await feed.add(range(100, 200))
                await eventually(lambda: len(Noting.ran) >= 200, what="all have run")
                assert [each.reducer.counts[0].arrived for each in (second_after, waiting)] == [200, 0]
            async with running_stream(stream_of(feed), database_url) as next_reader:
                second_after.life.stop()
                await feed.add(range(200, 300))
                await eventually(lambda: len(Noting.ran) >= 300, what="the other has gone on")
                assert next_reader.reducer.counts[0].arrived > 0
    assert sorted(Noting.ran) == list(range(300)), "each once"


async def test_a_dispatcher_that_lost_its_lease_drops_what_it_has_read_ahead(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    feed = Feed("file", database, tmp_path, str)
    await feed.add(range(100))
    Noting.gate.clear()
    async with running_stream(stream_of(feed, lease=1.0), database_url) as first:
        await eventually(lambda: first.reducer.busy == 8)
        async with running_stream(stream_of(feed, lease=30.0), database_url) as second:
            taken = "UPDATE tidemill.source_cursor SET owner = $1, held_until = now() + interval '1 minute'"
            await database.fetch(taken, second.id)
            await eventually(lambda: not first.reducer.waiting(0), what="the first has dropped what waits")
            Noting.gate.set()
            await eventually(lambda: len({*Noting.ran}) == 100)
            await eventually(lambda: second.reducer.counts[0].done == 100)
    assert len(Noting.ran) <= 108, "only what was in flight ran twice"
