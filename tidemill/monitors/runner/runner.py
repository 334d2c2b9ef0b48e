"""Runs monitors: polls the source, stores events, evaluates entities and stores alerts, tick after tick, until stopped.

Several processes may follow the same monitor. Each has a lease; the entities are divided among the live processes, and
the one with the first share reads the source for all. A source with partitions is read by every process, each the
partitions of its shares. A process that dies is replaced when its lease expires.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

import structlog

from tidemill.core.clock import SYSTEM_CLOCK, Clock
from tidemill.core.codec import storable
from tidemill.core.duration import format_duration
from tidemill.core.errors import LeaseLostError
from tidemill.engine.containment.cancellation import end
from tidemill.engine.containment.crash_record import CallWatch, CrashRecord, RefusedCallError, crash_record
from tidemill.engine.containment.watchdog import STALL_LIMIT, Culprit, Watchdog
from tidemill.engine.event_wait import wait_for_event
from tidemill.engine.jobs.task import Task
from tidemill.engine.roles.lease import Lease, ProcessStatus, describe_process
from tidemill.engine.roles.operator_control import OperatorControl
from tidemill.engine.roles.role import Life, Role
from tidemill.engine.topic_callbacks import TopicCallbacks
from tidemill.monitors.definition.event import MonitorTick
from tidemill.monitors.definition.monitor import Monitor
from tidemill.monitors.reducer import poll_pace, tick
from tidemill.monitors.reducer.cursor import SourceCursor
from tidemill.monitors.reducer.fold import describe
from tidemill.monitors.reducer.new_alert import rule_as_text
from tidemill.monitors.runner import fold_upgrade
from tidemill.monitors.runner.callbacks import Callbacks, find_culprit, guilty_calls
from tidemill.monitors.runner.evaluate import Evaluation
from tidemill.monitors.runner.ingest import Ingest, Ingested, keep_buffers
from tidemill.sources.base import PartitionReader, SourceContext, SourceError
from tidemill.sources.opening import open_reader
from tidemill.store.database import Database
from tidemill.store.database_errors import CLASHES, is_full, is_unavailable
from tidemill.store.jobs.workers import CONTROL_CHANNEL, WorkerCard
from tidemill.store.monitors.events import drop_old, make_partitions
from tidemill.store.monitors.monitors import (
    MONITORS_CHANNEL,
    SHARDS,
    claim_shards,
    declare_monitor,
    list_members,
    member_queue,
    next_due,
    read_monitor,
    seal_tick,
    write_status,
)
from tidemill.store.monitors.problems import note_problems
from tidemill.store.streams.event_log import STREAMS_CHANNEL

log = structlog.get_logger("tidemill.monitors")

T = TypeVar("T")

STATUS_EVERY = 1.0
HOUSEKEEPING = 3600.0
SAFETY_POLL = 2.0
IDLE = 0.5  # seconds between polls of a source that says nothing about it


class MonitorDriver:
    """Drives one monitor in one process."""

    def __init__(
        self,
        database: Database,
        monitor: Monitor,
        task: Task[Any, Any] | None = None,
        *,
        clock: Clock,
        heartbeat: float = 3.0,
        reached: Callable[[str], None] = lambda stage: None,
        record: CrashRecord | None = None,
        source_lock: asyncio.Lock | None = None,
        may_run: Callable[[], bool] = lambda: True,
    ) -> None:
        """`source_lock` lets one source be read at a time, while it is not known which one ends processes."""
        self.monitor = monitor
        self.callbacks = Callbacks(monitor.name, record or crash_record())
        self._record = record or crash_record()
        self._source_lock = source_lock or asyncio.Lock()
        self.wakeup = asyncio.Event()
        self.timings: dict[str, float] = {}
        self.ticks, self.is_ticking = 0, False
        self._database = database
        self._clock = clock
        self._heartbeat = heartbeat
        self._reached = reached
        self.topics = TopicCallbacks()
        context = SourceContext(f"monitor:{monitor.name}", uuid4(), database, on_notify=self.topics.on)
        self.reader = open_reader(monitor.source, context)
        self._ingest = Ingest(database, monitor, self.reader, self.callbacks, reached)
        self._evaluation = Evaluation(database, monitor, task, self.callbacks, reached)
        idle = getattr(self.reader, "idle", IDLE) if monitor.idle is None else monitor.idle
        failure_first = IDLE if monitor.idle is None else monitor.idle
        self._limits = poll_pace.PollLimits(idle, max(idle, monitor.idle_max), monitor.failure_max, failure_first)
        self._pace = self._tick_pace = poll_pace.start(self._limits)
        self._owner = 0
        self._shares: list[int] = []
        self._share_at = 0.0
        self._status_at = 0.0
        self._reported_failures = 0
        self._housekeeping_at = 0.0
        self._resets: int | None = None
        self._was_current = False
        self._stopping = self._reads = False
        self._rules = {trigger.name: rule_as_text(trigger) for trigger in monitor.triggers}
        self._may_run = may_run
        self.is_resting = False
        """Whether it has given its entities to other processes, because an operator wants it to."""

    @property
    def leads(self) -> bool:
        """Whether this process reads the source for all."""
        return 0 in self._shares

    @property
    def partitioned(self) -> bool:
        """Whether every process reads the source, each some of its partitions."""
        return isinstance(self.reader, PartitionReader)

    def stop(self) -> None:
        self._stopping = True
        self.wakeup.set()

    async def prepare(self, owner: int) -> None:
        """Store the declaration of the monitor, and join it."""
        self._owner = owner
        await declare_monitor(self._database, self.monitor.name, self.monitor.fold.version, keep=self.monitor.keep)

    async def run(self) -> None:
        """Tick until stopped; failures of the source, the database and user code do not end it."""
        while not self._stopping:
            began, self.is_ticking = time.monotonic(), True
            try:
                pause = await self.one_tick() if self._may_run() else await self._rest()
            except LeaseLostError as error:
                log.warning("another process has taken over entities", monitor=self.monitor.name, why=str(error))
                self._evaluation.cache.clear()
                self._share_at, pause = 0.0, 0.1
            except CLASHES as error:
                log.info("conflict with another process: retrying", monitor=self.monitor.name, why=str(error))
                pause = 0.1
            except Exception as error:  # noqa: BLE001 - the other monitors of the process go on
                if is_unavailable(error) or is_full(error):
                    log.warning("the database is unreachable or full: retrying", error=str(error))
                    pause = 1.0
                else:
                    pause = await self._tick_failed(error)
            self._reached("sleep")
            self.is_ticking = False
            # Counted from the start of the tick, so that work does not make polls rarer.
            await self._sleep(max(0.0, pause - (time.monotonic() - began)))
        await claim_shards(self._database, self.monitor.name, self._owner, [])
        with suppress(Exception):
            await self.reader.close()

    async def _rest(self) -> float:
        """Give the entities to other processes; returns how long to sleep."""
        self.wakeup.clear()
        self._reads = False
        if not self.is_resting:
            await claim_shards(self._database, self.monitor.name, self._owner, [])
            self._evaluation.cache.clear()
            self._shares, self._share_at, self.is_resting = [], 0.0, True
        return HOUSEKEEPING

    async def one_tick(self) -> float:
        """Run all stages of one tick in order; returns how long to sleep."""
        self.wakeup.clear()
        self.is_resting = False
        began = time.monotonic()
        now = self._clock.now()
        row = await self._check_reset(began)
        current = row["version"] == self.monitor.fold.version
        facts = tick.Facts(row["paused"], self.leads, self.partitioned, len(self._shares), current)
        planned = tick.stages(facts)
        self._reads = "ingest" in planned
        self.timings = {"reset": time.monotonic() - began}
        sealed = MonitorTick(row["tick"], row["tick_at"])
        active, pause = False, self._idle_pause(row, current)
        if "ingest" in planned:
            active, done = await self._poll(row, now, backfill="roster" in planned)
            sealed = done or sealed
            pause = self._pace.pause
        if "evaluate" in planned:
            work = partial(self._evaluation.run, self._owner, self._shares, row["off"], sealed)
            moved = await self._timed("evaluate", work)
            self.timings["triggers"] = self._evaluation.writing
            self.timings["evaluate"] -= self._evaluation.writing
            active = active or bool(moved)
        if not row["paused"] and not current:
            pause = await self._build()
        elif "ingest" in planned and self._pace.healthy and pause > self._limits.idle:
            due = await next_due(self._database, self.monitor.name)
            pause = pause if due is None else min(pause, max(self._limits.idle, due - now))
        self.ticks += 1
        self._tick_pace = poll_pace.start(self._limits)
        has_changed = self._pace.failures != self._reported_failures
        await self._write_status(is_paused=facts.paused, force=active or has_changed)
        return pause

    # -- the stages -------------------------------------------------------------------------------

    async def _check_reset(self, began: float) -> Any:
        self._reached("reset")
        name, version = self.monitor.name, self.monitor.fold.version
        row = await read_monitor(self._database, name)
        if row["resets"] != self._resets:
            self._resets = row["resets"]
            self._evaluation.cache.clear()
        current = row["version"] == version
        if began >= self._share_at:
            members = await list_members(self._database, name, version)
            wanted = tick.wanted_shares(members, self._owner, SHARDS) if current else []
            owned = await claim_shards(self._database, name, self._owner, wanted)
            if owned != self._shares:
                leads = 0 in owned
                log.info("shares changed", monitor=name, shares=len(owned), members=len(members), leads=leads)
            self._shares = owned
            # Soon again while another process still holds one of our shares.
            self._share_at = began + (self._heartbeat if len(owned) == len(wanted) else min(0.5, self._heartbeat))
        self._was_current = self._was_current or current
        return row

    async def _poll(self, row: Any, now: float, *, backfill: bool) -> tuple[bool, MonitorTick | None]:
        """Read backfills, then all new events; the tick is completed only if the source has answered."""
        if now >= self._housekeeping_at:
            # A partition must exist before its events arrive: later ones are stored in the default partition.
            await make_partitions(self._database, now)
            await drop_old(self._database, now)
            self._housekeeping_at = now + HOUSEKEEPING
        try:
            async with self._source_lock if self._record.has_suspects else nullcontext():
                with self.callbacks.reading_source():
                    backfilled = await self._timed("roster", partial(self._ingest.backfill, now)) if backfill else 0
                    ingested = await self._timed("ingest", partial(self._ask, row, now))
        except RefusedCallError as error:
            await self._failed(f"the source is not read: {error}")
            return False, None
        except SourceError as error:
            await self._failed(str(error))
            return False, None
        if self._pace.failures:
            log.info("the source answers again", monitor=self.monitor.name, after=self._pace.failures)
        done = await seal_tick(
            self._database, self.monitor.name, now, read_until=ingested.read_until, parts=ingested.parts
        )
        self._reached("sealed")
        active = bool(backfilled or ingested.count)
        self._pace = poll_pace.after_success(self._pace, self._limits, active=active)
        return active, None if done is None else MonitorTick(*done)

    async def _ask(self, row: Any, now: float) -> Ingested:
        reader = self.reader
        if isinstance(reader, PartitionReader):
            return await self._ingest.read_partitions(reader, self._owner, self._shares, now)
        cursor = SourceCursor(row["cursor_at"], row["cursor_id"] or "", row["cursor_token"])
        return await self._ingest.read_pages(reader, cursor, now)

    async def _tick_failed(self, error: Exception) -> float:
        """Report a tick that has failed; returns how long to wait."""
        log.error("a tick failed", monitor=self.monitor.name, exc_info=error)
        was, self._tick_pace = self._tick_pace, self._after_failure(self._tick_pace, describe(error))
        try:
            await self._report(was, self._tick_pace, "tick")
            row = await read_monitor(self._database, self.monitor.name)
            await self._write_status(is_paused=row["paused"], force=True)
        except Exception as second:  # noqa: BLE001 - the next tick reports it
            log.warning("the failure cannot be stored", monitor=self.monitor.name, error=describe(second))
        return self._tick_pace.pause

    async def _failed(self, error: str) -> None:
        was, self._pace = self._pace, self._after_failure(self._pace, error)
        await self._report(was, self._pace, "source")

    def _after_failure(self, pace: poll_pace.PollPace, error: str) -> poll_pace.PollPace:
        return poll_pace.after_failure(pace, self._limits, error, seed=self.monitor.name)

    async def _report(self, was: poll_pace.PollPace, now: poll_pace.PollPace, place: str) -> None:
        tell = log.error if was.healthy and not now.healthy else log.warning
        tell(
            f"the {place} failed" if now.healthy else f"UNHEALTHY: the {place} keeps failing",
            monitor=self.monitor.name,
            failures=now.failures,
            next_try=format_duration(now.pause),
            error=now.error,
        )
        async with self._database.acquire() as connection:
            problems = [(place, "", storable(now.error or ""))]
            await note_problems(self._database, connection, self.monitor.name, problems)

    async def _build(self) -> float:
        if self._was_current:
            return tick.SUPERSEDED_RECHECK  # A newer version has replaced this one; it only waits to be stopped.
        if await fold_upgrade.build_some(self._database, self.monitor, self.callbacks):
            self._share_at = 0.0
        return 0.0

    def _idle_pause(self, row: Any, current: bool) -> float:
        if row["paused"]:
            return tick.PAUSED_RECHECK
        return SAFETY_POLL if current else tick.SUPERSEDED_RECHECK

    async def _timed(self, stage: str, work: Callable[[], Awaitable[T]]) -> T:
        self._reached(stage)
        began = time.monotonic()
        try:
            return await work()
        finally:
            self.timings[stage] = self.timings.get(stage, 0.0) + time.monotonic() - began

    async def _sleep(self, seconds: float) -> None:
        # Processes that share a source wake each other, and a broker wakes them; this must not make polls too frequent.
        more = getattr(self.reader, "wait", None) if self._reads and not self._pace.failures else None
        least = min(seconds, self._limits.idle) if self.partitioned or more is not None else 0.0
        await asyncio.sleep(least)
        if seconds <= least:
            return
        waiting = None if more is None else asyncio.create_task(self._wake_with(more))
        try:
            await wait_for_event(self.wakeup, seconds - least)
        finally:
            await end([] if waiting is None else [waiting])

    async def _wake_with(self, more: Callable[[], Awaitable[None]]) -> None:
        """Poll as soon as the source has more, or fails."""
        with suppress(Exception):
            await more()
        self.wakeup.set()

    async def _write_status(self, *, is_paused: bool, force: bool) -> None:
        if not self.leads or (time.monotonic() < self._status_at and not force):
            return
        self._status_at = time.monotonic() + max(STATUS_EVERY, self._pace.pause)
        self._reported_failures = self._pace.failures
        reader = self.reader
        pace = max(self._pace, self._tick_pace, key=lambda each: each.failures)
        status = {
            "health": "healthy" if pace.healthy else "UNHEALTHY",
            "failures": pace.failures,
            "error": pace.error,
            "pause": pace.pause,
            "overlap": self._ingest.overlap(self._clock.now()),
            "overlap_least": reader.overlap,
            "overlap_most": reader.overlap_most,
            "reading": None if self._ingest.lateness is None else self._ingest.lateness.costs,
            "stages": {stage: round(seconds, 6) for stage, seconds in self.timings.items()},
            "in_memory": len(self._evaluation.cache),
            "memory_bytes": self._evaluation.cache.size,
            "triggers": [trigger.name for trigger in self.monitor.triggers],
            "rules": self._rules,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "paused": is_paused,
        }
        await write_status(self._database, self.monitor.name, status)


class MonitorRunner:
    """Follows all monitors of an application."""

    def __init__(
        self,
        database: Database,
        monitors: Mapping[str, Monitor],
        task: Task[Any, Any] | None = None,
        *,
        heartbeat_seconds: float = 3.0,
        clock: Clock = SYSTEM_CLOCK,
        reached: Callable[[str], None] = lambda stage: None,
        record: CrashRecord | None = None,
    ) -> None:
        self.record = record or crash_record()
        self._tasks: dict[asyncio.Task[Any], Callbacks] = {}
        source_lock = asyncio.Lock()
        self._life = Life()
        self.control = OperatorControl(database, self._parts, self._control_changed)
        self.channels = {
            MONITORS_CHANNEL: self._notified,
            CONTROL_CHANNEL: self.control.wake,
            STREAMS_CHANNEL: self._published,
        }
        self.drivers = {
            name: MonitorDriver(
                database,
                monitor,
                task,
                clock=clock,
                heartbeat=heartbeat_seconds,
                reached=reached,
                record=self.record,
                source_lock=source_lock,
                may_run=partial(self._may_run, name),
            )
            for name, monitor in monitors.items()
        }

    def describe(self) -> WorkerCard:
        """The monitors that it follows, for the worker list."""
        queues = (member_queue(name, each.monitor.fold.version) for name, each in self.drivers.items())
        return describe_process(queues, max_concurrency=len(self.drivers))

    def process_status(self) -> ProcessStatus:
        """Its status, reported with the lease."""
        is_busy = not all(driver.is_resting for driver in self.drivers.values())
        return ProcessStatus(self.control.status(is_stopping=self._life.is_stopping, is_busy=is_busy))

    def _parts(self) -> list[str]:
        return [self._part(name) for name in self.drivers]

    def _part(self, name: str) -> str:
        """A monitor's name among the queues of workers."""
        return member_queue(name, self.drivers[name].monitor.fold.version)

    def _may_run(self, name: str) -> bool:
        return self.control.is_running(self._part(name))

    def _control_changed(self) -> None:
        for driver in self.drivers.values():
            driver.wakeup.set()

    async def work(self, life: Life) -> None:
        """Follow all monitors until stopped."""
        keep_buffers()
        self._life = life
        self._count_deaths()
        await self.control.read()
        for driver in self.drivers.values():
            await driver.prepare(life.worker_id)
        async with asyncio.TaskGroup() as group:
            control = group.create_task(self.control.follow(), name="operator control")
            for driver in self.drivers.values():
                self._tasks[group.create_task(driver.run())] = driver.callbacks
            life.ready()
            log.info("monitors started", monitors=list(self.drivers), worker=life.worker_id)
            await life.stopped.wait()
            for driver in self.drivers.values():
                driver.stop()
            control.cancel()
        log.info("monitors stopped")

    def find_culprit(self, task: asyncio.Task[Any] | None) -> Culprit | None:
        """The callback or source that keeps the event loop from turning."""
        return find_culprit([driver.callbacks for driver in self.drivers.values()], self._tasks, task)

    def _count_deaths(self) -> None:
        """Find out in which calls the process before this one died."""
        for key in self.record.count_death("monitor", guilty_calls):
            log.error("THE PREVIOUS PROCESS DIED IN A CALLBACK", call=" ".join(filter(None, key.split("\0"))))

    def _published(self, payload: str) -> None:
        for driver in self.drivers.values():
            driver.topics.notified(payload)

    def _notified(self, name: str) -> None:
        for driver in self.drivers.values():
            # The only reader of a source needs no wake-up for its own events, and ticks soon enough for requests.
            if name in (driver.monitor.name, "*") and (driver.partitioned or not driver.leads):
                driver.wakeup.set()


def monitor_role(
    database: Database,
    monitors: Mapping[str, Monitor],
    task: Task[Any, Any] | None = None,
    *,
    lease_seconds: float = 15.0,
    heartbeat_seconds: float = 3.0,
    stall_limit: float = STALL_LIMIT,
    **options: Any,
) -> Role[MonitorRunner]:
    """A monitor runner with its lease, as a role."""
    runner = MonitorRunner(database, monitors, task, heartbeat_seconds=heartbeat_seconds, **options)
    lease = Lease(
        database,
        runner.describe,
        lease_seconds=lease_seconds,
        heartbeat_seconds=heartbeat_seconds,
        process_status=runner.process_status,
        watchdog=Watchdog(database, CallWatch(runner.record, runner.find_culprit), stall_limit=stall_limit),
    )
    return Role(runner, database, lease=lease, name="monitor")
