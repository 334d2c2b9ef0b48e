"""Each source by itself: one that cannot be reached is reported and tried again, and the others run."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import eventually
from tests.support.brokers import Redis
from tests.support.ports import free_port
from tests.support.streams import publish, running_stream
from tidemill.core.codec import decode
from tidemill.engine.telemetry.stream_metrics import stream_metrics
from tidemill.sources import LogSource, NatsSource, RedisSource
from tidemill.sources.base import Source
from tidemill.store.database import Database
from tidemill.store.streams.streams import read_status
from tidemill.streams import Plan, Stream, task


class Recording(Plan, eligibility="record"):
    seen: list[Any]

    @task
    async def record(self, ctx: Any) -> None:
        Recording.seen.append(ctx.value)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Recording.seen = []


def stream_of(*sources: Source) -> Stream:
    log = LogSource("posts", eligibilities=frozenset({"record"}))
    return Stream("s", plans=[Recording], sources=[*sources, log], engines=0)


async def reported(database: Database, source: str) -> dict[str, Any]:
    rows = await read_status(database, "s")
    found = [each for row in rows for each in decode(row["status"])["sources"] if each["name"] == source]
    return found[0] if found else {}


async def test_a_broker_that_cannot_be_reached_stops_no_other_source(database: Database, database_url: str) -> None:
    nowhere = [
        RedisSource("away", url=f"redis://127.0.0.1:{free_port()}"),
        NatsSource("gone", servers=f"nats://127.0.0.1:{free_port()}"),
    ]
    async with running_stream(stream_of(*nowhere), database_url):
        await publish(database, "posts", range(10))
        await eventually(lambda: len(Recording.seen) == 10)

        async def both_are_reported() -> bool:
            found = [await reported(database, name) for name in ("away", "gone")]
            return all(each.get("health") == "failing" and each.get("error") for each in found)

        await eventually(both_are_reported)
        assert (await reported(database, "posts"))["health"] == "ok"
        metrics = {metric.name: metric for metric in stream_metrics(await read_status(database, "s"), {})}
        up = {sample.labels["source"]: sample.value for sample in metrics["tidemill_stream_source_up"].samples}
        assert up == {"away": 0, "gone": 0, "posts": 1}


async def test_a_source_is_read_as_soon_as_its_broker_is_there(
    database: Database, database_url: str, redis: Redis
) -> None:
    from redis.asyncio import Redis as Client

    redis.kill()
    source = RedisSource("late", url=redis.url, eligibilities=frozenset({"record"}))
    async with running_stream(stream_of(source), database_url) as dispatcher:
        await eventually(lambda: dispatcher.health[0].state == "failing")
        redis.restart()
        client = Client.from_url(redis.url)
        await client.xadd("late", {"payload": b'"from redis"'})
        await client.aclose()
        await eventually(lambda: Recording.seen == ["from redis"])
        assert dispatcher.health[0].state == "ok"
        assert dispatcher.health[0].error is not None, "the last error can still be read"
