"""Streams on real brokers: Kafka, NATS, Redis. Nothing is lost, and nothing is acked before its work is done."""

from __future__ import annotations

import asyncio
import json
import random
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from tests.support import eventually, value
from tests.support.brokers import HASTY_KAFKA, OLD_KAFKA, Kafka, Nats, Redis
from tests.support.operate_streams import replay_dead
from tests.support.stream_app import TABLES
from tests.support.streams import running_stream, stream_process, worked_on
from tidemill.core.retry import retry
from tidemill.sources import KafkaSource, NatsSource, RedisSource, Source
from tidemill.store.database import Database
from tidemill.store.streams.dead_letters import DeadFilter, list_dead
from tidemill.streams import Plan, Stream, task


class Place:
    """A topic of one broker: how to write to it, and how to read it as a source.

    What a dispatcher has taken stays its own for long, however busy the machine is; read in haste, what was left
    behind by one that has died comes again after a moment.
    """

    def __init__(self, broker: Any, send: Callable[[list[bytes]], Awaitable[None]], options: dict[str, Any]) -> None:
        self.broker = broker
        self.send = send
        self.options = options

    def in_haste(self) -> dict[str, Any]:
        brief = {"kafka": {"config": HASTY_KAFKA}, "nats": {"ack_wait": 2.0}, "redis": {"lease": 2.0}}
        return {**self.options, **brief[self.options["type"]]}

    def source(self, **more: Any) -> Source:
        kinds = {"kafka": KafkaSource, "nats": NatsSource, "redis": RedisSource}
        options = {name: text for name, text in self.options.items() if name != "type"}
        return kinds[self.options["type"]](**{"eligibilities": frozenset({"record"}), **options, **more})


@pytest.fixture(params=["kafka", "nats", "redis"])
async def place(request: pytest.FixtureRequest) -> Place:
    """A fresh topic of each broker in turn."""
    broker = request.getfixturevalue(request.param)
    return await {"kafka": kafka_place, "nats": nats_place, "redis": redis_place}[request.param](broker)


async def kafka_place(broker: Kafka) -> Place:
    from confluent_kafka import Producer

    topic = f"t{uuid.uuid4().hex[:8]}"
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "api.version.request": False,
        "broker.version.fallback": "0.9.0.1",
    }

    def send_now(payloads: list[bytes]) -> None:
        producer = Producer({**settings, "message.timeout.ms": 60_000})
        for number, payload in enumerate(payloads):
            producer.produce(topic, payload, key=str(number).encode(), partition=number % 2)
        assert producer.flush(60) == 0

    async def send(payloads: list[bytes]) -> None:
        await asyncio.to_thread(send_now, payloads)

    await send([b'{"number": -100}', b'{"number": -101}'])  # makes the topic
    options = {"type": "kafka", "topic": topic, "bootstrap": broker.bootstrap, "group": topic, "config": OLD_KAFKA}
    return Place(broker, send, options)


async def nats_place(broker: Nats) -> Place:
    import nats

    name = f"t{uuid.uuid4().hex[:8]}"
    client = await nats.connect(broker.url)
    await client.jetstream().add_stream(name=name, subjects=[f"{name}.posts"])
    await client.close()

    async def send(payloads: list[bytes]) -> None:
        client = await nats.connect(broker.url)
        for payload in payloads:
            await client.jetstream().publish(f"{name}.posts", payload)
        await client.close()

    await send([b'{"number": -100}', b'{"number": -101}'])
    return Place(broker, send, {"type": "nats", "subject": f"{name}.posts", "servers": broker.url, "ack_wait": 30.0})


async def redis_place(broker: Redis) -> Place:
    from redis.asyncio import Redis as Client

    key = f"t{uuid.uuid4().hex[:8]}"

    async def send(payloads: list[bytes]) -> None:
        client = Client.from_url(broker.url)
        async with client.pipeline(transaction=False) as pipe:
            for payload in payloads:
                pipe.xadd(key, {"payload": payload})
            await pipe.execute()
        await client.aclose()

    await send([b'{"number": -100}', b'{"number": -101}'])
    return Place(broker, send, {"type": "redis", "key": key, "url": broker.url, "lease": 30.0})


