"""Monitors of brokers that stop to answer: what is not known is no silence."""

from __future__ import annotations

import json
import signal
import time
import uuid

import pytest

from tests.support import eventually, value
from tests.support.brokers import Nats, Redis
from tests.support.watched import Heat, heat_monitor, watching
from tidemill.core.clock import SYSTEM_CLOCK
from tidemill.monitors import absent
from tidemill.sources import NatsSource, RedisSource, Source
from tidemill.store.database import Database
from tidemill.store.monitors.monitors import read_monitor

ABSENT = "SELECT count(*) FROM tidemill.alert"


class Feed:
    """A stream of a broker of its own."""

    def __init__(self, kind: str) -> None:
        self.broker = Nats() if kind == "nats" else Redis()
        self.name = f"t{uuid.uuid4().hex[:8]}"
        self.url = f"{kind}://127.0.0.1:{self.broker.port}"

    def source(self) -> Source:
        if isinstance(self.broker, Nats):
            return NatsSource(self.name, servers=self.url)
        return RedisSource(self.name, url=self.url)

    async def send(self) -> None:
        payload = json.dumps({"id": str(uuid.uuid4()), "at": time.time(), "who": "a", "heat": 1}).encode()
        if isinstance(self.broker, Nats):
            import nats

            client = await nats.connect(self.url)
            jetstream = client.jetstream()
            await jetstream.add_stream(name=self.name, subjects=[self.name])
            await jetstream.publish(self.name, payload)
            await client.close()
        else:
            from redis.asyncio import Redis as Client

            async with Client.from_url(self.url) as client:
                await client.xadd(self.name, {"payload": payload})


@pytest.mark.parametrize("kind", ["nats", "redis"])
async def test_no_entity_is_absent_because_its_broker_does_not_answer(database: Database, kind: str) -> None:
    feed = Feed(kind)
    feed.broker.start()
    watch = heat_monitor(feed.source(), fold=Heat, triggers=[absent("silent", after="3s")])

    async def ticked(statement: str) -> bool:
        await watcher.one_tick()
        return bool(await value(database, statement))

    try:
        await feed.send()
        async with watching(database, watch, SYSTEM_CLOCK) as watcher:
            await eventually(lambda: ticked("SELECT count(*) FROM tidemill.monitor_event"))
            process = feed.broker.processes[-1]
            process.send_signal(signal.SIGSTOP)
            try:
                until = time.monotonic() + 4.0
                while time.monotonic() < until:
                    assert not await ticked(ABSENT), "its events may be at the broker"
            finally:
                process.send_signal(signal.SIGCONT)
            await eventually(lambda: ticked(ABSENT), what="the broker answers, and there is no event")
            assert (await read_monitor(database, "heat"))["events"] == 1
            await watcher.reader.close()
    finally:
        feed.broker.close()
