"""What the `monitors` suite measures of ours. Scenarios that need a process of their own run as
`python -m benchmarks.monitors.scenarios restart|idle DSN`, which prints its figures as JSON."""

import asyncio
import json
import random
import resource
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tidemill.core.clock import VirtualClock
from tidemill.core.errors import NotFoundError
from tidemill.engine.roles.lease import Lease
from tidemill.monitors import Monitor, absent, momentary, sustained
from tidemill.monitors.runner.evaluate import shard_of
from tidemill.monitors.runner.ingest import keep_buffers
from tidemill.monitors.runner.runner import MonitorDriver, MonitorRunner, monitor_role
from tidemill.sources import Delivery, JsonlSource, RecordPage
from tidemill.sources.base import SourceEvent
from tidemill.store.database import Database, DatabaseSettings
from tidemill.store.migrate import migrate
from tidemill.store.monitors.monitors import (
    CursorMove,
    NewEvents,
    add_entities,
    declare_monitor,
    ingest,
    read_monitor,
    seal_tick,
)

PAGE = 500
PAYLOAD = "x" * 3_400


class Still:
    """A source that has nothing to say."""

    overlap = overlap_most = 0.0

    async def pages(self, since: float | None, token: str | None, now: float) -> AsyncIterator[RecordPage]:
        return
        yield

    async def close(self) -> None: ...


class Counter:
    """A fold with a state of the usual size."""

    def on_event(self, state: Any, event: Any) -> None:
        state.count = (state.count or 0) + 1
        state.recent = [*(state.recent or [])[-49:], [event.id, event.at]]
        state.new = [{"id": event.id, "at": event.at}] if event.get("alarm") else []


def counting(source: Any, **options: Any) -> Monitor:
    rules = [
        sustained("busy", when=lambda s, now: s.count > 10**9),
        momentary("alarm", of=lambda s: s.new or []),
        absent("silent", after="30d"),
    ]
    return Monitor("bench", source=source, entity=lambda e: e["who"], fold=Counter, triggers=rules, **options)


def page_of(start: int, entities: int, size: int = PAGE, payload: str = PAYLOAD) -> NewEvents:
    numbers = range(start, start + size)
    now = time.time()
    return NewEvents(
        [str(n) for n in numbers],
        [round(now + n * 1e-5, 6) for n in numbers],
        [f"e{n % entities}" for n in numbers],
        [json.dumps({"id": n, "who": f"e{n % entities}", "text": payload}).encode() for n in numbers],
    )


async def open_database(dsn: str) -> Database:
    database = await Database(DatabaseSettings(url=dsn)).open()
    await migrate(database)
    return database


async def prepare(database: Database, entities: int) -> None:
    await declare_monitor(database, "bench", "1", keep=1e7)
    names = [f"e{n}" for n in range(entities)]
    for start in range(0, entities, 5000):
        some = names[start : start + 5000]
        await add_entities(database, "bench", some, [shard_of(name) for name in some])


async def measure_ingest(dsn: str, pages: int) -> float:
    """Events a second: one statement a page, rows and cursor together."""
    keep_buffers()
    database = await open_database(dsn)
    await prepare(database, 200)
    made = [page_of(number * PAGE, 200) for number in range(pages)]
    async with database.acquire() as connection:
        began = time.perf_counter()
        for page in made:
            move = CursorMove(page.times[-1], page.ids[-1])
            await ingest(database, connection, "bench", page, move)
        took = time.perf_counter() - began
    assert (await read_monitor(database, "bench"))["events"] == pages * PAGE
    await database.close()
    return pages * PAGE / took


COPIED = """
CREATE TABLE copied (LIKE tidemill.monitor_event INCLUDING DEFAULTS INCLUDING IDENTITY INCLUDING INDEXES)
"""