class Recording(Plan, eligibility="record"):
    seen: list[tuple[int, int]]
    gates: dict[int, asyncio.Event]

    @task
    async def record(self, ctx: Any) -> None:
        number = ctx.value["number"]
        Recording.seen.append((number, ctx.message.attempt))
        if ctx.value.get("bad"):
            raise ValueError("bad news")
        if number in Recording.gates:
            await Recording.gates[number].wait()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Recording.seen, Recording.gates = [], {}


def stream_of(source: Source, **options: Any) -> Stream:
    quick = retry(2, backoff=0.02, jitter=0.0)
    return Stream("s", plans=[Recording], sources=[source], **{"engines": 0, "retry": quick, **options})


def messages(numbers: range) -> list[bytes]:
    return [msgspec.json.encode({"number": number}) for number in numbers]


def numbers_seen() -> set[int]:
    return {number for number, _ in Recording.seen if number >= 0}


async def test_every_message_is_worked_on_and_what_is_acked_does_not_come_again(
    place: Place, database_url: str
) -> None:
    await place.send(messages(range(500)))
    async with running_stream(stream_of(place.source()), database_url) as dispatcher:
        await eventually(lambda: numbers_seen() == set(range(500)))
        await eventually(lambda: dispatcher.reducer.busy == 0)
    assert len([number for number, _ in Recording.seen if number >= 0]) == 500
    Recording.seen.clear()
    await place.send(messages(range(500, 510)))
    async with running_stream(stream_of(place.source()), database_url):
        await eventually(lambda: numbers_seen() == set(range(500, 510)))


async def test_a_poisonous_message_is_given_up_and_replayed(
    place: Place, database: Database, database_url: str
) -> None:
    async with running_stream(stream_of(place.source()), database_url):
        await place.send([b'{"number": 1}', b'{"number": 2, "bad": true}', b"{broken", b'{"number": 3}'])
        await eventually(lambda: value(database, "SELECT count(*) = 2 FROM tidemill.dead_letter"))
        await eventually(lambda: numbers_seen() == {1, 2, 3})
        letters = {row["why"]: row for row in await list_dead(database, DeadFilter())}
        assert letters["undecodable"]["payload"] == b"{broken"
        assert letters["failed"]["attempts"] == 2
        await database.fetch("UPDATE tidemill.dead_letter SET payload = '{\"number\": 4}' WHERE why = 'undecodable'")
        assert await replay_dead(database, DeadFilter(why="undecodable")) == 1
        await eventually(lambda: 4 in numbers_seen())
        await eventually(lambda: value(database, "SELECT count(*) = 0 FROM tidemill.stream_retry"))


async def test_what_is_under_way_at_the_end_comes_again(place: Place, database_url: str) -> None:
    Recording.gates[1] = asyncio.Event()
    place.options = place.in_haste()
    async with running_stream(stream_of(place.source(), drain="100ms"), database_url):
        await place.send(messages(range(6)))
        await eventually(lambda: numbers_seen() == set(range(6)))
    Recording.gates[1].set()
    Recording.seen.clear()
    async with running_stream(stream_of(place.source()), database_url):
        await eventually(lambda: 1 in numbers_seen())


@pytest.mark.long
async def test_nothing_is_lost_while_engines_dispatchers_and_the_broker_are_killed(
    place: Place, database: Database, database_url: str
) -> None:
    await database.run(lambda connection: connection.execute(TABLES))
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    victims = ["engine", "dispatcher", "broker", "engine"]
    chance.shuffle(victims)
    numbers = range(100 * (len(victims) + 1))
    payloads = [msgspec.json.encode({"number": number, "seconds": 0.03}) for number in numbers]
    await place.send(payloads[:100])
    async with stream_process(
        database_url, supervised=True, stream_source=json.dumps([place.in_haste()]), stream_chaos=1
    ) as stream:
        for lap, victim in enumerate(victims, start=1):
            some = (lap - 1) * 100 + chance.randrange(5, 80)
            await eventually(lambda some=some: value(database, "SELECT count(*) > $1 FROM work", some))
            if victim == "engine":
                await stream.kill_engine()
            elif victim == "dispatcher":
                (await eventually(stream.children))[0].kill()
            else:
                dispatcher = (await eventually(stream.children))[0].pid
                await asyncio.to_thread(place.broker.kill)
                await asyncio.to_thread(place.broker.restart)
                assert stream.children()[0].pid == dispatcher, f"seed {seed}: it died with the broker"
            await send_patiently(place, payloads[lap * 100 : (lap + 1) * 100])

        async def all_done() -> bool:
            return set(numbers) <= set(await worked_on(database))

        await eventually(all_done, timeout=90, what=f"all messages are worked on (seed {seed}: {victims})")


