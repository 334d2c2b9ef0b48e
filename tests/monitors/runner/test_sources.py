"""Where events come from: an HTTP API with all its moods, a file, a table; and what a monitor makes of them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import pytest

from tests.support import eventually, value
from tests.support.ports import closed_port
from tests.support.receiver import Request, receiver
from tests.support.watched import heat_monitor, watching
from tidemill.core.errors import ConfigError
from tidemill.monitors.runner.runner import MonitorDriver
from tidemill.sources import (
    HttpSource,
    JsonlSource,
    LogSource,
    PageReader,
    PostgresSource,
    RecordPage,
    Source,
    SourceError,
)
from tidemill.sources.base import SourceContext, read_event, read_time
from tidemill.sources.opening import open_reader
from tidemill.store.database import Database
from tidemill.store.monitors.monitors import read_monitor
from tidemill.store.monitors.problems import list_problems
from tidemill.store.streams.event_log import Entry, append


async def all_of(pages: AsyncIterator[RecordPage]) -> list[RecordPage]:
    return [page async for page in pages]


class Api:
    """An API that gives the newest events first, and wants a token."""

    def __init__(self, count: int) -> None:
        self.events = [{"id": i, "at": 900.0 + i, "who": "a", "heat": 1} for i in range(count)]
        self.token = "one"
        self.moods: list[tuple[int, bytes]] = []
        self.log_ins = 0

    def __call__(self, request: Request) -> tuple[int, bytes]:
        parts = urlsplit(request.path)
        if parts.path == "/token":
            self.log_ins += 1
            right = json.loads(request.body) == {"username": "u", "password": "p"}
            return (200, json.dumps({"token": self.token}).encode()) if right else (400, b"{}")
        if request.headers.get("Authorization") != f"Token {self.token}":
            return 401, b"{}"
        if self.moods:
            return self.moods.pop(0)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        found = [e for e in self.events if "dateFrom" not in query or e["at"] >= read_time(query["dateFrom"])]
        found = [e for e in found if "who" not in query or e["who"] == query["who"]]
        found.sort(key=lambda e: (-e["at"], -e["id"]))
        begin = int(query["offset"])
        return 200, json.dumps({"results": found[begin : begin + int(query["limit"])]}).encode()


BY_TIME: dict[str, Any] = {"since": "dateFrom", "items": "results"}


def source_of(url: str, **options: Any) -> HttpSource:
    wanted: dict[str, Any] = {
        "token_url": f"{url}/token",
        "username": "u",
        "password": "p",
        "page": 4,
        "of": "who",
        **BY_TIME,
        **options,
    }
    return HttpSource(f"{url}/logs", **wanted)


def reader_of(source: Source) -> Any:
    """A reader as a monitor opens it, for sources that need no database."""
    return open_reader(source, SourceContext("monitor:test", uuid4(), cast("Database", None)))


def ids_of(page: RecordPage) -> list[str]:
    """The ids of the records that can be read."""
    found = []
    for record in page.records:
        with suppress(ValueError):
            found.append(read_event(record).id)
    return found


async def test_all_pages_are_read_over_one_connection_and_only_the_last_settles() -> None:
    api = Api(10)
    with receiver(api) as server:
        source = reader_of(source_of(server.url))
        first = await all_of(source.pages(903.0, None, 1000.0))
        pages = await all_of(source.pages(903.0, None, 1000.0))
        await source.close()
    assert [ids_of(page) for page in first] == [["6", "7", "8", "9"], ["3", "4", "5"], []], "3 may be all it gives"
    assert [ids_of(page) for page in pages] == [["6", "7", "8", "9"], ["3", "4", "5"]]
    assert [page.complete for page in pages] == [False, True]
    assert api.log_ins == 1
    assert len({request.connection for request in server.requests}) == 1


async def test_a_token_that_is_no_longer_taken_is_replaced_once() -> None:
    api = Api(3)
    with receiver(api) as server:
        source = reader_of(source_of(server.url))
        await all_of(source.pages(None, None, 1000.0))
        api.token = "two"
        assert len((await all_of(source.pages(None, None, 1000.0)))[0].records) == 3
        assert api.log_ins == 2
        wrong = reader_of(source_of(server.url, password="wrong"))
        with pytest.raises(SourceError, match="gave no token"):
            await all_of(wrong.pages(None, None, 1000.0))
        await source.close()
        await wrong.close()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ((500, b"oops"), "answered 500: oops"),
        ((200, b"<html>"), "not the JSON"),
        ((200, b'{"detail": 1}'), "has no 'results'"),
        ((200, b'{"results": 7}'), "not the JSON"),
    ],
)
async def test_an_answer_that_makes_no_sense_is_an_error_that_says_so(answer: tuple[int, bytes], why: str) -> None:
    api = Api(3)
    api.moods = [answer]
    with receiver(api) as server:
        source = reader_of(source_of(server.url))
        with pytest.raises(SourceError, match=why):
            await all_of(source.pages(None, None, 1000.0))
        assert len((await all_of(source.pages(None, None, 1000.0)))[0].records) == 3
        await source.close()


async def test_a_server_that_is_not_there_is_an_error_that_says_so() -> None:
    with closed_port() as port, pytest.raises(SourceError, match="does not answer"):
        await all_of(reader_of(HttpSource(f"http://127.0.0.1:{port}")).pages(None, None, 1000.0))


async def test_what_is_secret_in_an_address_is_in_no_error() -> None:
    with receiver(lambda request: (500, b"no")) as server:
        url = f"{server.url}/k3y/?key=k3y"
        with pytest.raises(SourceError, match=r"http://127.0.0.1:\d+ answered 500: no") as answered:
            await all_of(reader_of(HttpSource(url)).pages(None, None, 1000.0))
        source = reader_of(HttpSource(server.url, token_url=url, username="u", password="p"))
        with pytest.raises(SourceError, match=r"http://127.0.0.1:\d+ gave no token") as refused:
            await all_of(source.pages(None, None, 1000.0))
    with closed_port() as port, pytest.raises(SourceError, match=r"http://127.0.0.1:\d+ does not answer") as absent:
        await all_of(reader_of(HttpSource(f"http://127.0.0.1:{port}/k3y/?key=k3y")).pages(None, None, 1000.0))
    with pytest.raises(ConfigError, match="no user name into the address") as named:
        HttpSource("http://u:k3y@127.0.0.1/")
    assert not any("k3y" in str(each.value) for each in (answered, refused, absent, named))


async def test_one_unreadable_event_does_not_cost_its_page(database: Database) -> None:
    rows = [{"id": 1, "at": 990.0, "who": "a", "heat": 1}, {"at": 991.0}, {"id": 3, "at": "yesterday"}, 7]
    with receiver(lambda request: (200, json.dumps({"results": rows}).encode())) as server:
        async with watching(database, heat_monitor(HttpSource(server.url, **BY_TIME))) as watcher:
            await watcher.one_tick()
            await watcher.reader.close()
    assert (await read_monitor(database, "heat"))["events"] == 1
    problems = await list_problems(database, "heat")
    assert [(p["place"], p["count"]) for p in problems] == [("source", 3)]


async def test_a_monitor_lives_through_every_mood_of_an_api(database: Database) -> None:
    api = Api(30)
    with receiver(api) as server:
        async with watching(database, heat_monitor(source_of(server.url))) as watcher:
            api.moods = [(200, json.dumps({"results": api.events[10:14]}).encode()), (500, b""), (200, b"garbage")]
            api.moods += [(401, b""), (503, b"")]
            for _ in range(8):
                await watcher.one_tick()
            await watcher.reader.close()
    assert (await read_monitor(database, "heat"))["events"] == 30


async def test_the_past_of_one_entity_is_read_from_where_it_stopped() -> None:
    api = Api(10)
    with receiver(api) as server:
        source = reader_of(source_of(server.url))
        first = await anext(source.history("a", 0.0, None))
        rest = await all_of(source.history("a", 0.0, first.token))
        await source.close()
    assert ids_of(first) == ["6", "7", "8", "9"]
    assert [id for page in rest for id in ids_of(page)] == ["2", "3", "4", "5", "0", "1"]


async def test_a_file_is_read_from_where_it_stopped_and_half_a_line_waits(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    source = reader_of(JsonlSource(file, page=2))
    with pytest.raises(SourceError, match="no such file"):
        await all_of(source.pages(None, None, 0.0))
    file.write_text('{"id": 1, "at": 1}\n{"id": 2, "at": "2026-01-05T08:00:00Z"}\nrubbish\n\n{"id": 3, "at"')
    pages = await all_of(source.pages(None, None, 0.0))
    assert [ids_of(page) for page in pages] == [["1", "2"], []]
    assert [record.payload for record in pages[1].records] == [b"rubbish"]
    with file.open("a") as more:
        more.write(": 3}\n")
    pages = await all_of(source.pages(None, pages[1].token, 0.0))
    assert [ids_of(page) for page in pages] == [["3"]]


async def test_a_table_is_read_by_time_and_id(database: Database, database_url: str) -> None:
    await database.fetch("CREATE TABLE reading (id int PRIMARY KEY, at timestamptz, who text, heat float8)")
    await database.fetch(
        "INSERT INTO reading SELECT i, to_timestamp(900 + i / 4), 'a', 1 FROM generate_series(0, 19) AS i"
    )
    source = PostgresSource("reading", url=database_url, page=3, of="who")
    reader = reader_of(source)
    pages = await all_of(reader.pages(902.0, None, 1000.0))
    await reader.close()
    assert [id for page in pages for id in ids_of(page)] == [str(i) for i in range(8, 20)]
    async with watching(database, heat_monitor(source)) as watcher:
        await watcher.one_tick()
        more = "INSERT INTO reading VALUES (20, to_timestamp(904), 'a', 1), (21, to_timestamp(906), 'b', 1)"
        await database.fetch(more)
        await watcher.one_tick()
        await watcher.reader.close()
    assert (await read_monitor(database, "heat"))["events"] == 22
    broken = reader_of(PostgresSource("no_such_table", url=database_url))
    with pytest.raises(SourceError, match="cannot be read"):
        await all_of(broken.pages(None, None, 0.0))
    await broken.close()
    with pytest.raises(ConfigError, match="not a valid name of a table"):
        PostgresSource("reading; DROP TABLE x", url=database_url)


async def test_a_monitor_reads_the_tables_of_its_own_database_without_an_address(database: Database) -> None:
    await database.fetch("CREATE TABLE reading (id uuid DEFAULT gen_random_uuid(), at timestamptz, who text, heat int)")
    some = "SELECT to_timestamp(900 + i), 'a', 1 FROM generate_series(1, 7) AS i"
    await database.fetch(f"INSERT INTO reading (at, who, heat) {some}")
    async with watching(database, heat_monitor(PostgresSource("reading", page=3))) as watcher:
        await watcher.one_tick()
        await database.fetch("INSERT INTO reading (at, who, heat) VALUES (to_timestamp(906.5), 'a', 1), (NULL, 'a', 1)")
        await watcher.one_tick()
        await watcher.reader.close()
        assert (await read_monitor(database, "heat"))["events"] == 8, "the database is still open"


async def test_messages_of_the_log_are_events_of_a_monitor_and_each_is_acknowledged_once_it_is_stored(
    database: Database,
) -> None:
    await _publish(database, [{"id": i, "at": 900 + i, "who": "a", "heat": 1} for i in range(7)])
    async with watching(database, heat_monitor(LogSource("heats", page=3))) as watcher:
        await eventually(lambda: _ticked(watcher, database, 7))
        await _publish(database, [{"id": 7, "at": 950, "who": "a", "heat": 1}, "nonsense", {"who": "a", "heat": 1}])
        await eventually(lambda: _ticked(watcher, database, 9))
        await watcher.reader.close()
    async with watching(database, heat_monitor(LogSource("heats", page=3))) as watcher:
        await watcher.one_tick()
        await watcher.reader.close()
    row = await read_monitor(database, "heat")
    assert (row["events"], row["duplicates"]) == (9, 0)
    assert await value(database, "SELECT count(*) FROM tidemill.log_range") == 0


async def test_a_page_of_messages_that_could_not_be_stored_is_given_again(database: Database) -> None:
    await _publish(database, [{"id": i, "at": 900 + i, "who": "a", "heat": 1} for i in range(3)])
    reader = open_reader(LogSource("heats"), SourceContext("monitor:heat", uuid4(), database))
    assert isinstance(reader, PageReader)

    async def first_page() -> Any:  # A transaction elsewhere in the cluster may hold the log back.
        pages = reader.pages(None, None, 1000.0)
        found = await anext(pages, None)
        await pages.aclose()  # pyright: ignore[reportAttributeAccessIssue]
        return found

    first = await eventually(first_page)
    again = await all_of(reader.pages(None, None, 1000.0))
    await reader.close()
    assert [ids_of(page) for page in [first, *again]] == [["0", "1", "2"], ["0", "1", "2"]]
    assert await value(database, "SELECT count(*) FROM tidemill.log_range") == 0


async def _publish(database: Database, values: list[Any]) -> None:
    async with database.transaction() as connection:
        await append(database, connection, [Entry("heats", json.dumps(value).encode()) for value in values])


async def _ticked(watcher: MonitorDriver, database: Database, events: int) -> bool:
    await watcher.one_tick()
    return (await read_monitor(database, "heat"))["events"] == events


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2026-01-05T08:00:00Z", 1767600000.0), (12.5, 12.5), ("2026-01-05T08:00:00.25", 1767600000.25)],
)
def test_times_are_read_as_they_are_written(text: Any, seconds: float) -> None:
    assert read_time(text) == seconds