async def measure_copy(dsn: str, pages: int) -> float:
    """Events a second of a COPY of the same rows, page by page, into a table with the same indexes."""
    database = await open_database(dsn)
    await database.fetch(COPIED)
    made = [page_of(number * PAGE, 200) for number in range(pages)]
    columns = ("monitor", "entity", "source_id", "at", "tick", "data", "past")
    async with database.acquire() as connection:
        began = time.perf_counter()
        for page in made:
            rows = zip(page.ids, page.times, page.entities, page.data, strict=True)
            records = [("bench", entity, id, at, 1, data, False) for id, at, entity, data in rows]
            await connection.copy_records_to_table("copied", records=records, columns=columns)
        took = time.perf_counter() - began
    await database.close()
    return pages * PAGE / took


PER_EVENT = (
    "CREATE TABLE per_event (id bigserial PRIMARY KEY, source_id text UNIQUE, entity text, at float8, data json)",
    "CREATE INDEX ON per_event (entity, at)",
    "CREATE TABLE per_event_cursor (name text PRIMARY KEY, at float8, source_id text)",
)


async def measure_per_event(dsn: str, events: int) -> float:
    """Events a second as the document has it: look whether it is there, insert it, one after the other."""
    database = await open_database(dsn)
    for statement in PER_EVENT:
        await database.fetch(statement)
    page = page_of(0, 200, events)
    async with database.acquire() as connection:
        began = time.perf_counter()
        for id, at, entity, data in zip(page.ids, page.times, page.entities, page.data, strict=True):
            if not await connection.fetchval("SELECT count(*) FROM per_event WHERE source_id = $1", id):
                await connection.execute(
                    "INSERT INTO per_event (source_id, entity, at, data) VALUES ($1, $2, $3, $4)", id, entity, at, data
                )
        await connection.execute(
            "INSERT INTO per_event_cursor VALUES ('bench', $1, $2) ON CONFLICT (name) DO UPDATE SET at = excluded.at",
            page.times[-1],
            page.ids[-1],
        )
        took = time.perf_counter() - began
    await database.close()
    return events / took


