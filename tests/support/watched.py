"""Monitors for tests: a fold, a source that a test fills, a clock that a test moves, and an application for processes.

As an application it reads `TIDEMILL_WATCHED` (a folder): `events.jsonl` is the source, `clock` holds the time; or, if
there is a `topic.json`, the topic of Kafka that it names is the source, and the time is that of the world. With
`TIDEMILL_KILL_AT=stage:n` in the environment the process kills itself, as SIGKILL would, at the n-th time that stage is
reached.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.waiting import eventually
from tidemill import App
from tidemill.core.clock import VirtualClock
from tidemill.engine.roles.lease import Lease
from tidemill.monitors import Monitor, absent, momentary, sustained
from tidemill.monitors.runner.runner import MonitorDriver, MonitorRunner
from tidemill.sources import Delivery, JsonlSource, KafkaSource, RecordPage
from tidemill.sources.jsonl import JsonlReader
from tidemill.store.database import Database

FOLDER = "TIDEMILL_WATCHED"
KILL_AT = "TIDEMILL_KILL_AT"
TOPIC = "topic.json"
WATCHED = Path(__file__)


class Heat:
    """Counts, remembers since when it is hot, and lists the peaks."""

    def on_event(self, state: Any, event: Any) -> None:
        state.count = (state.count or 0) + 1
        state.seen = [*(state.seen or [])[-19:], event.id]
        heat = event["heat"]
        if heat > 50:
            state.hot_since = state.hot_since or event.at
        else:
            state.hot_since = None
        if heat > 90:
            state.peaks = [*(state.peaks or []), {"id": event.id, "at": event.at, "heat": heat}]


def triggers(**changes: Any) -> list[Any]:
    return [
        sustained(
            "hot",
            when=lambda s, now: s.hot_since is not None,
            since=lambda s: s.hot_since,
            **{"realert": "10m", **changes},
        ),
        momentary("peak", of=lambda s: s.peaks or [], severity="critical"),
        absent("silent", after="5m"),
    ]


class Pages:
    """A source whose pages the test writes. What is older than asked for is left out, as an API would."""

    overlap = 2.0
    overlap_most = 600.0

    def __init__(self, *, page: int = 500, newest_first: bool = False) -> None:
        self.events: list[Delivery] = []
        self.asked: list[float | None] = []
        self.failures: list[Exception] = []
        self._page = page
        self._newest_first = newest_first

    def add(self, *events: Delivery) -> None:
        self.events += events

    async def pages(self, since: float | None, token: str | None, now: float) -> AsyncIterator[RecordPage]:
        self.asked.append(since)
        if self.failures:
            raise self.failures.pop(0)
        found = [event for event in self.events if since is None or event.at >= since]
        found.sort(key=lambda event: (event.at, len(event.id or ""), event.id))
        if self._newest_first:
            found.reverse()
        for start in range(0, max(1, len(found)), self._page):
            last = start + self._page >= len(found)
            yield RecordPage(found[start : start + self._page], complete=last or not self._newest_first)

    async def history(self, entity: str, since: float, token: str | None) -> AsyncIterator[RecordPage]:
        found = [e for e in self.events if e.at >= since and json.loads(e.payload)["who"] == entity]
        begin = int(token or 0)
        for start in range(begin, len(found), self._page):
            yield RecordPage(found[start : start + self._page], token=str(start + self._page))

    async def close(self) -> None: ...


class Parts:
    """A source in parts, each of which the test fills; several watchers may read the same."""

    overlap = overlap_most = 0.0

    def __init__(self, count: int) -> None:
        self.held: list[list[Delivery]] = [[] for _ in range(count)]

    async def partitions(self) -> int:
        return len(self.held)

    async def read(self, positions: Mapping[int, int | None], now: float) -> AsyncIterator[RecordPage]:
        for part, position in positions.items():
            begin, held = position or 0, self.held[part]
            for start in range(begin, len(held), 5):
                yield RecordPage(held[start : start + 5], positions={part: min(start + 5, len(held))})
        ends = {part: len(self.held[part]) for part in positions}
        yield RecordPage([], positions=ends, read_until=dict.fromkeys(positions, now))

    async def close(self) -> None: ...


def event(id: Any, at: float, who: str = "a", heat: float = 0.0, **more: Any) -> Delivery:
    data = {"id": str(id), "at": at, "who": who, "heat": heat, **more}
    return Delivery(json.dumps(data).encode(), at=at, id=str(id))


def heat_monitor(source: Any, **options: Any) -> Monitor:
    wanted = {"fold": Heat, "triggers": triggers(), "idle": 0.01, "idle_max": 0.02, **options}
    return Monitor("heat", source=source, entity=lambda e: e["who"], **wanted)


@asynccontextmanager
async def watching(
    database: Database, watch: Monitor, clock: Any = None, task: Any = None, reached: Any = lambda stage: None
) -> AsyncIterator[MonitorDriver]:
    """A watcher that owns everything and ticks when the test says so: `await watcher.one_tick()`."""
    runner = MonitorRunner(database, {watch.name: watch})
    lease = Lease(database, runner.describe, lease_seconds=30.0, heartbeat_seconds=1.0)
    await database.open()
    owner = await lease.take(lambda why: None)
    watcher = MonitorDriver(database, watch, task, clock=clock or VirtualClock(1000.0), heartbeat=0.0, reached=reached)
    await watcher.prepare(owner)
    try:
        yield watcher
    finally:
        await lease.stop_renewing()
        await lease.end("stopped")


ALERTS = """
SELECT monitor, trigger, entity, kind, key, severity, started_at, opened_at, tick, resolved_at, resolution, acked_at,
       realert_at, again_after IS NOT NULL AS again FROM tidemill.alert ORDER BY trigger, entity, opened_at, key
