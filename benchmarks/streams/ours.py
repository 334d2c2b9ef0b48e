"""Ours, measured: one scenario per process, `python -m benchmarks.streams.ours SCENARIO --dsn DSN [--messages N]`."""

import argparse
import asyncio
import json
import os
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import uvloop

from benchmarks.peers.kafka_stream_bench import OLD
from benchmarks.streams.plans import MemoryConsumer, from_environment
from tidemill.store.database import Database, DatabaseSettings
from tidemill.store.migrate import migrate
from tidemill.store.streams.event_log import Entry, append, keep_log
from tidemill.streams.definition.stream import DECLARED
from tidemill.streams.runner.dispatcher import Dispatcher
from tidemill.streams.runner.role import dispatcher_role

#: A table of messages, one a row, with nothing that would slow a COPY down.
BARE = """
CREATE TABLE bare (id bigint DEFAULT nextval('tidemill.event_log_id_seq'), xid xid8 DEFAULT pg_current_xact_id(),
                   at timestamptz DEFAULT now(), topic text, key text, headers json, payload bytea)
"""
PLANS = str(Path(__file__).with_name("plans.py"))
TIMEOUT = 120.0


@asynccontextmanager
async def running(dsn: str, **options: Any) -> AsyncIterator[Dispatcher]:
    """A dispatcher with its engine in a process of its own."""
    os.environ["BENCH_STREAM"] = json.dumps({"name": "bench", **options})
    from_environment()
    async with Database(DatabaseSettings(url=dsn)) as database:
        role = dispatcher_role(DECLARED["bench"], database, target=PLANS)
        life = asyncio.create_task(role.run())
        ready = asyncio.create_task(role.wait_ready())
        await asyncio.wait([life, ready], return_when=asyncio.FIRST_COMPLETED)
        try:
            if life.done():
                life.result()
            yield role.work
        finally:
            role.stop()
            await life


def memory(count: int, *, plan: str = "nothing", **more: Any) -> dict[str, Any]:
    return {"type": "memory", "name": more.pop("name", "memory"), "count": count, "eligibilities": [plan], **more}


async def rate_of(dispatcher: Dispatcher) -> float:
    consumer = dispatcher.consumers[0]
    assert isinstance(consumer, MemoryConsumer)
    async with asyncio.timeout(TIMEOUT):
        await consumer.done.wait()
    return consumer.acked / (consumer.ended - consumer.began)


async def dispatch(dsn: str, messages: int) -> dict[str, Any]:
    """Messages a second through dispatcher and engine, at 100 in flight as the document has it, and at 512."""
    found: dict[str, Any] = {}
    for in_flight in (100, 512):
        async with running(dsn, sources=[memory(messages)], max_concurrency=in_flight) as dispatcher:
            found["rate" if in_flight == 100 else "rate_512"] = await rate_of(dispatcher)
    return found


async def paced(dsn: str, messages: int) -> dict[str, Any]:
    """How long a message takes at 20 a second, and what the processes use while nothing happens."""
    async with running(dsn, sources=[memory(messages, pace=20.0)]) as dispatcher:
        consumer = dispatcher.consumers[0]
        assert isinstance(consumer, MemoryConsumer)
        async with asyncio.timeout(TIMEOUT):
            await consumer.done.wait()
        family = [psutil.Process(), *psutil.Process().children(recursive=True)]
        before, began = sum(sum(each.cpu_times()[:2]) for each in family), time.perf_counter()
        await asyncio.sleep(8.0)
        used = sum(sum(each.cpu_times()[:2]) for each in family) - before
        return {"latencies": consumer.took, "idle": used / (time.perf_counter() - began)}


