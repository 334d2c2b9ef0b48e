"""APIs as they are: pages smaller than asked for, pages without records, records without an id."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.support import eventually, value
from tests.support.receiver import Request, receiver
from tests.support.streams import running_stream
from tidemill.sources import HttpSource
from tidemill.sources.base import read_time
from tidemill.store.database import Database
from tidemill.streams import Plan, Stream, task

Kept = Callable[[], Awaitable[list[str]]]


class Keeping(Plan, eligibility="keep"):
    """Stores what each record says."""

    @task
    async def keep(self, ctx: Any) -> None:
        ctx.execute("INSERT INTO kept VALUES ($1)", str(ctx.value["say"]))


@pytest.fixture
async def kept(database: Database) -> Kept:
    await database.fetch("CREATE TABLE kept (say text)")

    async def read() -> list[str]:
        return [row["say"] for row in await database.fetch("SELECT say FROM kept ORDER BY say")]

    return read


def query_of(request: Request) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(request.path).query).items()}


@asynccontextmanager
async def reading(url: str, database_url: str, **options: Any) -> AsyncIterator[None]:
    source = HttpSource(url, poll=(0.02, 0.1), name="api", eligibilities={"keep"}, **options)
    async with running_stream(Stream("s", plans=[Keeping], sources=[source], engines=0), database_url):
        yield


class TimeApi:
    """An API that is asked by time; it gives at most `most` records at once."""

    def __init__(self, *, most: int = 1000, newest_first: bool = True) -> None:
        self.records: list[dict[str, Any]] = []
        self.requests = 0
        self._most, self._newest_first = most, newest_first

    def __call__(self, request: Request) -> tuple[int, bytes]:
        self.requests += 1
        query = query_of(request)
        since = read_time(query.get("from", "1970-01-01"))
        found = sorted((each for each in self.records if each["made"] >= since), key=lambda each: each["made"])
        found = found[::-1] if self._newest_first else found
        begin = int(query["offset"])
        return 200, json.dumps({"results": found[begin : begin + min(self._most, int(query["limit"]))]}).encode()

    def add(self, say: str, at: float, **more: Any) -> None:
        self.records.append({"id": say, "say": say, "at": at, "made": at, **more})


@pytest.mark.parametrize("newest_first", [True, False])
async def test_every_record_of_an_api_that_gives_smaller_pages_than_asked_for_is_read(
    database: Database, database_url: str, kept: Kept, newest_first: bool
) -> None:
    api = TimeApi(most=3, newest_first=newest_first)
    for number in range(10):
        api.add(f"{number:02}", 1000.0 + number)
    with receiver(api) as server:
        order = "newest" if newest_first else "oldest"
        async with reading(server.url, database_url, since="from", items="results", order=order):
            await eventually(lambda: value(database, "SELECT count(*) = 10 FROM kept"))
    assert await kept() == [f"{number:02}" for number in range(10)]


async def test_a_record_without_an_id_hides_no_older_ones_that_come_later(
    database: Database, database_url: str, kept: Kept
) -> None:
    """The API lags: what it gives is an hour old."""
    api = TimeApi()
    api.add("a", 1000.0)
    api.add("no id", 1001.0, id=None)
    with receiver(api) as server:
        async with reading(server.url, database_url, since="from", items="results"):
            await eventually(lambda: value(database, "SELECT count(*) = 2 FROM kept"))
            api.add("b", 1002.0)
            await eventually(lambda: value(database, "SELECT count(*) = 3 FROM kept"))
        async with reading(server.url, database_url, since="from", items="results"):
            api.add("c", 1003.0)
            await eventually(lambda: value(database, "SELECT count(*) >= 4 FROM kept"))
    assert await kept() == ["a", "b", "c", "no id"], "each once, also over a restart"


async def test_an_api_with_a_cursor_may_give_pages_without_records(
    database: Database, database_url: str, kept: Kept
) -> None:
    pages = {"": ([{"say": "a"}], "1"), "1": ([], "2"), "2": ([], "3"), "3": ([{"say": "b"}], "4"), "4": ([], "4")}

    def answer(request: Request) -> tuple[int, bytes]:
        items, cursor = pages[query_of(request).get("cursor", "")]
        return 200, json.dumps({"items": items, "cursor": cursor}).encode()

    with receiver(answer) as server:
        async with reading(server.url, database_url):
            await eventually(lambda: value(database, "SELECT count(*) = 2 FROM kept"))
    assert await kept() == ["a", "b"]