async def send_patiently(place: Place, payloads: list[bytes]) -> None:
    """Send, however long the broker takes to come back; some may be there twice."""

    async def is_sent() -> bool:
        try:
            await place.send(payloads)
        except Exception:  # noqa: BLE001 - each client fails in its own way
            return False
        return True

    await eventually(is_sent, interval=0.5)


async def test_commits_never_pass_an_unfinished_message(kafka: Kafka, database_url: str) -> None:
    from confluent_kafka import Consumer, TopicPartition

    place = await kafka_place(kafka)
    Recording.gates = {number: asyncio.Event() for number in (10, 11)}
    await place.send(messages(range(100)))

    def committed() -> dict[int, int]:
        reader = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": place.options["group"], **OLD_KAFKA})
        try:
            asked = [TopicPartition(place.options["topic"], part) for part in (0, 1)]
            return {each.partition: each.offset for each in reader.committed(asked, timeout=150)}
        finally:
            reader.close()

    async with running_stream(stream_of(place.source()), database_url) as dispatcher:
        await eventually(lambda: numbers_seen() == set(range(100)))
        await eventually(lambda: dispatcher.reducer.busy == 2)
        # Each partition has one message of the set-up before them: number 10 is the seventh of the first.
        await eventually(lambda: _have_come_to(6, asyncio.to_thread(committed)))
        for gate in Recording.gates.values():
            gate.set()
        await eventually(lambda: dispatcher.reducer.busy == 0)
    assert await asyncio.to_thread(committed) == {0: 51, 1: 51}


async def _have_come_to(offset: int, live_requests: Awaitable[dict[int, int]]) -> bool:
    """Whether both partitions are committed up to an offset; none may be beyond."""
    found = await live_requests
    assert max(found.values()) <= offset, f"an unfinished message was passed: {found}"
    return set(found.values()) == {offset}


async def test_two_dispatchers_share_partitions_and_hand_them_over(kafka: Kafka, database_url: str) -> None:
    place = await kafka_place(kafka)
    source = place.source()
    async with running_stream(stream_of(source), database_url) as first:
        await place.send(messages(range(200)))
        await eventually(lambda: numbers_seen() == set(range(200)))
        async with running_stream(stream_of(source), database_url) as second:
            sent = 200
            while not second.reducer.counts[0].done:  # The rebalance happens while messages are under way.
                await place.send(messages(range(sent, sent + 50)))
                sent += 50
                assert sent < 20_000, "the second never got a partition"
            await eventually(lambda: numbers_seen() == set(range(sent)))
            assert first.reducer.counts[0].done > 200
        await place.send(messages(range(sent, sent + 20)))
        await eventually(lambda: numbers_seen() == set(range(sent + 20)))


async def test_what_is_ingested_exactly_once_is_there_exactly_once(
    kafka: Kafka, database: Database, database_url: str
) -> None:
    """Positions are stored with what is handed over: the broker's commits are lost here, and nothing comes twice."""

    class Ingest(Plan, eligibility="ingest"):
        @task
        async def ingest(self, ctx: Any) -> None:
            ctx.execute("INSERT INTO ingested VALUES ($1)", ctx.value["number"])

    await database.fetch("CREATE TABLE ingested (number int)")
    place = await kafka_place(kafka)
    await place.send(messages(range(300)))
    for lap in range(3):
        # A new group each time: as if the broker had forgotten every commit.
        source = place.source(
            exact=True, group=f"{place.options['group']}-{lap}", eligibilities=frozenset({"ingest"}), name="exact"
        )
        stream = Stream("s", plans=[Ingest], sources=[source], engines=0)
        async with running_stream(stream, database_url):
            wanted = 302 + lap * 50
            if lap:
                await place.send(messages(range(300 + (lap - 1) * 50, 300 + lap * 50)))
            await eventually(
                lambda wanted=wanted: value(database, "SELECT count(*) >= $1 FROM ingested", wanted), timeout=60
            )
    assert await value(database, "SELECT count(*) FROM ingested") == 402
    assert await value(database, "SELECT count(DISTINCT number) FROM ingested") == 402
