"""One declaration for streams and monitors: tables and APIs as messages, NATS and Redis as events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import pytest

from tests.support import eventually, value
from tests.support.brokers import Nats, Redis
from tests.support.receiver import Request, receiver
from tests.support.streams import running_stream
from tests.support.watched import heat_monitor, watching
from tidemill.core.errors import ConfigError
from tidemill.engine.outbound_http import allowing_hosts
from tidemill.monitors import Monitor
from tidemill.sources import HttpSource, JsonlSource, NatsSource, PostgresSource, RedisSource, Source
from tidemill.sources.base import SourceContext, read_time
from tidemill.sources.opening import open_reader
from tidemill.store.database import Database
from tidemill.store.monitors.monitors import read_monitor
from tidemill.streams import Plan, Stream, task

READINGS = "CREATE TABLE reading (id int, at timestamptz, who text, heat int)"
SOME = """
INSERT INTO reading SELECT i, now() + make_interval(secs => i / 1000.0), 'a', 1
FROM generate_series($1::int, $2::int) AS i
"""


class Keeping(Plan, eligibility="keep"):
    """Stores the id of each row that it is given; waits at the one that is held."""

    held: int | None = None
    gate: asyncio.Event

    @task
    async def keep(self, ctx: Any) -> None:
        if ctx.value["id"] == Keeping.held:
            await Keeping.gate.wait()
        ctx.execute("INSERT INTO kept VALUES ($1)", ctx.value["id"])


@pytest.fixture
async def kept(database: Database) -> Callable[[], Awaitable[list[int]]]:
    """The ids that the plan has stored, in order."""
    await database.fetch("CREATE TABLE kept (id int)")
    Keeping.held, Keeping.gate = None, asyncio.Event()

    async def read() -> list[int]:
        return [row["id"] for row in await database.fetch("SELECT id FROM kept ORDER BY id")]

    return read


def stream_of(source: Source, **options: Any) -> Stream:
    return Stream("s", plans=[Keeping], sources=[source], **{"engines": 0, **options})


def table(**options: Any) -> PostgresSource:
    return PostgresSource("reading", page=7, poll=(0.02, 0.1), eligibilities={"keep"}, **options)


async def test_a_stream_reads_each_row_of_a_table_once_also_one_that_is_committed_late(
    database: Database, database_url: str, kept: Callable[[], Awaitable[list[int]]]
) -> None:
    await database.fetch(READINGS)
    await database.fetch(SOME, 1, 30)
    async with running_stream(stream_of(table()), database_url):
        await eventually(lambda: value(database, "SELECT count(*) = 30 FROM kept"))
        async with database.transaction() as late:
            await late.execute("INSERT INTO reading VALUES (31, clock_timestamp(), 'a', 1)")
            await database.fetch("INSERT INTO reading VALUES (32, clock_timestamp(), 'a', 1)")
            await eventually(lambda: value(database, "SELECT count(*) = 31 FROM kept"))
        await eventually(lambda: value(database, "SELECT count(*) = 32 FROM kept"))
    await database.fetch("INSERT INTO reading VALUES (33, clock_timestamp(), 'a', 1)")
    async with running_stream(stream_of(table()), database_url):
        await eventually(lambda: value(database, "SELECT count(*) >= 33 FROM kept"))
    assert await kept() == list(range(1, 34)), "each once"


async def test_rows_after_one_that_is_stuck_are_not_done_again_though_others_were_deleted(
    database: Database, database_url: str, kept: Callable[[], Awaitable[list[int]]]
) -> None:
    await database.fetch(READINGS)
    await database.fetch(SOME, 1, 20)
    Keeping.held = 5
    async with running_stream(stream_of(table(), drain=0), database_url):
        await eventually(lambda: value(database, "SELECT count(*) = 19 FROM kept"))
    await database.fetch("DELETE FROM reading WHERE id IN (2, 3)")
    await database.fetch(SOME, 21, 25)
    Keeping.gate.set()
    async with running_stream(stream_of(table()), database_url):
        await eventually(lambda: value(database, "SELECT count(*) >= 25 FROM kept"))
    assert await kept() == list(range(1, 26)), "each once"


async def test_a_row_whose_time_has_changed_is_read_again(
    database: Database, database_url: str, kept: Callable[[], Awaitable[list[int]]]
) -> None:
    await database.fetch(READINGS)
    await database.fetch(SOME, 1, 3)
    async with running_stream(stream_of(table()), database_url):
        await eventually(lambda: value(database, "SELECT count(*) = 3 FROM kept"))
        await database.fetch("UPDATE reading SET at = clock_timestamp() + interval '1 s' WHERE id = 2")
        await eventually(lambda: value(database, "SELECT count(*) >= 4 FROM kept"))
    assert await kept() == [1, 2, 2, 3]


async def test_a_stream_reads_an_api_by_time_though_it_gives_the_newest_first(
    database: Database, database_url: str, kept: Callable[[], Awaitable[list[int]]]
) -> None:
    records = [{"id": number, "at": 1000.0 + number / 10} for number in range(1, 26)]

    def answer(request: Request) -> tuple[int, bytes]:
        query = {name: values[0] for name, values in parse_qs(urlsplit(request.path).query).items()}
        found = [each for each in records if each["at"] >= read_time(query.get("from", 0))][::-1]
        begin = int(query["offset"])
        return 200, json.dumps({"results": found[begin : begin + int(query["limit"])]}).encode()

    with receiver(answer) as server:
        source = HttpSource(
            server.url, since="from", items="results", page=4, poll=(0.02, 0.1), name="api", eligibilities={"keep"}
        )
        async with running_stream(stream_of(source), database_url):
            await eventually(lambda: value(database, "SELECT count(*) = 25 FROM kept"))
            records.append({"id": 26, "at": 1002.45})
            await eventually(lambda: value(database, "SELECT count(*) = 26 FROM kept"))
        records.append({"id": 27, "at": 1002.55})
        async with running_stream(stream_of(source), database_url):
            await eventually(lambda: value(database, "SELECT count(*) >= 27 FROM kept"))
    assert await kept() == list(range(1, 28)), "each once"


async def test_a_redirect_is_followed_and_secrets_stay_with_their_host() -> None:
    page = json.dumps({"items": [{"id": 1}], "cursor": "1"}).encode()
    with (
        receiver(lambda request: (200, page)) as other,
        receiver(lambda request: (307, b"", {"Location": f"{other.url}/there"})) as first,
        allowing_hosts([urlsplit(other.url).netloc]),
    ):
        source = HttpSource(first.url, token="s3cret", headers={"X-Key": "k3y"})
        reader: Any = open_reader(source, SourceContext("monitor:test", uuid4(), cast("Database", None)))
        found = await anext(reader.pages(None, None, 0.0))
        await reader.close()
    assert [record.payload for record in found.records] == [b'{"id": 1}']
    assert {"Authorization", "X-Key"} <= first.requests[0].headers.keys()
    assert not {"Authorization", "X-Key"} & other.requests[0].headers.keys()


@pytest.fixture(params=["nats", "redis"])
async def broker(request: pytest.FixtureRequest) -> tuple[Source, Callable[[list[bytes]], Awaitable[None]]]:
    """A source of each broker, and a way to send to it."""
    running, name = request.getfixturevalue(request.param), f"t{uuid4().hex[:8]}"
    return await {"nats": on_nats, "redis": on_redis}[request.param](running, name)


async def on_nats(running: Nats, name: str) -> tuple[Source, Callable[[list[bytes]], Awaitable[None]]]:
    import nats

    client = await nats.connect(running.url)
    await client.jetstream().add_stream(name=name, subjects=[f"{name}.heat"])
    await client.close()

    async def send(payloads: list[bytes]) -> None:
        client = await nats.connect(running.url)
        for payload in payloads:
            await client.jetstream().publish(f"{name}.heat", payload)
        await client.close()

    return NatsSource(f"{name}.heat", servers=running.url, page=3), send


async def on_redis(running: Redis, name: str) -> tuple[Source, Callable[[list[bytes]], Awaitable[None]]]:
    from redis.asyncio import Redis as Client

    async def send(payloads: list[bytes]) -> None:
        client = Client.from_url(running.url)
        for payload in payloads:
            await client.xadd(name, {"payload": payload})
        await client.aclose()

    return RedisSource(name, url=running.url, page=3), send


async def test_messages_of_a_broker_are_events_of_a_monitor_and_each_counts_once(
    broker: tuple[Source, Callable[[list[bytes]], Awaitable[None]]], database: Database
) -> None:
    source, send = broker
    await send([json.dumps({"id": i, "at": 900 + i, "who": "a", "heat": 1}).encode() for i in range(7)])

    async def ticked(events: int) -> bool:
        await watcher.one_tick()
        return (await read_monitor(database, "heat"))["events"] >= events

    async with watching(database, heat_monitor(source)) as watcher:
        await eventually(lambda: ticked(7))
        await send([b'{"who": "a", "heat": 2}', b"nonsense", b'{"id": 0, "at": 900, "who": "a", "heat": 1}'])
        await eventually(lambda: ticked(8))
        await watcher.reader.close()
    await send([b'{"id": 8, "at": 920, "who": "b", "heat": 1}'])
    async with watching(database, heat_monitor(source)) as watcher:
        await eventually(lambda: ticked(9))
        await watcher.reader.close()
    row = await read_monitor(database, "heat")
    assert (row["events"], row["duplicates"]) == (9, 1), "only what was sent twice is dropped"


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: PostgresSource("reading; DROP TABLE x"), "not a valid name of a table"),
        (lambda: PostgresSource("reading", time=("at", "when")), "in one column"),
        (lambda: PostgresSource("reading", overlap="soon"), "not a length of time"),
        (lambda: JsonlSource("a.jsonl", page=0), "would bring nothing"),
        (lambda: RedisSource("a", begin=cast("Any", "now")), "neither earliest nor latest"),
        (lambda: HttpSource("http://a/", token_url="http://a/token"), "needs username= and password="),
        (lambda: Monitor("m", source=cast("Any", "a.jsonl"), entity=len, fold=Keeping), "is not a source"),
    ],
)
def test_a_source_that_makes_no_sense_is_refused_when_it_is_declared(make: Callable[[], Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        make()