async def pglog(dsn: str, messages: int) -> dict[str, Any]:
    """The PostgreSQL log: append, and from the log through an engine to durable acks."""
    payload = b"x" * 100
    async with Database(DatabaseSettings(url=dsn)) as database:
        await migrate(database)
        await keep_log(database, time_of_day(), keep_days=30)
        await database.fetch(BARE)
        columns, records = ("topic", "key", "headers", "payload"), [("posts", None, None, payload)] * messages
        appended, bare = [], []
        for _ in range(3):
            async with database.acquire() as connection:
                began = time.perf_counter()
                await connection.copy_records_to_table("bare", columns=columns, records=records)
                bare.append(messages / (time.perf_counter() - began))
                began = time.perf_counter()
                await append(database, connection, [Entry("appended", payload)] * messages)
                appended.append(messages / (time.perf_counter() - began))
        async with database.acquire() as connection:
            await append(database, connection, [Entry("posts", payload)] * messages)
        source = {"type": "log", "topic": "posts", "eligibilities": ["nothing"]}
        began = time.perf_counter()
        async with running(dsn, sources=[source]) as dispatcher:
            began = time.perf_counter()
            while dispatcher.reducer.counts[0].done < messages:
                await asyncio.sleep(0.005)
            while await database.fetch("SELECT FROM tidemill.log_range LIMIT 1"):
                await asyncio.sleep(0.005)
            rate = messages / (time.perf_counter() - began)
    return {"rate": rate, "append": statistics.median(appended), "copy": statistics.median(bare)}


def time_of_day() -> Any:
    from datetime import UTC, datetime

    return datetime.now(UTC).date()


async def kafka(dsn: str, messages: int, bootstrap: str, topic: str, group: str) -> dict[str, Any]:
    """From a Kafka topic through an engine to acks, one handler call per message."""
    config = {name: value for name, value in OLD.items() if name != "log_level"}
    source = {
        "type": "kafka", "topic": topic, "bootstrap": bootstrap, "group": group, "config": config,
        "eligibilities": ["nothing"],
    }  # fmt: skip
    async with running(dsn, sources=[source], max_concurrency=4096) as dispatcher:
        counts = dispatcher.reducer.counts[0]
        async with asyncio.timeout(TIMEOUT):
            while not counts.done:
                await asyncio.sleep(0.0005)
            began, first = time.perf_counter(), counts.done
            while counts.done < messages:
                await asyncio.sleep(0.001)
        return {"rate": (messages - first) / (time.perf_counter() - began)}


async def fairness(dsn: str, messages: int) -> dict[str, Any]:
    """How far shares are from the weights while all are busy, and rates from their limits."""
    weights = (8, 4, 2, 1, 1)
    sources = [memory(messages, name=f"s{number}", weight=weight) for number, weight in enumerate(weights)]
    async with running(dsn, sources=sources) as dispatcher:
        async with asyncio.timeout(TIMEOUT):
            while dispatcher.reducer.counts[0].done < messages * 0.9:
                await asyncio.sleep(0.001)
        done = [counts.done for counts in dispatcher.reducer.counts]
        shares = [count / sum(done) / (weight / sum(weights)) - 1 for count, weight in zip(done, weights, strict=True)]
    sources = [memory(2500, name="limited", max_qps=500.0), memory(10**9, name="free")]
    async with running(dsn, sources=sources) as dispatcher:
        consumer = dispatcher.consumers[0]
        assert isinstance(consumer, MemoryConsumer)
        async with asyncio.timeout(TIMEOUT):
            await consumer.done.wait()
        begin = consumer.acked_at[0]
        seconds = [sum(begin + at <= moment < begin + at + 1 for moment in consumer.acked_at) for at in range(1, 4)]
    return {
        "fairness_error": max(abs(share) for share in shares),
        "qps_error": max(abs(count / 500 - 1) for count in seconds),
    }


#: Stored messages of a slow source, as a replay makes them.
REPLAYED = """
INSERT INTO tidemill.stream_retry (stream, source, place, due_at, attempts, at, payload)
SELECT 'bench', 'slow', '0:' || n, now(), 1, now(), '' FROM generate_series(1, 5000) AS n
"""


