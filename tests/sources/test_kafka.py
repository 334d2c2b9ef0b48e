"""What only newer brokers have: headers, timestamps, groups that move single partitions, and groups that brokers run.

The broker is the one that comes with the client for tests: it speaks the protocol over TCP and keeps all in memory.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from typing import Any

import pytest

from tests.support import eventually, value
from tests.support.streams import running_stream
from tests.support.waiting import PATIENCE
from tidemill.core.retry import retry
from tidemill.sources import KafkaSource
from tidemill.store.database import Database
from tidemill.store.streams.dead_letters import DeadFilter, list_dead
from tidemill.streams import Plan, Stream, task

GROUPS = {
    "cooperative": {
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 300,
    },
    "by the broker": {"group.protocol": "consumer"},
}


class Cluster:
    """A broker in this process, and one producer to it."""

    def __init__(self) -> None:
        from confluent_kafka import Producer

        self._holder = Producer({"test.mock.num.brokers": 1, "log_level": 0})  # lives as long as the broker does
        (broker,) = self._holder.list_topics(timeout=150).brokers.values()
        self.bootstrap = f"{broker.host}:{broker.port}"
        settings = {"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "log_level": 0}
        self._producer = Producer(settings)

    async def send(self, topic: str, payloads: list[bytes], **fields: Any) -> None:
        def now() -> None:
            for number, payload in enumerate(payloads):
                self._producer.produce(topic, payload, partition=number % 4, **fields)
            assert self._producer.flush(30) == 0

        await asyncio.to_thread(now)


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return Cluster()


class Recording(Plan, eligibility="record"):
    seen: list[Any]

    @task
    async def record(self, ctx: Any) -> None:
        Recording.seen.append(ctx)
        if ctx.value == "bad":
            raise ValueError("bad news")


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Recording.seen = []


def stream_of(cluster: Cluster, topic: str, **options: Any) -> Stream:
    source = KafkaSource(topic, bootstrap=cluster.bootstrap, eligibilities=frozenset({"record"}), **options)
    return Stream("s", plans=[Recording], sources=[source], engines=0, retry=retry(1))


def topic() -> str:
    return f"t{uuid.uuid4().hex[:8]}"


async def test_headers_keys_and_times_arrive_and_are_kept_with_a_dead_letter(
    cluster: Cluster, database: Database, database_url: str
) -> None:
    name = topic()
    for word in ("good", "bad", "good"):
        headers = [("id", word.encode()), ("empty", None), ("bytes", b"\xff\x00")]
        await cluster.send(name, [f'"{word}"'.encode()], key=b"k", headers=headers, timestamp=1_700_000_000_000)
    async with running_stream(stream_of(cluster, name, message_id="header:id"), database_url) as dispatcher:
        await eventually(lambda: value(database, "SELECT count(*) FROM tidemill.dead_letter"))
        await eventually(lambda: dispatcher.reducer.counts[0].duplicates == 1)
    assert [ctx.value for ctx in Recording.seen] == ["good", "bad"]
    for ctx in Recording.seen:
        message = ctx.message
        assert message.headers == (("id", ctx.value.encode()), ("empty", b""), ("bytes", b"\xff\x00"))
        assert (message.key, message.at, message.id) == (b"k", 1_700_000_000.0, ctx.value)
    (dead,) = await list_dead(database, DeadFilter())
    assert (dead["message_id"], dead["key"]) == ("bad", b"k")
    assert json.loads(dead["headers"])["id"] == "bad"


@pytest.mark.parametrize("group", GROUPS)
async def test_partitions_move_one_by_one_between_two_dispatchers(
    cluster: Cluster, database: Database, database_url: str, group: str
) -> None:
    name = topic()
    options = {"config": GROUPS[group], "group": name, "exact": True}
    await cluster.send(name, [b"%d" % number for number in range(40)])

    def numbers() -> set[int]:
        return {ctx.value for ctx in Recording.seen}

    async with running_stream(stream_of(cluster, name, **options), database_url) as first:
        await eventually(lambda: numbers() == set(range(40)))
        async with running_stream(stream_of(cluster, name, **options), database_url) as second:
            sent, until = 40, time.monotonic() + 2 * PATIENCE
            while not second.reducer.counts[0].done:
                await cluster.send(name, [b"%d" % number for number in range(sent, sent + 40)])
                sent += 40
                await eventually(lambda sent=sent: numbers() == set(range(sent)))
                assert time.monotonic() < until, "the second never got a partition"
            assert first.reducer.counts[0].done > 40
        await cluster.send(name, [b"%d" % number for number in range(sent, sent + 40)])
        await eventually(lambda: numbers() == set(range(sent + 40)))
