"""A monitor on a topic of a real Kafka: its partitions are shared by processes, and what is unread is no silence."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support import AppProcess, eventually, lapse, value
from tests.support.brokers import Kafka
from tests.support.watched import TOPIC, WATCHED, heat_monitor, lines, open_triggers, watching
from tidemill.core.clock import VirtualClock
from tidemill.sources import KafkaSource
from tidemill.store.database import Database
from tidemill.store.monitors.monitors import read_monitor
from tidemill.store.monitors.problems import list_problems

OLD_BROKER = {"api.version.request": False, "broker.version.fallback": "0.9.0.1"}

Send = Callable[[Sequence[dict[str, Any]], int | None], None]


@pytest.fixture
def topic() -> str:
    return f"t{uuid.uuid4().hex[:8]}"


@pytest.fixture
def send(kafka: Kafka, topic: str) -> Send:
    """Writes events to a partition of the topic, which has two, or to both by turns."""
    from confluent_kafka import Producer

    silent = logging.getLogger("tests.kafka")
    silent.addHandler(logging.NullHandler())
    silent.propagate = False

    def now(events: Sequence[dict[str, Any]], partition: int | None) -> None:
        settings = {"bootstrap.servers": kafka.bootstrap, "message.timeout.ms": 60_000, "logger": silent}
        producer = Producer({**settings, **OLD_BROKER})
        for number, each in enumerate(events):
            producer.produce(topic, json.dumps(each).encode(), partition=number % 2 if partition is None else partition)
        assert producer.flush(60) == 0

    return now


def source_of(kafka: Kafka, topic: str, **options: Any) -> KafkaSource:
    return KafkaSource(topic, bootstrap=kafka.bootstrap, config=OLD_BROKER, **{"timeout": "20s", **options})


def reading(id: str, at: float, who: str = "a") -> dict[str, Any]:
    return {"id": id, "at": at, "who": who, "heat": 1}


POSITIONS = "SELECT array_agg(position ORDER BY part) FROM tidemill.monitor_source_position WHERE monitor = 'heat'"


async def test_two_share_the_partitions_and_nobody_is_absent_before_both_have_answered(
    kafka: Kafka, topic: str, send: Send, database: Database
) -> None:
    send([reading("1", 999.0), reading("2", 999.0, "b")], None)
    clock = VirtualClock(1000.0)
    one, other = (heat_monitor(source_of(kafka, topic)) for _ in range(2))
    async with watching(database, one, clock) as first, watching(database, other, clock) as second:
        for watcher in (first, second, first, second):
            await watcher.one_tick()
        assert (first.leads, second.leads) == (True, False)
        assert await value(database, POSITIONS) == [1, 1]
        clock.advance(290.0)
        send([reading("3", 1290.0)], 1)  # where only the second looks
        clock.advance(20.0)
        await first.one_tick()
        assert await open_triggers(database) == set()
        await second.one_tick()
        await first.one_tick()
        assert await open_triggers(database) == {("b", "silent")}
        clock.advance(300.0)
        for watcher in (first, second, first, second):
            await watcher.one_tick()
        assert await open_triggers(database) == {("a", "silent"), ("b", "silent")}
        row = await read_monitor(database, "heat")
        assert (row["events"], row["duplicates"]) == (3, 0)
        for watcher in (first, second):
            await watcher.reader.close()


async def test_a_broker_that_does_not_answer_is_a_failure_and_no_silence(
    kafka: Kafka, topic: str, send: Send, database: Database
) -> None:
    clock = VirtualClock(1000.0)
    async with watching(database, heat_monitor(source_of(kafka, topic, timeout="3s")), clock) as watcher:
        send([reading("1", 999.0), reading("2", 999.5), {"who": "a"}], None)
        await eventually(lambda: _ticked(watcher, database, 2), what="the topic answers")
        kafka.kill()
        clock.advance(400.0)
        for _ in range(2):
            await watcher.one_tick()
        assert await open_triggers(database) == set()
        assert "does not answer" in (await list_problems(database, "heat"))[0]["error"]
        kafka.restart()
        send([reading("4", 1399.0)], 1)
        await eventually(lambda: _ticked(watcher, database, 3), what="it is read on")
        assert await open_triggers(database) == set()
        await watcher.reader.close()


async def _ticked(watcher: Any, database: Database, events: int) -> bool:
    await watcher.one_tick()
    return (await read_monitor(database, "heat"))["events"] >= events


async def test_of_two_processes_on_a_topic_one_is_killed_and_every_event_counts_once(
    kafka: Kafka, topic: str, send: Send, database_url: str, database: Database, tmp_path: Path
) -> None:
    """The events of each of three entities are in both partitions."""
    long_ago = time.time() - 3600
    send([reading("first", long_ago, "c")], 0)
    (tmp_path / TOPIC).write_text(json.dumps({"topic": topic, "bootstrap": kafka.bootstrap, "config": OLD_BROKER}))
    rounds = [
        [{**each, "at": long_ago + each["at"]} for each in lines(120, start)] for start in (100.0, 200.0, 300.0, 400.0)
    ]
    processes = [_start(database_url, tmp_path)]
    try:
        await processes[0].wait_ready()
        processes.append(_start(database_url, tmp_path))
        await eventually(lambda: value(database, SHARED), what="both follow a share")
        for number, events in enumerate(rounds):
            if number == 2:
                processes[0].kill()
                await lapse(database, processes[0].pid)
            await asyncio.to_thread(send, events, None)
        wanted = sum(map(len, rounds)) + 1
        await eventually(lambda: value(database, JUDGED, wanted), what="all events are judged")
        row = await read_monitor(database, "heat")
        assert (row["events"], row["duplicates"]) == (wanted, 0)
        folded = "SELECT entity, (state ->> 'count')::int AS count FROM tidemill.monitor_entity ORDER BY 1"
        logged = "SELECT entity, count(*) FROM tidemill.monitor_event GROUP BY 1 ORDER BY 1"
        assert await database.fetch(folded) == await database.fetch(logged)
        peaks = sorted(each["id"] for events in rounds for each in events if each["heat"] > 90)
        told = "SELECT array_agg(key ORDER BY key COLLATE \"C\") FROM tidemill.alert WHERE trigger = 'peak'"
        assert await value(database, told) == peaks
    finally:
        for process in processes:
            process.close()


def _start(url: str, folder: Path) -> AppProcess:
    return AppProcess("monitor", url, WATCHED, watched=str(folder), heartbeat_seconds=0.5)


SHARED = "SELECT count(DISTINCT owner) = 2 FROM tidemill.monitor_shard"
JUDGED = """
SELECT count(*) FROM tidemill.monitor AS m WHERE m.events >= $1
AND NOT EXISTS (SELECT FROM tidemill.monitor_entity WHERE head > folded)
"""
