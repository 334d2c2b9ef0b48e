"""Order within a key over restarts, and messages that are delivered twice, on real sources."""

from __future__ import annotations

import asyncio
import json
import signal
import uuid
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support import eventually, value
from tests.support.brokers import HASTY_KAFKA, OLD_KAFKA, Kafka, Nats, Redis
from tests.support.stream_app import TABLES
from tests.support.streams import all_read, publish, running_stream, stream_process
from tidemill.core.codec import encode
from tidemill.sources import KafkaSource, LogSource, NatsSource, RedisSource, Source
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


async def to_log(database: Database, count: int) -> dict[str, Any]:
    entries = [Entry("posts", encode(each), str(each["key"])) for each in messages(count)]
    async with database.transaction() as connection:
        await append(database, connection, entries)
    return {"type": "log", "topic": "posts", "lease": 30.0}


async def to_redis(broker: Redis, count: int) -> dict[str, Any]:
    from redis.asyncio import Redis as Client

    key = f"t{uuid.uuid4().hex[:8]}"
    client = Client.from_url(broker.url)
    for each in messages(count):
        await client.xadd(key, {"payload": encode(each), "key": str(each["key"])})
    await client.aclose()
    return {"type": "redis", "key": key, "url": broker.url, "lease": 30.0}


async def to_nats(broker: Nats, count: int, retention: str = "limits") -> dict[str, Any]:
    import nats

    name = f"t{uuid.uuid4().hex[:8]}"
    client = await nats.connect(broker.url)
    await client.jetstream().add_stream(name=name, subjects=[f"{name}.*"], retention=retention)
    for each in messages(count):
        await client.jetstream().publish(f"{name}.{each['key']}", encode(each))
    await client.close()
    return {"type": "nats", "subject": f"{name}.*", "servers": broker.url, "ack_wait": 30.0}


async def to_nats_queue(broker: Nats, count: int) -> dict[str, Any]:
    return await to_nats(broker, count, "workqueue")


async def to_kafka(broker: Kafka, count: int) -> dict[str, Any]:
    from confluent_kafka import Producer

    topic = f"t{uuid.uuid4().hex[:8]}"

    def send() -> None:
        old = {name: OLD_KAFKA[name] for name in ("api.version.request", "broker.version.fallback")}
        producer = Producer({"bootstrap.servers": broker.bootstrap, "message.timeout.ms": 60_000, **old})
        for each in messages(count):
            producer.produce(topic, encode(each), key=str(each["key"]).encode(), partition=each["key"] % 2)
        assert producer.flush(60) == 0

    await asyncio.to_thread(send)
    return {"type": "kafka", "topic": topic, "bootstrap": broker.bootstrap, "group": topic, "config": OLD_KAFKA}


PLACES = {"log": to_log, "redis": to_redis, "nats": to_nats, "nats-queue": to_nats_queue, "kafka": to_kafka}
BRIEF = {"log": {"lease": 1.0}, "redis": {"lease": 1.0}, "nats": {"ack_wait": 1.0}, "kafka": {"config": HASTY_KAFKA}}


async def place(kind: str, count: int, request: pytest.FixtureRequest, database: Database) -> dict[str, Any]:
    """Messages of four keys in a fresh topic; returns the options of its source."""
    broker = database if kind == "log" else request.getfixturevalue(kind.partition("-")[0])
    return {**await PLACES[kind](broker, count), "ordered": True}


def source_of(options: dict[str, Any]) -> Source:
    kinds = {"log": LogSource, "redis": RedisSource, "nats": NatsSource, "kafka": KafkaSource}
    given = {name: each for name, each in options.items() if name != "type"}
    return kinds[options["type"]](eligibilities=frozenset({"keyed"}), **given)


def assert_each_once_in_order(seen: Sequence[tuple[int, int]], count: int) -> None:
    for key in range(KEYS):
        assert [number for found, number in seen if found == key] == list(range(key, count, KEYS))


@pytest.mark.parametrize("kind", PLACES)
async def test_keys_keep_their_order_over_ten_restarts(
    kind: str, request: pytest.FixtureRequest, database: Database, database_url: str
) -> None:
    count = 400
    source = source_of(await place(kind, count, request, database))
    for _ in range(10):
        async with running_stream(stream_of(source), database_url):
            so_far = len(Keyed.seen)
            await eventually(lambda before=so_far: len(Keyed.seen) >= min(before + 25, count), timeout=60)
    async with running_stream(stream_of(source), database_url):
        await eventually(lambda: len(Keyed.seen) >= count, timeout=60)
    assert_each_once_in_order(Keyed.seen, count)


