"""Consumers of a Redis stream: what one of them has left behind, another one takes over."""

from __future__ import annotations

import uuid

from tests.support import eventually
from tests.support.brokers import Redis
from tidemill.sources import RedisSource
from tidemill.sources.base import Consumer, SourceContext
from tidemill.sources.delivery import Delivery
from tidemill.store.database import Database


async def test_entries_of_a_dead_consumer_are_taken_over_though_many_before_them_are_in_flight(
    database: Database, redis: Redis
) -> None:
    from redis.asyncio import Redis as Client

    source = RedisSource(f"t{uuid.uuid4().hex[:8]}", url=redis.url, lease=1.0)

    async def opened() -> Consumer:
        consumer = source.consumer(SourceContext("s", uuid.uuid4(), database))
        await consumer.start()
        return consumer

    async with Client.from_url(redis.url) as client:
        for number in range(600):
            await client.xadd(source.key, {"payload": str(number)})
    slow, dead, other = await opened(), await opened(), await opened()
    assert len(await slow.poll(500)) == 500, "it keeps them for long"
    left_behind = await dead.poll(100)
    dead._keeping_alive.cancel()  # pyright: ignore[reportAttributeAccessIssue]
    taken: list[Delivery] = []

    async def has_all() -> bool:
        taken.extend(await other.poll(10))
        return len(taken) >= len(left_behind)

    await eventually(has_all, what="all entries are taken over")
    assert {each.payload for each in taken} == {each.payload for each in left_behind}
    for each in (slow, dead, other):
        await each.stop()
