"""What plans hand over to sinks arrives: after the outcome of the message, in order per key, through outages."""

from __future__ import annotations

import asyncio
import json
import threading
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from tests.support import eventually, value
from tests.support.brokers import OLD_KAFKA, Broker, Kafka, Nats, Redis
from tests.support.operate_streams import replay_dead
from tests.support.receiver import Request, receiver
from tests.support.streams import publish, running_stream
from tidemill.core.errors import ConfigError
from tidemill.sinks import HttpSink, KafkaSink, LogSink, NatsSink, RedisSink, Sink
from tidemill.sources import LogSource
from tidemill.store.database import Database
from tidemill.store.streams.dead_letters import DeadFilter, list_dead
from tidemill.store.streams.outbox import add_items, settle_items, take_items
from tidemill.streams import Plan, Stream, task

pytestmark = pytest.mark.timeout(400)

KEYS = 4
SOURCE = LogSource("posts", eligibilities=frozenset({"emit"}), ordered=True)


class Emitting(Plan, eligibility="emit"):
    @task
    async def emit(self, ctx: Any) -> None:
        if ctx.value.get("bad"):
            ctx.emit("out", {"number": -1})
            raise ValueError("bad news")
        ctx.emit("out", {"number": ctx.value["number"]}, headers={"colour": "red"})


def stream_of(*sinks: Sink, **options: Any) -> Stream:
    return Stream("s", plans=[Emitting], sources=[SOURCE], sinks=sinks, engines=0, **options)


async def publish_numbers(database: Database, numbers: range) -> None:
    for number in numbers:
        await publish(database, "posts", [{"number": number}], key=str(number % KEYS))


def assert_in_order(arrived: list[tuple[str, int]], count: int) -> None:
    """Each value of a key arrives behind those before it; one may arrive twice when its receiver was killed."""
    for key in range(KEYS):
        first = list(dict.fromkeys(number for found, number in arrived if found == str(key)))
        assert first == list(range(key, count, KEYS))


Read = Callable[[], Awaitable[list[tuple[str, int]]]]


async def kafka_place(broker: Kafka) -> tuple[Sink, Read]:
    from confluent_kafka import Consumer, TopicPartition

    topic = f"t{uuid.uuid4().hex[:8]}"
    old = {name: OLD_KAFKA[name] for name in ("api.version.request", "broker.version.fallback")}

    def read_now() -> list[tuple[str, int]]:
        reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", **old, "enable.partition.eof": True})
        found: list[tuple[str, int]] = []
        try:
            reader.assign([TopicPartition(topic, part, 0) for part in (0, 1)])
            ends = 0
            while ends < 2 and (message := reader.poll(10)) is not None:
                if message.error() is not None:
                    ends += 1
                else:
                    key, text = message.key() or b"", message.value() or b""
                    found.append((key.decode(), json.loads(text)["number"]))
        finally:
            reader.close()
        return found

    config = {**old, "enable.idempotence": False}
    return KafkaSink(topic, bootstrap=broker.bootstrap, name="out", config=config), lambda: asyncio.to_thread(read_now)


async def nats_place(broker: Nats) -> tuple[Sink, Read]:
    import nats

    name = f"t{uuid.uuid4().hex[:8]}"
    client = await nats.connect(broker.url)
    await client.jetstream().add_stream(name=name, subjects=[f"{name}.*"])
    await client.close()

    async def read() -> list[tuple[str, int]]:
        client = await nats.connect(broker.url)
        try:
            info = await client.jetstream().stream_info(name)
            found = [await client.jetstream().get_msg(name, seq) for seq in range(1, info.state.last_seq + 1)]
            return [(str(each.subject).rpartition(".")[2], json.loads(each.data or b"")["number"]) for each in found]
        finally:
            await client.close()

    return NatsSink(f"{name}.{{key}}", servers=broker.url, name="out"), read


async def redis_place(broker: Redis) -> tuple[Sink, Read]:
    from redis.asyncio import Redis as Client

    key = f"t{uuid.uuid4().hex[:8]}"

    async def read() -> list[tuple[str, int]]:
        client = Client.from_url(broker.url)
        try:
            entries: Any = await client.xrange(key)
        finally:
            await client.aclose()
        assert all(fields[b"colour"] == b"red" for _, fields in entries)
        return [(fields[b"key"].decode(), json.loads(fields[b"payload"])["number"]) for _, fields in entries]

    return RedisSink(key, url=broker.url, name="out"), read


