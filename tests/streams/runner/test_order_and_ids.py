"""Order within a key over restarts, and messages that are delivered twice, on real sources."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from tests.support import eventually, value
from tests.support.brokers import Nats, Redis
from tests.support.streams import all_read, publish, running_stream
from tidemill.core.codec import encode
from tidemill.sources import LogSource, NatsSource, RedisSource, Source
from tidemill.store.database import Database
from tidemill.store.streams.event_log import Entry, append
from tidemill.streams import Plan, Stream, task

KEYS = 4


class Keyed(Plan, eligibility="keyed"):
    """Notes the order of each key."""

    seen: list[tuple[int, int]]

    @task
    async def note(self, ctx: Any) -> None:
        await asyncio.sleep(0.002)
        Keyed.seen.append((ctx.value["key"], ctx.value["number"]))


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Keyed.seen = []


def stream_of(source: Source, **options: Any) -> Stream:
    return Stream("s", plans=[Keyed], sources=[source], engines=0, max_concurrency=8, **options)


def messages(count: int) -> list[dict[str, int]]:
    return [{"key": number % KEYS, "number": number} for number in range(count)]


async def to_log(database: Database, count: int) -> Source:
    entries = [Entry("posts", encode(each), str(each["key"])) for each in messages(count)]
    async with database.transaction() as connection:
        await append(connection, database.schema, entries)
    return LogSource("posts", ordered=True, eligibilities=frozenset({"keyed"}))


async def to_redis(broker: Redis, count: int) -> Source:
    from redis.asyncio import Redis as Client

    key = f"t{uuid.uuid4().hex[:8]}"
    client = Client.from_url(broker.url)
    for each in messages(count):
        await client.xadd(key, {"payload": encode(each), "key": str(each["key"])})
    await client.aclose()
    return RedisSource(key, url=broker.url, ordered=True, eligibilities=frozenset({"keyed"}))


async def to_nats(broker: Nats, count: int) -> Source:
    import nats

    name = f"t{uuid.uuid4().hex[:8]}"
    client = await nats.connect(broker.url)
    await client.jetstream().add_stream(name=name, subjects=[f"{name}.*"])
    for each in messages(count):
        await client.jetstream().publish(f"{name}.{each['key']}", encode(each))
    await client.close()
    return NatsSource(f"{name}.*", servers=broker.url, ordered=True, eligibilities=frozenset({"keyed"}))


@pytest.mark.parametrize("kind", ["log", "redis", "nats"])
async def test_keys_keep_their_order_over_ten_restarts(
    kind: str, request: pytest.FixtureRequest, database: Database, database_url: str
) -> None:
    count = 400
    place = {"log": to_log, "redis": to_redis, "nats": to_nats}[kind]
    source = await place(database if kind == "log" else request.getfixturevalue(kind), count)
    for _ in range(10):
        async with running_stream(stream_of(source), database_url):
            so_far = len(Keyed.seen)
            await eventually(lambda before=so_far: len(Keyed.seen) >= min(before + 25, count))
    async with running_stream(stream_of(source), database_url):
        await eventually(lambda: len(Keyed.seen) >= count)
    for key in range(KEYS):
        assert [number for found, number in Keyed.seen if found == key] == list(range(key, count, KEYS))


async def test_one_dispatcher_at_a_time_reads_an_ordered_topic(database: Database, database_url: str) -> None:
    source = await to_log(database, 300)
    async with running_stream(stream_of(source), database_url), running_stream(stream_of(source), database_url):
        await eventually(lambda: len(Keyed.seen) == 300)
    for key in range(KEYS):
        assert [number for found, number in Keyed.seen if found == key] == list(range(key, 300, KEYS))


async def test_an_id_is_known_after_a_restart_and_to_other_dispatchers(database: Database, database_url: str) -> None:
    source = LogSource("posts", message_id="key", eligibilities=frozenset({"keyed"}))
    one = {"key": 0, "number": 1}
    await publish(database, "posts", [one], key="a")
    async with running_stream(stream_of(source), database_url):
        await eventually(lambda: len(Keyed.seen) == 1)
    assert await value(database, "SELECT count(*) FROM tidemill.stream_seen") == 1
    await publish(database, "posts", [one], key="a")
    async with running_stream(stream_of(source), database_url) as first:
        await eventually(lambda: first.reducer.counts[0].duplicates == 1)
        async with running_stream(stream_of(source), database_url) as second:
            await publish(database, "posts", [{"key": 0, "number": 2}], key="b")
            await eventually(lambda: len(Keyed.seen) == 2)
            await all_read(database, "posts")
            for _ in range(6):  # Whichever of the two takes it.
                await publish(database, "posts", [{"key": 0, "number": 2}], key="b")
            await all_read(database, "posts")
            twice = [each.reducer.counts[0].duplicates for each in (first, second)]
            assert sum(twice) == 7
    assert len(Keyed.seen) == 2


async def test_an_id_is_forgotten_after_the_window(database: Database, database_url: str) -> None:
    source = LogSource("posts", message_id="key", eligibilities=frozenset({"keyed"}))
    stream = stream_of(source, dedup_window="10m")
    one = {"key": 0, "number": 1}
    await publish(database, "posts", [one], key="a")
    async with running_stream(stream, database_url):
        await all_read(database, "posts")
    await database.fetch("UPDATE tidemill.stream_seen SET at = now() - interval '11 minutes'")
    async with running_stream(stream, database_url):
        await eventually(lambda: _is_empty(database))
        await publish(database, "posts", [one], key="a")
        await eventually(lambda: len(Keyed.seen) == 2)


async def _is_empty(database: Database) -> bool:
    return not await value(database, "SELECT count(*) FROM tidemill.stream_seen")
