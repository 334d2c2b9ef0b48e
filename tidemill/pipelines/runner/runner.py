"""The role that drives pipelines: `tidemill pipeline run app.py`.

Three things wake it: notifications of written states (NOTIFY), the operating system's notifications of changed files
(watchfiles), and a scan every `scan_interval`, because both may miss something. Of several such processes, one drives a
pipeline and the others stand by.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tidemill.core.clock import SYSTEM_CLOCK, Clock
from tidemill.core.codec import decode
from tidemill.core.errors import PayloadError
from tidemill.engine.containment.crash_record import CallWatch, crash_record
from tidemill.engine.containment.watchdog import Watchdog
from tidemill.engine.event_wait import wait_for_event
from tidemill.engine.roles.lease import Lease, ProcessStatus, describe_process
from tidemill.engine.roles.operator_control import OperatorControl
from tidemill.engine.roles.role import Life, Role, RoleWork
from tidemill.engine.settings import Settings
from tidemill.pipelines.definition.pipeline import Pipeline, Stage
from tidemill.pipelines.reducer.plan import BuildStep
from tidemill.pipelines.runner.build import build_threads
from tidemill.pipelines.runner.build_containment import BuildContainment
from tidemill.pipelines.runner.build_job import enqueue_builds
from tidemill.pipelines.runner.driver import LOOK_AGAIN, Driver
from tidemill.pipelines.runner.file_watcher import watch_files
from tidemill.pipelines.runner.leads import Leads
from tidemill.pipelines.runner.log import log
from tidemill.pipelines.runner.pending_changes import ChangeNotice, PendingChanges
from tidemill.pipelines.stores.base import StateStoreError
from tidemill.pipelines.view.pipeline_view import fits, give_back_memory
from tidemill.store.database import Connection, Database
from tidemill.store.database_errors import is_transient
from tidemill.store.jobs.workers import CONTROL_CHANNEL, WorkerCard
from tidemill.store.migrate import Chain
from tidemill.store.notify import ANYTHING, Callback
from tidemill.store.states import states as rows
from tidemill.store.states.backfills import mark_backfill_due
from tidemill.store.states.build_jobs import served_queues
from tidemill.store.states.history import forget_builds

STAND_BY = 2.0
CHECK_FLIGHTS = 5.0
TRUST_AFTER = 0.25
PACE = 1.0
WARN_AFTER = 10.0  # A worker that is started together with this process is there by then.
WARN_AGAIN = 60.0
HOUSEKEEPING = 3600.0
FIRST_HOUSEKEEPING = 5.0
MANY = 5000  # changed paths from which on a full scan is faster


class KeptPipeline:
    """A pipeline that is driven until it is replaced."""

    def __init__(self, pipeline: Pipeline, after: asyncio.Task[None] | None) -> None:
        """`after` is the task of the pipeline that had its name before: it ends first."""
        self.pipeline = pipeline
        self.after = after
        self.pending = PendingChanges()
        self.leaving = asyncio.Event()
        self.changed = asyncio.Event()
        """Set when it is left, or when an operator has asked for something."""
        self.task: asyncio.Task[None] | None = None

    def leave(self) -> None:
        self.leaving.set()
        self.changed.set()
        self.pending.event.set()


class PipelineRunner:
    """Drives pipelines until it is stopped. The set of pipelines may change: `replace`."""

    def __init__(
        self,
        database: Database,
        pipelines: Sequence[Pipeline],
        task_of: Callable[[Stage], Any] | None,
        *,
        keep_days: int = 30,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Without `task_of`, there are no workers: everything is built in this process."""
        for pipeline in pipelines:
            pipeline.hash_stages()
        self.record = crash_record()
        self.containment = BuildContainment(self.record)
        self.control = OperatorControl(database, self._parts, self._control_changed)
        self.channels: dict[str, Callback | None] = {
            rows.STATES_CHANNEL: self._heard,
            CONTROL_CHANNEL: self.control.wake,
        }
        self.drivers: dict[str, Driver] = {}
        self._database = database
        self._leads = Leads(database)
        self._task_of = task_of
        self._keep_days = keep_days
        self._clock = clock
        self._life = Life()
        self._wake = asyncio.Event()
        self._driven: set[str] = set()
        self._check_served: dict[str, float] = {}  # when to check next whether a worker serves a queue
        self._kept = {pipeline.name: KeptPipeline(pipeline, None) for pipeline in pipelines}
        self._group: asyncio.TaskGroup | None = None

    def replace(self, pipelines: Iterable[Pipeline]) -> None:
        """Drive these from now on. A replacement starts when the builds of its predecessor have ended."""
        wanted = {pipeline.name: pipeline for pipeline in pipelines}
        for name, kept in list(self._kept.items()):
            if wanted.get(name) is kept.pipeline:
                del wanted[name]
                continue
            kept.leave()
            del self._kept[name]
            if name in wanted:
                self._kept[name] = KeptPipeline(wanted.pop(name), kept.task)
                self._begin(self._kept[name])
        for name, pipeline in wanted.items():
            self._kept[name] = KeptPipeline(pipeline, None)
            self._begin(self._kept[name])

    def _begin(self, kept: KeptPipeline) -> None:
        if self._group is not None and not self._life.is_stopping:
            kept.task = self._group.create_task(self._keep_driving(kept), name=f"pipeline {kept.pipeline.name}")

    async def work(self, life: Life) -> None:
        """Drive the pipelines until stopped; ready when each is driven, here or elsewhere."""
        self._life = life
        self.containment.count_death()
        build_threads().on_exhausted = lambda: life.give_up("has lost as many threads as it has for builds")
        await self.control.read()
        async with asyncio.TaskGroup() as group:
            self._group = group
            control = group.create_task(self.control.follow(), name="operator control")
            for kept in self._kept.values():
                self._begin(kept)
            self._check_ready()
            pacing = group.create_task(self._pace_backfills(), name="backfills with a rate")
            await life.stopped.wait()
            for kept in self._kept.values():
                kept.leave()
            pacing.cancel()
            control.cancel()

    def describe(self) -> WorkerCard:
        """The pipelines that it drives, for the worker list."""
        return describe_process(self._parts())

    def process_status(self) -> ProcessStatus:
        """Its status, reported with the lease."""
        running = sum(driver.running_here for driver in self.drivers.values())
        status = self.control.status(is_stopping=self._life.is_stopping, is_busy=bool(self.drivers))
        return ProcessStatus(status, running, is_busy=running > 0)

    def _parts(self) -> list[str]:
        return [_part(name) for name in self._kept]

    def _control_changed(self) -> None:
        for kept in self._kept.values():
            kept.pending.event.set()
            kept.changed.set()

    def _may_drive(self, kept: KeptPipeline) -> bool:
        return not kept.leaving.is_set() and self.control.is_running(_part(kept.pipeline.name))

    async def _pace_backfills(self) -> None:
        """Mark the states of backfills with a rate when they are due."""
        while True:
            self._wake.clear()
            if await mark_backfill_due(self._database, list(self._kept)):
                await asyncio.sleep(PACE)
                continue
            await wait_for_event(self._wake, HOUSEKEEPING)

    def _heard(self, payload: str) -> None:
        if payload == ANYTHING:
            self._wake.set()
            for kept in self._kept.values():
                kept.pending.notice.reload = kept.pending.notice.everything = True
                kept.pending.event.set()
            return
        try:
            change: rows.StatesChanged = decode(payload, rows.StatesChanged)
        except PayloadError:
            return
        if not change.stage and not change.paths:
            self._wake.set()  # A request for the whole pipeline, such as a backfill.
        for name, kept in self._kept.items():
            driver = self.drivers.get(name)
            if driver is not None and self._apply_change(change, driver, kept.pending.notice):
                kept.pending.event.set()

    def _apply_change(self, change: rows.StatesChanged, driver: Driver, notice: ChangeNotice) -> bool:
        """Turn a notification into pending changes; returns whether it concerns this pipeline."""
        if change.pipeline == driver.pipeline.name:
            if change.by == driver.builder:
                return False
            if change.stage:
                notice.entities.setdefault(change.stage, set()).update(change.entities)
            elif not change.paths:
                notice.reload = True
        else:
            other = self.drivers.get(change.pipeline)
            if other is not None and other.pipeline_view.states != driver.pipeline_view.states:
                return False
            if not change.paths and change.entities:
                return False  # Nothing of it can be an input here.
            notice.everything |= not change.paths
        notice.paths.update(change.paths)
        return True

    async def _keep_driving(self, kept: KeptPipeline) -> None:
        """Drive one pipeline whenever no other process does, across failures of the database."""
        pipeline = kept.pipeline
        if kept.after is not None:
            await asyncio.wait([kept.after])
        while not kept.leaving.is_set():
            kept.changed.clear()
            if not self._may_drive(kept):
                self._note_driven(pipeline)
                await kept.changed.wait()
                continue
            try:
                async with self._leads.hold(pipeline.name) as lead:
                    if lead is not None:
                        await self._drive(kept, lead)
                        continue
                    self._note_driven(pipeline)
            except Exception as error:
                if isinstance(error, StateStoreError):
                    log.error("the states cannot be reached", pipeline=pipeline.name, error=str(error))
                elif is_transient(error):
                    log.warning("the database is unavailable", pipeline=pipeline.name, error=str(error))
                else:
                    raise
            await wait_for_event(kept.changed, STAND_BY)

    def _note_driven(self, pipeline: Pipeline) -> None:
        """Record that a pipeline is driven, here or elsewhere."""
        self._driven.add(pipeline.name)
        self._check_ready()

    def _check_ready(self) -> None:
        if self._driven >= self._kept.keys():
            self._life.ready()

    async def _drive(self, kept: KeptPipeline, lead: Connection) -> None:
        pipeline, pending = kept.pipeline, kept.pending
        lead.add_termination_listener(lambda _: pending.event.set())
        dispatch = None if self._task_of is None else self._dispatch
        driver = Driver(
            self._database, pipeline, dispatch=dispatch, on_build_ended=pending.event.set, clock=self._clock,
            containment=self.containment,
        )  # fmt: skip
        self.drivers[pipeline.name] = driver
        pending.take()
        watching = asyncio.create_task(watch_files(driver.pipeline_view, pending))
        try:
            await self._find_flights(driver)
            await driver.act(await driver.begin())
            give_back_memory(driver.pipeline_view)
            log.info("driving the pipeline", pipeline=pipeline.name, files=len(driver.world.files))
            for problem in driver.pipeline_view.problems:
                log.error("cannot scan everything", pipeline=pipeline.name, problem=problem)
            for note in driver.pipeline_view.notes:
                log.warning("clocks differ", pipeline=pipeline.name, note=note)
            self._note_driven(pipeline)
            await self._rounds(driver, kept, lead)
        finally:
            del self.drivers[pipeline.name]
            watching.cancel()
            await asyncio.wait([watching])
            await driver.close()

    async def _rounds(self, driver: Driver, kept: KeptPipeline, lead: Connection) -> None:
        pipeline, pipeline_view, clock, pending = driver.pipeline, driver.pipeline_view, self._clock, kept.pending
        scan_at = clock.monotonic() + pipeline.scan_interval
        flights_at = clock.monotonic() + CHECK_FLIGHTS
        house_at = clock.monotonic() + FIRST_HOUSEKEEPING
        while self._may_drive(kept):
            await self._wait(driver, pending, scan_at, flights_at)
            if not self._may_drive(kept) or lead.is_closed():
                return  # Another process may have the lead by now.
            driver.check()
            notice, now = pending.take(), clock.monotonic()
            changed: list[str] = []
            if notice.reload:
                await pipeline_view.reload()
            for stage, entities in notice.entities.items():
                changed += await self._learn(driver, stage, entities)
            everything = notice.everything or len(notice.paths) > MANY
            if everything or now >= scan_at:
                changed += await self._scan(driver, everything=everything or not pending.is_notified)
                scan_at = now + pipeline.scan_interval
            elif notice.folders:
                changed += await pipeline_view.scan_folders()
            if not everything:
                changed += await pipeline_view.refresh(notice.paths)
            if now >= flights_at:
                changed += await self._check_flights(driver)
                flights_at = now + CHECK_FLIGHTS
            await driver.check_elsewhere()
            if pipeline_view.distrusted and not notice.paths:
                changed += await pipeline_view.reread_distrusted()
            if now >= house_at:
                await self._clean_up(driver)
                house_at = now + HOUSEKEEPING
            changed += await pipeline_view.read_unknown()
            retries = pipeline_view.due_retries()
            if everything or notice.reload or len(changed) > MANY:
                await driver.act(pipeline_view.plan())
            elif changed or retries:
                await driver.act(pipeline_view.plan(changed, retries))
            if driver.idle.is_set() and driver.manifests.due_in() == 0.0:
                await pipeline_view.without_rescan(driver.manifests.flush())
                give_back_memory(pipeline_view)

    async def _scan(self, driver: Driver, *, everything: bool) -> list[str]:
        """Scan for changes without notification; returns the changed paths.

        Not `everything`: added and removed files, and a share of all others, while the system sends notifications.
        """
        if everything:
            return await driver.pipeline_view.scan()
        pipeline = driver.pipeline
        return await driver.pipeline_view.quick_scan(max(1, round(pipeline.full_scan / pipeline.scan_interval)))

    async def _wait(self, driver: Driver, pending: PendingChanges, scan_at: float, flights_at: float) -> None:
        """Wait until there are changes, or something is due."""
        pipeline_view, now = driver.pipeline_view, self._clock.monotonic()
        until = min(scan_at, flights_at if driver.in_flight else scan_at)
        if driver.waits_elsewhere:
            until = min(until, now + LOOK_AGAIN)
        if pipeline_view.distrusted:
            until = min(until, now + TRUST_AFTER)
        due = pipeline_view.next_retry()
        if due is not None:
            until = min(until, now + max(0.0, due - pipeline_view.now()) + 0.01)
        writing = driver.manifests.due_in()
        if writing is not None:
            until = min(until, now + max(writing, 0.05))
        await wait_for_event(pending.event, max(0.0, until - now))

    # -- builds by workers --------------------------------------------------------------------------

    async def _dispatch(self, stage: Stage, steps: Sequence[BuildStep]) -> list[int]:
        task = self._task_of(stage) if self._task_of is not None else None
        if task is None:
            return []
        self._check_served.setdefault(_queue_of(stage), self._clock.monotonic() + WARN_AFTER)
        root = await self.drivers[stage.pipeline.name].pipeline_view.states.identify()
        return await enqueue_builds(self._database, task, steps, root)

    async def _warn_if_unserved(self, queue: str) -> None:
        """Log once in a while that no worker serves a queue where builds wait."""
        now = self._clock.monotonic()
        if now < self._check_served.setdefault(queue, now + WARN_AFTER):
            return
        self._check_served[queue] = now + WARN_AGAIN
        if queue not in await served_queues(self._database):
            log.warning("no worker serves the queue of builds: start one with `tidemill worker APP`", queue=queue)

    async def _find_flights(self, driver: Driver) -> None:
        """Find builds that were enqueued before this process started."""
        for stage in driver.pipeline_view.order:
            for row in await self._database.fetch(rows.LIST_QUEUED, stage.full_name):
                entity = row["unique_key"] if stage.variables else ""
                if fits(stage, entity):
                    driver.note_flight(stage, entity, row["id"])

    async def _check_flights(self, driver: Driver) -> list[str]:
        """Find builds that ended without a notification; returns the outputs to scan."""
        changed: list[str] = []
        for stage in driver.pipeline_view.order:
            flying = {entity: job for (name, entity), job in driver.in_flight.items() if name == stage.name}
            if not flying:
                continue
            alive = {row["id"] for row in await self._database.fetch(rows.LIST_QUEUED, stage.full_name)}
            ended = {entity: job for entity, job in flying.items() if job not in alive}
            if alive:
                await self._warn_if_unserved(_queue_of(stage))
            if not ended:
                continue
            badly = {row["id"]: row for row in await self._database.fetch(rows.LIST_ENDED, list(ended.values()))}
            changed += await self._learn(driver, stage.name, set(ended))
            lost = {
                entity: badly[job]
                for entity, job in ended.items()
                if job in badly and entity not in driver.world.failures[stage.name]
            }
            await driver.note_lost(stage, lost)
        return changed

    async def _learn(self, driver: Driver, stage: str, entities: set[str]) -> list[str]:
        """Read what a worker has done; returns the outputs to scan."""
        known = driver.pipeline.stages.get(stage)
        return [] if known is None else await driver.read_builds(known, entities)

    async def _clean_up(self, driver: Driver) -> None:
        await forget_builds(self._database, keep_days=self._keep_days)
        await driver.pipeline_view.measure_clocks()
        await driver.pipeline_view.forget_gone()
        await driver.sweep()
        await driver.manifests.catch_up(self._database)
        give_back_memory(driver.pipeline_view)


def _queue_of(stage: Stage) -> str:
    """The queue of a stage's builds."""
    return stage.options.queue or stage.pipeline.queue


def _part(pipeline: str) -> str:
    """A pipeline's name among the queues of workers."""
    return f"pipeline:{pipeline}"


def pipeline_role(
    work: RoleWork,
    runner: PipelineRunner,
    database: Database,
    settings: Settings,
    *,
    migrations: Sequence[Chain] = (),
) -> Role[Any]:
    """A pipeline runner, or the work around it, with its lease and watchdog, as a role."""
    runner.record.max_losses = settings.max_losses
    lease = Lease(
        database,
        runner.describe,
        lease_seconds=settings.lease_seconds,
        heartbeat_seconds=settings.heartbeat_seconds,
        process_status=runner.process_status,
        watchdog=Watchdog(
            database,
            CallWatch(runner.record, runner.containment.find_culprit, runner.containment.running_on_loop),
            stall_limit=settings.stall_limit,
            grace_seconds=settings.grace_seconds,
        ),
    )
    return Role(work, database, lease=lease, name="pipeline", migrations=migrations)