@pytest.mark.parametrize("kind", ["kafka", "nats", "redis"])
async def test_values_arrive_in_order_through_a_restart_of_the_broker(
    kind: str, request: pytest.FixtureRequest, database: Database, database_url: str
) -> None:
    broker: Broker = request.getfixturevalue(kind)
    sink, read = await {"kafka": kafka_place, "nats": nats_place, "redis": redis_place}[kind](broker)
    async with running_stream(stream_of(sink), database_url) as dispatcher:
        await publish_numbers(database, range(40))
        await eventually(lambda: _sent(dispatcher) >= 40, timeout=60)
        await asyncio.to_thread(broker.kill)
        await publish_numbers(database, range(40, 80))
        await eventually(lambda: dispatcher.sinks[0].health.state == "failing", timeout=60)
        await eventually(lambda: dispatcher.reducer.counts[0].done == 80, what="messages do not wait for the sink")
        await asyncio.to_thread(broker.restart)
        await publish_numbers(database, range(80, 100))
        await eventually(lambda: dispatcher.reducer.counts[0].done == 100)
        await eventually(lambda: value(database, "SELECT count(*) = 0 FROM tidemill.stream_outbox"), timeout=90)
        assert dispatcher.sinks[0].health.state == "ok"
    assert_in_order(await read(), 100)
    assert not await list_dead(database, DeadFilter())


class EmittingAnything(Plan, eligibility="emit"):
    @task
    async def emit(self, ctx: Any) -> None:
        payload = "x" * ctx.value.get("size", 1)
        ctx.emit("out", {"number": 7, "text": payload}, key=ctx.value["key"], headers=ctx.value.get("headers"))


#: Items that one or the other receiver cannot take, whatever is tried.
ODD = [
    {"key": "日本"},
    {"key": "two\nlines"},
    {"key": "spaced out"},
    {"key": "a.*.>"},
    {"key": ""},
    {"key": "k" * 70_000},
    {"key": "h", "headers": {"note": "two\r\nlines"}},
    {"key": "h", "headers": {"a name": "é日"}},
    {"key": "h", "headers": {"": "no name"}},
    {"key": "large", "size": 3_000_000},
]


@pytest.mark.parametrize("kind", ["http", "kafka", "nats", "redis"])
async def test_an_item_that_its_receiver_can_never_take_holds_up_no_other(
    kind: str, request: pytest.FixtureRequest, database: Database, database_url: str
) -> None:
    with receiver() as seen:
        if kind == "http":
            sink: Sink = HttpSink(seen.url, name="out")
        else:
            places = {"kafka": kafka_place, "nats": nats_place, "redis": redis_place}
            sink, _ = await places[kind](request.getfixturevalue(kind))
        stream = Stream("s", plans=[EmittingAnything], sources=[SOURCE], sinks=[sink], engines=0)
        async with running_stream(stream, database_url) as dispatcher:
            await publish(database, "posts", [{"key": "before"}, *ODD, {"key": "after"}])
            await eventually(lambda: _sent(dispatcher) + dispatcher.sinks[0].counts.dead == len(ODD) + 2)
            assert dispatcher.sinks[0].health.state == "ok"
    dead = await list_dead(database, DeadFilter(sink="out"))
    assert {"before", "after"}.isdisjoint({letter["key"].decode() for letter in dead})


async def test_items_of_a_key_are_taken_in_order_whatever_the_clocks_say(database: Database) -> None:
    """The sender decides by its own clock how long a key waits; another one must not let the items behind pass."""
    async with database.transaction() as connection:
        rows = [("s", "out", f"i{number}", "posts", f"0:{number}", "Emitting", "k", None, b"x") for number in range(3)]
        await add_items(database, connection, rows)
    first, *_ = await take_items(database, "s", "out", [], most=10, size=1000)
    await settle_items(database, [], [(first["id"], 1, 60.0, "busy")], [])
    taken = await take_items(database, "s", "out", [], most=10, size=1000)
    assert [row["item"] for row in taken] == ["i0", "i1", "i2"]
    assert await take_items(database, "s", "out", ["k"], most=10, size=1000) == []


def _sent(dispatcher: Any) -> int:
    return dispatcher.sinks[0].counts.sent


async def test_the_next_dispatcher_sends_what_is_left(redis: Redis, database: Database, database_url: str) -> None:
    sink, read = await redis_place(redis)
    async with running_stream(stream_of(msgspec.structs.replace(sink, enabled=False)), database_url):
        await publish_numbers(database, range(20))
        await eventually(lambda: value(database, "SELECT count(*) = 20 FROM tidemill.stream_outbox"))
    async with running_stream(stream_of(sink), database_url), running_stream(stream_of(sink), database_url):
        await eventually(lambda: value(database, "SELECT count(*) = 0 FROM tidemill.stream_outbox"))
    assert_in_order(await read(), 20)