@pytest.mark.parametrize("kind", PLACES)
async def test_keys_keep_their_order_when_a_dispatcher_is_killed(
    kind: str, request: pytest.FixtureRequest, database: Database, database_url: str
) -> None:
    """A message that was not acknowledged may run again, but never after one that comes behind it has run first."""
    count = 160
    options = await place(kind, count, request, database)
    options |= BRIEF[options["type"]]
    await database.run(lambda connection: connection.execute(TABLES))
    async with stream_process(database_url, stream_source=json.dumps([options])) as stream:
        await eventually(lambda: value(database, "SELECT count(*) > $1 FROM work", count // 4), timeout=60)
        stream.process.send_signal(signal.SIGKILL)
        await stream.ends()
    async with stream_process(database_url, stream_source=json.dumps([options])):
        await eventually(lambda: value(database, "SELECT count(DISTINCT number) = $1 FROM work", count), timeout=90)
    rows = await database.fetch("SELECT number FROM work ORDER BY at")
    first_runs = list(dict.fromkeys(row["number"] for row in rows))
    assert_each_once_in_order([(number % KEYS, number) for number in first_runs], count)


async def test_one_dispatcher_at_a_time_reads_a_subject_in_order(
    request: pytest.FixtureRequest, database: Database, database_url: str
) -> None:
    source = source_of(await place("nats", 300, request, database))
    async with running_stream(stream_of(source), database_url) as first:
        await eventually(lambda: len(Keyed.seen) >= 20)
        async with running_stream(stream_of(source), database_url) as second:
            await eventually(lambda: len(Keyed.seen) >= 100)
            assert not second.reducer.counts[0].sent
            first.life.stop()
            await eventually(lambda: len(Keyed.seen) >= 300, timeout=60)
            assert second.reducer.counts[0].sent
    assert_each_once_in_order(Keyed.seen, 300)


async def test_order_holds_when_partitions_move_to_another_dispatcher(
    request: pytest.FixtureRequest, database: Database, database_url: str
) -> None:
    source = source_of(await place("kafka", 1200, request, database))
    async with running_stream(stream_of(source), database_url):
        await eventually(lambda: len(Keyed.seen) >= 20, timeout=60)
        async with running_stream(stream_of(source), database_url) as second:
            await eventually(lambda: second.reducer.counts[0].done > 20, timeout=60)
        await eventually(lambda: len(Keyed.seen) >= 1200, timeout=60)
    assert_each_once_in_order(Keyed.seen, 1200)


async def test_one_dispatcher_at_a_time_reads_an_ordered_topic(database: Database, database_url: str) -> None:
    source = source_of({**await to_log(database, 300), "ordered": True})
    async with running_stream(stream_of(source), database_url), running_stream(stream_of(source), database_url):
        await eventually(lambda: len(Keyed.seen) == 300)
    assert_each_once_in_order(Keyed.seen, 300)


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


async def test_a_stored_message_that_another_delivery_has_finished_does_not_run_again(
    database: Database, database_url: str
) -> None:
    source = LogSource("posts", message_id="key", eligibilities=frozenset({"keyed"}))
    await database.fetch(
        "INSERT INTO tidemill.stream_retry (stream, source, place, due_at, attempts, at, message_id, key, payload)"
        " VALUES ('s', 'posts', '0:1', now() + interval '1 hour', 2, now(), 'a', 'a', $1)",
        encode({"key": 0, "number": 1}),
    )
    await publish(database, "posts", [{"key": 0, "number": 1}], key="a")
    async with running_stream(stream_of(source), database_url):
        await eventually(lambda: len(Keyed.seen) == 1)
    await database.fetch("UPDATE tidemill.stream_retry SET due_at = now()")
    async with running_stream(stream_of(source), database_url) as dispatcher:
        await eventually(lambda: dispatcher.reducer.counts[0].duplicates == 1)
        await eventually(lambda: value(database, "SELECT count(*) = 0 FROM tidemill.stream_retry"))
    assert len(Keyed.seen) == 1


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