async def replay_fairness(dsn: str, messages: int) -> dict[str, Any]:
    """Messages a second of a source of weight 8, alone and during the replay of a slow one of weight 1."""
    found: dict[str, Any] = {}
    sources = [memory(10**9, name="quick", plan="working", weight=8), memory(0, name="slow", plan="slow")]
    for name in ("alone", "beside"):
        async with (
            Database(DatabaseSettings(url=dsn)) as database,
            running(dsn, sources=sources, max_concurrency=64, drain=0.1) as dispatcher,
        ):
            if name == "beside":
                await database.fetch(REPLAYED)
                while not dispatcher.reducer.in_flight[1]:
                    dispatcher.retries.wake()
                    await asyncio.sleep(0.01)
            counts = dispatcher.reducer.counts[0]
            await asyncio.sleep(0.5)
            first, began = counts.done, time.perf_counter()
            async with asyncio.timeout(TIMEOUT):
                while counts.done < first + messages:
                    await asyncio.sleep(0.001)
            found[name] = (counts.done - first) / (time.perf_counter() - began)
    return {**found, "share": found["beside"] / found["alone"]}


async def limit_shared(dsn: str, messages: int) -> dict[str, Any]:
    """Messages a second of two dispatchers with one limit, divided by the limit."""
    limit = 500.0
    options = {"sources": [memory(10**9, name="limited", max_qps=limit)], "drain": 0.1}
    async with running(dsn, **options) as first, running(dsn, **options) as second:
        both = (first.reducer, second.reducer)
        async with asyncio.timeout(TIMEOUT):
            while any(each.limits[0].qps_part in (None, 0.0, limit) for each in both):
                await asyncio.sleep(0.01)
        await asyncio.sleep(1.0)
        before, began = sum(each.counts[0].done for each in both), time.perf_counter()
        while sum(each.counts[0].done for each in both) < before + messages:
            await asyncio.sleep(0.002)
        done = sum(each.counts[0].done for each in both) - before
        return {"share": done / (time.perf_counter() - began) / limit}


async def live_plain(dsn: str, messages: int) -> dict[str, Any]:
    """How long live requests take beside a backlog of plain functions that block."""
    return await live(dsn, messages, plan="blocking")


async def live(dsn: str, messages: int, *, plan: str = "working") -> dict[str, Any]:
    """How long live requests take with nothing else to do, and while a backlog keeps every slot taken."""
    found: dict[str, Any] = {}
    for name, backlog in (("idle", 0), ("load", 10**9)):
        sources = [memory(backlog, plan=plan)]
        async with running(dsn, sources=sources, max_concurrency=64) as dispatcher:
            took: list[float] = []
            await asyncio.sleep(0.5)
            for _ in range(messages):
                began = time.perf_counter()
                await dispatcher.live_requests.ask(b"1", [plan])
                took.append(time.perf_counter() - began)
            found[name] = took
    return found


async def microbatch(dsn: str, messages: int) -> dict[str, Any]:
    """The embedding plan, up to 32 messages a call, and one by one; the same messages through the same model."""
    found: dict[str, Any] = {}
    for name in ("together", "one"):
        async with running(dsn, sources=[memory(messages, plan=name)], threads=1, max_concurrency=64) as dispatcher:
            found[name] = await rate_of(dispatcher)
    return found


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("scenario")
    parser.add_argument("--dsn", required=True)
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument("--bootstrap", default="")
    parser.add_argument("--topic", default="")
    parser.add_argument("--group", default="")
    arguments = parser.parse_args()
    async with Database(DatabaseSettings(url=arguments.dsn)) as database:
        await migrate(database)
    more = (arguments.bootstrap, arguments.topic, arguments.group) if arguments.scenario == "kafka" else ()
    found = await globals()[arguments.scenario](arguments.dsn, arguments.messages, *more)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    uvloop.run(main())