async def test_a_value_that_is_refused_holds_only_its_key(database: Database, database_url: str) -> None:
    """It is sent again with the same idempotency key; those behind it wait, and those of other keys pass."""
    open_gate = threading.Event()

    def answer(request: Request) -> tuple[int, bytes]:
        return (503, b"busy") if json.loads(request.body)["number"] == 1 and not open_gate.is_set() else (200, b"")

    with receiver(answer) as seen:
        sink = HttpSink(seen.url, name="out", max_attempts=1000)
        async with running_stream(stream_of(sink), database_url) as dispatcher:
            await publish_numbers(database, range(12))
            await eventually(lambda: _sent(dispatcher) == 9)
            await eventually(lambda: dispatcher.sinks[0].counts.retried > 0)
            assert {number for _, number in _taken(seen.requests)} == {*range(12)} - {5, 9}
            waiting = await database.fetchrow("SELECT count(*) AS n, max(error) AS error FROM tidemill.stream_outbox")
            assert waiting is not None
            assert waiting["n"] == 3
            assert waiting["error"] == "it answered 503: busy"
            open_gate.set()
            await eventually(lambda: _sent(dispatcher) == 12)
    tries = [each for each in seen.requests if json.loads(each.body)["number"] == 1]
    assert len(tries) > 1
    assert len({each.headers["Idempotency-Key"] for each in tries}) == 1
    assert_in_order(_taken(seen.requests), 12)


def _taken(requests: list[Request]) -> list[tuple[str, int]]:
    return [(each.headers["Tidemill-Key"], json.loads(each.body)["number"]) for each in requests]


async def test_a_value_that_is_refused_for_good_becomes_a_dead_letter_and_can_be_replayed(
    database: Database, database_url: str
) -> None:
    allowed: list[bool] = []
    with receiver(lambda request: (200, b"") if allowed or b"1" not in request.body else (422, b"no")) as seen:
        async with running_stream(stream_of(HttpSink(seen.url, name="out")), database_url) as dispatcher:
            await publish_numbers(database, range(3))
            await eventually(lambda: dispatcher.sinks[0].counts.dead == 1 and _sent(dispatcher) == 2)
            (letter,) = await list_dead(database, DeadFilter(sink="out"))
            assert (letter["why"], letter["source"], letter["attempts"]) == ("undelivered", "posts", 1)
            assert letter["error"] == "it answered 422: no"
            assert json.loads(letter["payload"]) == {"number": 1}
            assert letter["plans"] == ["Emitting"]
            allowed.append(True)
            assert await replay_dead(database, DeadFilter(sink="out")) == 1
            await eventually(lambda: _sent(dispatcher) == 3)
    assert {number for _, number in _taken(seen.requests)} == {0, 1, 2}


async def test_nothing_is_sent_of_a_message_that_failed(database: Database, database_url: str) -> None:
    with receiver() as seen:
        stream = stream_of(HttpSink(seen.url, name="out"), max_attempts=1)
        async with running_stream(stream, database_url) as dispatcher:
            await publish(database, "posts", [{"bad": True}, {"number": 7}])
            await eventually(lambda: _sent(dispatcher) == 1)
            await eventually(lambda: value(database, "SELECT count(*) = 1 FROM tidemill.dead_letter"))
    assert [json.loads(each.body) for each in seen.requests] == [{"number": 7}]


async def test_a_sink_in_the_log_is_written_with_the_outcome(database: Database, database_url: str) -> None:
    async with running_stream(stream_of(LogSink("results", name="out")), database_url):
        await publish_numbers(database, range(8))
        statement = "SELECT count(*) = 8 FROM tidemill.log_message WHERE topic = 'results'"
        await eventually(lambda: value(database, statement))
    rows = await database.fetch(
        "SELECT key, convert_from(payload, 'UTF8') AS text FROM tidemill.log_message WHERE topic = 'results'"
        " ORDER BY position"
    )
    assert_in_order([(row["key"], json.loads(row["text"])["number"]) for row in rows], 8)


def test_a_sink_needs_a_name_of_its_own() -> None:
    with pytest.raises(ConfigError, match="two sources or sinks are called 'posts'"):
        stream_of(LogSink("posts"))