"""
ENTITIES = """
SELECT entity, folded, at, id, last_at, count, due_at, version, state::text, marks::text, problem
FROM tidemill.monitor_entity ORDER BY entity
"""
EVENTS = "SELECT entity, source_id, at, tick, data::text FROM tidemill.monitor_event ORDER BY at, source_id"
HISTORY = """
SELECT a.trigger, a.entity, a.key, h.at, h.action, h.who, h.detail
FROM tidemill.alert_history AS h JOIN tidemill.alert AS a ON a.id = h.alert ORDER BY 1, 2, 3, 4, 5, 6, 7
"""


async def everything(database: Database) -> str:
    """All that a monitor has written and that must not depend on when it was killed."""
    statements = (ALERTS, ENTITIES, EVENTS, HISTORY)
    parts = [[list(row) for row in await database.fetch(statement)] for statement in statements]
    return json.dumps(parts, default=str, indent=1)


async def open_triggers(database: Database) -> set[tuple[str, str]]:
    rows = await database.fetch("SELECT entity, trigger FROM tidemill.alert WHERE resolved_at IS NULL")
    return {(row["entity"], row["trigger"]) for row in rows}


def write_round(folder: Path, events: Sequence[dict[str, Any]], now: float) -> None:
    """A later time, and then more events in the file."""
    clock = folder / "clock.new"
    clock.write_text(repr(now))
    clock.rename(folder / "clock")
    with (folder / "events.jsonl").open("ab", buffering=0) as file:
        file.write(b"".join(json.dumps(each).encode() + b"\n" for each in events))


async def settled(database: Database, count: int, tick_at: float) -> Any:
    """Wait until so many events are in the log and everything up to a time has been judged."""
    return await eventually(
        lambda: database.fetchrow(
            """
            SELECT FROM tidemill.monitor AS m WHERE m.events = $1 AND m.tick_at >= $2 AND NOT EXISTS (
                SELECT FROM tidemill.monitor_entity AS e WHERE e.monitor = m.name
                AND (e.head > e.folded OR e.due_at <= $2))
            """,
            count,
            tick_at,
        ),
        what=f"{count} events are judged at {tick_at}",
    )


class FileClock:
    """The time that a file tells."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def now(self) -> float:
        return float(self._path.read_text())

    monotonic = now


class Rounds:
    """A file of events that is read only by a tick that knows the time at which they were written."""

    overlap = overlap_most = 0.0

    def __init__(self, folder: Path) -> None:
        self._reader = JsonlReader(JsonlSource(folder / "events.jsonl", page=7), restart=True)
        self._clock = FileClock(folder / "clock")

    async def pages(self, since: float | None, token: str | None, now: float) -> AsyncIterator[RecordPage]:
        async for page in self._reader.pages(since, token, now):
            if self._clock.now() != now:
                return
            yield page

    async def close(self) -> None: ...


def killer(wish: str | None) -> Any:
    """Called with each stage that is reached; ends the process at the one that is wished for."""
    if not wish:
        return lambda stage: None
    wanted, _, number = wish.partition(":")
    left = [int(number or 1)]

    def reached(stage: str) -> None:
        if stage == wanted:
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)

    return reached


def lines(count: int, start: float, who: Iterable[str] = ("a", "b", "c")) -> list[dict[str, Any]]:
    """Events that make alerts come and go."""
    names = list(who)
    return [
        {"id": f"{start:g}-{i}", "at": start + i * 0.5, "who": names[i % len(names)], "heat": (i * 37) % 100}
        for i in range(count)
    ]


app = App("test")
if FOLDER in os.environ:
    folder = Path(os.environ[FOLDER])
    options = {"reached": killer(os.environ.get(KILL_AT))}
    if (folder / TOPIC).exists():
        app.monitor(heat_monitor(KafkaSource(**json.loads((folder / TOPIC).read_text())), idle=0.05, idle_max=0.2))
    else:
        app.monitor(heat_monitor(Rounds(folder)))
        options["clock"] = FileClock(folder / "clock")
    make_runner = app.monitors.runner
    app.monitors.runner = lambda *given: make_runner(*given, **options)  # type: ignore[method-assign]
