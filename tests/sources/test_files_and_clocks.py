"""Files that are replaced, and tables whose times are not those of this machine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest

from tests.support import eventually, value
from tests.support.streams import running_stream
from tidemill.sources import JsonlSource, PostgresSource, Source
from tidemill.sources.base import PageReader, SourceContext
from tidemill.sources.opening import open_reader
from tidemill.store.database import Database
from tidemill.streams import Plan, Stream, task

Ran = Callable[[], Awaitable[list[str]]]


class Keeping(Plan, eligibility="keep"):
    """Stores what each record says."""

    @task
    async def keep(self, ctx: Any) -> None:
        ctx.execute("INSERT INTO kept VALUES ($1)", str(ctx.value["say"]))


@pytest.fixture
async def kept(database: Database) -> Ran:
    await database.fetch("CREATE TABLE kept (say text)")

    async def read() -> list[str]:
        return [row["say"] for row in await database.fetch("SELECT say FROM kept ORDER BY say")]

    return read


def stream_of(source: Source) -> Stream:
    return Stream("s", plans=[Keeping], sources=[source], engines=0)


async def test_a_row_of_the_future_is_delivered_once_and_hides_no_others(
    database: Database, database_url: str, kept: Ran
) -> None:
    await database.fetch("CREATE TABLE said (id serial, at timestamptz, say text)")
    add = "INSERT INTO said (at, say) VALUES (clock_timestamp() + make_interval(secs => $1::float8), $2)"
    await database.fetch(add, -60.0, "a")
    await database.fetch(add, 3600.0, "future")
    source = PostgresSource("said", poll=(0.02, 0.05), overlap="200ms", eligibilities={"keep"})
    async with running_stream(stream_of(source), database_url):
        await eventually(lambda: value(database, "SELECT count(*) = 2 FROM kept"))
        for number in range(10):
            await database.fetch(add, -30.0 + number, f"b{number}")  # The table is copied from elsewhere, later.
            await eventually(lambda count=number + 3: value(database, f"SELECT count(*) >= {count} FROM kept"))
            await asyncio.sleep(0.1)
    async with running_stream(stream_of(source), database_url):
        await database.fetch(add, 0.0, "c")
        await eventually(lambda: value(database, "SELECT count(*) >= 13 FROM kept"))
    assert await kept() == ["a", *(f"b{number}" for number in range(10)), "c", "future"]


async def test_of_a_file_that_was_replaced_by_a_longer_one_a_stream_skips_no_line_silently(
    database: Database, database_url: str, kept: Ran, tmp_path: Path
) -> None:
    file = tmp_path / "said.jsonl"
    file.write_text("".join(json.dumps({"say": f"old {number}"}) + "\n" for number in range(3)))
    source = JsonlSource(file, eligibilities={"keep"})
    async with running_stream(stream_of(source), database_url) as dispatcher:
        await eventually(lambda: value(database, "SELECT count(*) = 3 FROM kept"))
        new = tmp_path / "new"
        new.write_text("".join(json.dumps({"say": f"a new line {number}"}) + "\n" for number in range(30)))
        new.rename(file)
        await eventually(lambda: "another file" in str(dispatcher.health[0].error))
    assert await kept() == ["old 0", "old 1", "old 2"]


async def test_of_a_file_that_was_replaced_by_a_longer_one_a_monitor_reads_all_lines(
    database: Database, tmp_path: Path
) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text('{"id": 1, "at": 1}\n')
    reader = cast(PageReader, open_reader(JsonlSource(file), SourceContext("m", uuid4(), database)))
    first = [page async for page in reader.pages(None, None, 0.0)]
    file.write_text("".join(f'{{"id": {number}, "at": 1, "said": "more"}}\n' for number in range(10, 20)))
    after = [page async for page in reader.pages(None, first[-1].token, 0.0)]
    assert [json.loads(each.payload)["id"] for page in after for each in page.records] == [*range(10, 20)]
