"""A stream of a broker that is deleted under its consumer and re-created: all of the new one is read."""

from __future__ import annotations

import uuid
from typing import Any, Literal

import pytest

from tests.support import eventually
from tests.support.brokers import Nats, Redis
from tests.support.streams import running_stream
from tidemill.sources import NatsSource, RedisSource, Source
from tidemill.sources.nats import source as nats_source
from tidemill.store.database import Database
from tidemill.streams import Plan, Stream, task

Begin = Literal["earliest", "latest"]


class Noting(Plan, eligibility="a"):
    seen: list[Any]

    @task
    async def run(self, ctx: Any) -> None:
        Noting.seen.append(ctx.value)


def stream_of(source: Source) -> Stream:
    Noting.seen = []
    return Stream("s", plans=[Noting], sources=[source], engines=0)


@pytest.mark.parametrize("begin", ["earliest", "latest"])
@pytest.mark.parametrize("ordered", [False, True])
async def test_a_redis_stream_that_is_deleted_and_made_anew_is_read(
    database: Database, database_url: str, redis: Redis, ordered: bool, begin: Begin
) -> None:
    from redis.asyncio import Redis as Client

    key = f"t{uuid.uuid4().hex[:8]}"
    source = RedisSource(key, url=redis.url, eligibilities=frozenset({"a"}), ordered=ordered, begin=begin)
    async with Client.from_url(redis.url) as client, running_stream(stream_of(source), database_url):
        await client.xadd(key, {"payload": b"1"})
        await eventually(lambda: Noting.seen == [1])
        await client.delete(key)
        await client.xadd(key, {"payload": b"2"})
        await eventually(lambda: Noting.seen == [1, 2], timeout=30)


@pytest.mark.parametrize("begin", ["earliest", "latest"])
@pytest.mark.parametrize("ordered", [False, True])
async def test_a_nats_stream_that_is_deleted_is_reported_and_read_when_it_is_made_anew(
    database: Database,
    database_url: str,
    nats: Nats,
    ordered: bool,
    begin: Begin,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from nats import connect

    monkeypatch.setattr(nats_source, "CHECK_EVERY", 0.5)
    name = f"t{uuid.uuid4().hex[:8]}"
    subject = f"{name}.posts"
    client = await connect(nats.url)
    jetstream = client.jetstream()
    await jetstream.add_stream(name=name, subjects=[subject])
    source = NatsSource(
        subject, servers=nats.url, stream=name, eligibilities=frozenset({"a"}), ordered=ordered, begin=begin
    )
    async with running_stream(stream_of(source), database_url) as dispatcher:
        if ordered:  # It is opened when it has become the reader, after the stream is ready.
            await eventually(lambda: dispatcher.consumers[0]._lease.held)  # pyright: ignore[reportAttributeAccessIssue]
        await jetstream.publish(subject, b"1")
        await eventually(lambda: Noting.seen == [1])
        await jetstream.delete_stream(name)
        await eventually(lambda: dispatcher.health[0].state == "failing")
        await jetstream.add_stream(name=name, subjects=[subject])
        await jetstream.publish(subject, b"2")
        await eventually(lambda: Noting.seen == [1, 2], timeout=30)
    await client.close()