async def measure_alerts(dsn: str, folder: Path, *, seconds: float, entities: int = 1000) -> float:
    """From the moment that an event is written to the moment that its alert can be read, at p99, in milliseconds."""
    database = await open_database(dsn)
    file = folder / "events.jsonl"
    file.touch()
    runner = monitor_role(database, {"bench": counting(JsonlSource(file))})
    life = asyncio.create_task(runner.run())
    await runner.wait_ready()
    written: dict[str, float] = {}
    seen: dict[str, float] = {}
    draw = random.Random(1)
    number = 0
    until = time.monotonic() + seconds

    async def look() -> None:
        # By id, so that a look costs the same however many alerts there are.
        last = 0
        while len(seen) < len(written) or time.monotonic() < until:
            rows = await database.fetch("SELECT id, key FROM tidemill.alert WHERE id > $1 ORDER BY id", last)
            now = time.time()
            for row in rows:
                last = row["id"]
                seen.setdefault(row["key"], now)
            if time.monotonic() > until + 20:
                break
            await asyncio.sleep(0.01)

    looking = asyncio.create_task(look())
    with file.open("a", buffering=1 << 16) as out:
        while time.monotonic() < until:
            for _ in range(entities // 20):  # every entity once a second
                number += 1
                alarm, now = draw.random() < 0.02, time.time()
                told = {"id": f"n{number}", "at": now, "who": f"e{number % entities}", "alarm": alarm}
                out.write(json.dumps(told) + "\n")
                if alarm:
                    written[f"n{number}"] = now
            out.flush()
            await asyncio.sleep(0.05)
    await looking
    runner.stop()
    await life
    await database.close()
    missing = set(written) - set(seen)
    assert not missing, f"{len(missing)} alerts of {len(written)} were never seen"
    waits = sorted(seen[key] - at for key, at in written.items())
    return waits[int(len(waits) * 0.99)] * 1000


class Steady:
    """A source with an event a second, in pages; it counts how often it is asked."""

    overlap, overlap_most = 2.0, 5400.0

    def __init__(self, start: float) -> None:
        self.events = [self._event(start - 600.0 + second) for second in range(600)]
        self.requests = 0

    def add(self, at: float) -> None:
        self.events.append(self._event(at))

    def _event(self, at: float) -> Delivery:
        id = f"{at:.3f}"
        return Delivery(json.dumps({"id": id, "at": at, "who": f"e{int(at) % 50}"}).encode(), at=at, id=id)

    async def pages(self, since: float | None, token: str | None, now: float) -> AsyncIterator[RecordPage]:
        found = sorted((each for each in self.events if since is None or each.at >= since), key=lambda each: each.at)
        for start in range(0, max(1, len(found)), PAGE):
            self.requests += 1
            yield RecordPage(found[start : start + PAGE])

    async def close(self) -> None: ...


async def measure_straggler(dsn: str, minutes: int) -> float:
    """Requests to a source in the minutes after one event that is 32 minutes late, per request in those before it."""
    database = await open_database(dsn)
    clock = VirtualClock(time.time())
    source = Steady(clock.now())
    watch = counting(source)
    runner = MonitorRunner(database, {watch.name: watch})
    lease = Lease(database, runner.describe, lease_seconds=60.0, heartbeat_seconds=5.0)
    driver = MonitorDriver(database, watch, clock=clock)
    await driver.prepare(await lease.take(lambda why: None))

    async def requests() -> int:
        before = source.requests
        for _ in range(minutes * 60):
            clock.advance(1.0)
            source.add(clock.now())
            await driver.one_tick()
        return source.requests - before

    await requests()  # its past
    before = await requests()
    source.add(clock.now() - 1920.5)
    after = await requests()
    assert (await read_monitor(database, watch.name))["events"] == len(source.events), "the late event was not found"
    await lease.stop_renewing()
    await lease.end("stopped")
    await database.close()
    return after / before


async def fill(dsn: str, entities: int) -> None:
    """Entities with a past and a state, and one new event for each."""
    database = await open_database(dsn)
    await prepare(database, entities)
    async with database.acquire() as connection:
        for start in range(0, entities * 3, 5000):
            await ingest(database, connection, "bench", page_of(start, entities, 5000, "y" * 200), CursorMove())
    await seal_tick(database, "bench", time.time())
    await _until_folded(database, counting(Still()))
    async with database.acquire() as connection:
        for start in range(entities * 3, entities * 4, 5000):
            await ingest(database, connection, "bench", page_of(start, entities, 5000, "y" * 200), CursorMove())
    await database.close()


async def _until_folded(database: Database, watch: Monitor) -> float:
    """Run a monitor until everything is folded; seconds from its start."""
    began = time.monotonic()
    runner = monitor_role(database, {watch.name: watch}, lease_seconds=3.0, heartbeat_seconds=1.0)
    life = asyncio.create_task(runner.run())
    while not life.done():
        try:
            await read_monitor(database, watch.name)
            row = await database.fetchrow("SELECT count(*) AS n FROM tidemill.monitor_entity WHERE head > folded")
            if row is not None and row["n"] == 0:
                break
        except NotFoundError:
            pass
        await asyncio.sleep(0.02)
    took = time.monotonic() - began
    runner.stop()
    await life
    return took


async def restart(dsn: str) -> dict[str, float]:
    """A fresh process whose first tick has an event for every entity."""
    database = await Database(DatabaseSettings(url=dsn)).open()
    took = await _until_folded(database, counting(Still()))
    await database.close()
    return {"restart_s": took, "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


async def idle(dsn: str, seconds: float = 20.0) -> dict[str, float]:
    """What a quiet roster costs: the share of one core, once the pauses have grown."""
    database = await Database(DatabaseSettings(url=dsn)).open()
    runner = monitor_role(database, {"bench": counting(Still())})
    life = asyncio.create_task(runner.run())
    await runner.wait_ready()
    await asyncio.sleep(12)
    began, used = time.monotonic(), time.process_time()
    await asyncio.sleep(seconds)
    share = (time.process_time() - used) / (time.monotonic() - began) * 100
    runner.stop()
    await life
    await database.close()
    return {"idle_percent": share}


def incoming(entry: dict[str, Any], at: float) -> SourceEvent:
    return SourceEvent(str(entry["id"]), at, entry, json.dumps(entry).encode())


if __name__ == "__main__":
    wanted, address = sys.argv[1], sys.argv[2]
    print(json.dumps(asyncio.run(restart(address) if wanted == "restart" else idle(address))))
