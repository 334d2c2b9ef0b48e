"""A worker: claims jobs of its queues, runs them, and reports how they ended.

    role = worker_role(Worker(database, tasks, WorkerSettings(queues=("mail",), max_concurrency=20)), database)
    await role.run()                     # until stop() is called or the lease is lost

The `JobRunner` runs jobs, the `Claimer` moves them from and to the database, and the `Watchdog` ends jobs that overrun.
This module receives wake-ups, follows operators' requests, and stops without losing jobs.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import structlog

from tidemill.core.clock import SYSTEM_CLOCK, Clock
from tidemill.core.errors import ConfigError
from tidemill.core.jobs.job import check_name
from tidemill.engine.application.hooks import InvokeContext
from tidemill.engine.containment.quarantine import Quarantine
from tidemill.engine.containment.watchdog import STALL_LIMIT, Watchdog
from tidemill.engine.jobs.task import Task
from tidemill.engine.models.affinity import Affinity
from tidemill.engine.models.cache import ModelCache
from tidemill.engine.models.spec import ModelSpec
from tidemill.engine.roles.lease import Lease, ProcessStatus, describe_process
from tidemill.engine.roles.role import Life, Role
from tidemill.engine.roles.supervisor import ChildSpec
from tidemill.engine.telemetry.meter import MeterReporter
from tidemill.engine.worker.claimer import Claimer
from tidemill.engine.worker.isolation import Children, ClusterProcesses
from tidemill.engine.worker.job_runner import JobRunner, log_of
from tidemill.engine.worker.job_transaction import JobTransaction
from tidemill.engine.worker.job_watch import JobWatch
from tidemill.engine.worker.machine_resources import find_missing
from tidemill.store.database import Database
from tidemill.store.database_errors import is_transient
from tidemill.store.jobs.claims.claims import find_cancels, report_progress
from tidemill.store.jobs.claims.suspects import next_suspect
from tidemill.store.jobs.declared import WorkTemplate, declare
from tidemill.store.jobs.insert import JOBS_CHANNEL
from tidemill.store.jobs.log import write_logs
from tidemill.store.jobs.workers import (
    CONTROL_CHANNEL,
    Mode,
    QueueLimit,
    WorkerCard,
    declare_queues,
    limited_queues,
    read_control,
    read_weights,
)
from tidemill.store.notify import ANYTHING

log = structlog.get_logger("tidemill.worker")

CONTROL_POLL = 30.0
POLL_WITHOUT_WAKE_UPS = 5.0
PROGRESS_EVERY = 0.3
LINES_AFTER = 1.0
CAPACITY_EVERY = 5.0
MOST_REPORTED = 100  # jobs by their ids, with each renewal of the lease


class WorkerSettings(msgspec.Struct, frozen=True):
    """The queues and limits of a worker. Times are seconds."""

    queues: tuple[str, ...]
    max_concurrency: int = 10
    lease_seconds: float = 15.0
    heartbeat_seconds: float = 3.0
    grace_seconds: float = 30.0
    stall_limit: float = STALL_LIMIT
    host: str = ""
    model_memory: int | None = None
    model_patience: float = 30.0
    host_priority: str = "highest"
    resources: Mapping[str, float] = {}

    def validate(self) -> WorkerSettings:
        if not self.queues:
            raise ConfigError("a worker needs at least one queue")
        for queue in self.queues:
            check_name("queue", queue)
        if self.max_concurrency < 1:
            raise ConfigError(f"a max_concurrency of {self.max_concurrency} would run nothing: use 1 or more")
        if self.heartbeat_seconds * 2 > self.lease_seconds:
            raise ConfigError("the lease must last for at least two heartbeats")
        return self


class Worker:
    """The work of a process that runs jobs."""

    def __init__(
        self,
        database: Database,
        tasks: Mapping[str, Task[Any, Any]],
        settings: WorkerSettings,
        *,
        limits: Iterable[QueueLimit] = (),
        templates: Callable[[], Sequence[WorkTemplate]] = tuple,
        models: Iterable[ModelSpec] = (),
        invoke_context: InvokeContext | None = None,
        app_path: str | None = None,
        cluster: ClusterProcesses | None = None,
        quarantine: ChildSpec | None = None,
        is_quarantine: bool = False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`cluster` runs the jobs in place of this process, as many as it has room for.

        `quarantine` is the process for suspects; without one they run here, while nothing else does.

        A worker that `is_quarantine` runs only suspects, and stops when there are none.
        """
        self.settings = settings.validate()
        self.host = settings.host or socket.gethostname()
        self.channels = {JOBS_CHANNEL: self._jobs_notified, CONTROL_CHANNEL: self._control_notified}
        self._database = database
        self._tasks = tasks
        self._limits = [limit for limit in limits if limit.name in settings.queues]
        self._templates = templates
        self._clock = clock
        self._life = Life()
        self._modes: dict[str, Mode] = {}
        self._wakeup = asyncio.Event()
        self._control_changed = asyncio.Event()
        specs = list(models)
        self.models = ModelCache(specs, budget=settings.model_memory, clock=clock) if specs else None
        self._children = Children(app_path)
        self._cluster = cluster
        self.runner = JobRunner(tasks, settings.max_concurrency, self._children, clock, self._wakeup.set, self.models)
        self.runner.cluster = cluster
        if cluster is None:
            self.runner.missing = find_missing(tasks, settings.resources)
        self.runner.invoke_context = invoke_context
        self.runner.grace = settings.grace_seconds
        if self.models is not None:
            self.runner.meter.gauges["models"] = self.models.figures
        self._claimer = Claimer(
            database,
            self.runner,
            settings.queues,
            clock,
            self._wakeup,
            self._open_queues,
            self._affinity(),
            lowest_first=settings.host_priority == "lowest",
            on_no_suspects=(lambda: self._life.stop()) if is_quarantine else None,
        )
        self._quarantine: Quarantine | None = None
        if not is_quarantine:
            self._quarantine = Quarantine(
                quarantine,
                self._next_suspect,
                take=self._claimer.take_suspects,
                grace=settings.grace_seconds,
                silence=settings.lease_seconds,
                database=database,
            )

    @property
    def status(self) -> str:
        """The status that operators see: running, or their request and its progress."""
        if self._life.is_stopping:
            return "stopping"
        modes = {self._modes.get(queue, "run") for queue in self.settings.queues}
        if modes == {"run"}:
            return "running"
        if "run" in modes:
            return "partly_paused"
        if self.runner.slots:
            return "draining"
        if len(modes) > 1:
            return "paused"
        return {"pause": "paused", "drain": "drained", "stop": "stopped"}[modes.pop()]

    def process_status(self) -> ProcessStatus:
        """The worker's status, reported with the lease."""
        models = None if self.models is None else self.models.warm()
        held = list(self.runner.slots)[:MOST_REPORTED]  # in the order of their start
        return ProcessStatus(self.status, len(self.runner.slots), models, is_busy=self.runner.count > 0, held=held)

    def describe(self) -> WorkerCard:
        """What the worker serves, reported with the lease."""
        return describe_process(
            self.settings.queues,
            [name for name in self._tasks if name not in self.runner.missing],
            max_concurrency=self.settings.max_concurrency,
            host=self.host,
            signatures=[self._tasks[name].signature.fingerprint for name in self._tasks],
            is_quarantine=self._quarantine is None,
        )

    async def work(self, life: Life) -> None:
        """Claim and run jobs until stopped."""
        self._life = life
        self.runner.worker = f"{self.host}:{os.getpid()}#{life.worker_id}"
        self.runner.open_writes = partial(JobTransaction, self._database, life.worker_id)
        await declare_queues(self._database, self._limits)
        await declare(self._database, self._templates())
        if self.models is not None:
            self.models.start()
        log.info("worker started", worker=self.runner.worker, queues=list(self.settings.queues), tasks=len(self._tasks))
        try:
            await self._claim_and_run(life)
        finally:
            await self._children.close()
            if self._cluster is not None:
                await self._cluster.close()
            self.runner.close()
            if self.models is not None:
                await self.models.close()
        log.info("worker stopped", worker=self.runner.worker)

    async def _claim_and_run(self, life: Life) -> None:
        async with asyncio.TaskGroup() as group:
            helpers = [
                group.create_task(self._apply_control(), name="control"),
                group.create_task(self._show_progress(), name="progress"),
            ]
            if self.models is not None:
                helpers.append(group.create_task(self.models.unload_idle(), name="models"))
            if self._cluster is not None:
                helpers.append(group.create_task(self._follow_capacity(self._cluster), name="size of the cluster"))
            if self._quarantine is not None:
                group.create_task(self._quarantine.run(), name="quarantine")
            await self._read_control()
            claiming = group.create_task(self._claimer.run(life.worker_id), name="claimer")
            life.ready()
            await life.stopped.wait()
            if self._quarantine is not None:
                self._quarantine.stop()
            await self._finish_or_requeue()
            if not life.is_fenced:
                self._claimer.close()
                await self._flush_results(claiming)
            for task in (*helpers, claiming):
                task.cancel()

    async def _follow_capacity(self, cluster: ClusterProcesses) -> None:
        """Claim as many jobs as the cluster has room for, which may change while the worker runs."""
        while True:
            capacity = await asyncio.to_thread(cluster.capacity)
            if capacity != self.runner.max_concurrency:
                log.info("size of the cluster", worker=self.runner.worker, jobs=capacity)
                self._claimer.claim_soon()
            self.runner.max_concurrency = capacity
            await asyncio.sleep(CAPACITY_EVERY)

    async def _finish_or_requeue(self) -> None:
        """Requeue jobs that have not started, let others finish within the grace period, then requeue the rest."""
        grace, runner, hurried = self.settings.grace_seconds, self.runner, self._life.hurried
        log.info("worker stopping", worker=runner.worker, running=len(runner.slots), grace=grace)
        runner.stop_taking("its worker stopped before it started")
        give_up = self._clock.monotonic() + grace
        hurry = asyncio.ensure_future(hurried.wait())
        while runner.slots and not hurried.is_set() and (left := give_up - self._clock.monotonic()) > 0:
            running = [slot.runner for slot in runner.slots.values() if slot.runner is not None]
            await asyncio.wait([*running, hurry], timeout=left, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        await runner.interrupt(list(runner.slots.values()), "its worker stopped before it had finished")

    async def _flush_results(self, claiming: asyncio.Task[None]) -> None:
        """Wait until all results are written, with a timeout if the database is unavailable."""
        done, _ = await asyncio.wait([claiming], timeout=max(self.settings.grace_seconds, 5.0))
        if not done:
            held = len(self.runner.held_ids())
            self._life.fence(f"stopped with {held} unwritten jobs because the database was unavailable")

    def _affinity(self) -> Affinity | None:
        """The preference for loaded models; without patience, jobs are claimed strictly in order."""
        patience, lowest_first = self.settings.model_patience, self.settings.host_priority == "lowest"
        if self.models is None or patience <= 0:
            return None
        return Affinity(self.models, patience, self._clock, lowest_first=lowest_first)

    def _jobs_notified(self, payload: str) -> None:
        queue, has_lane, lane = payload.partition("\n")
        if queue == ANYTHING:
            self._claimer.claim_soon()
        elif queue in self.settings.queues:
            self._claimer.claim_soon(queue, lane if has_lane else None)

    def _control_notified(self, _payload: str) -> None:
        self._control_changed.set()
        if self._quarantine is not None:
            self._quarantine.wake()

    async def _next_suspect(self) -> float | None:
        queues = self._open_queues()
        return await next_suspect(self._database, queues, list(self.runner.unknown)) if queues else None

    def _open_queues(self) -> list[str]:
        return [] if self._life.is_stopping else [queue for queue in self.settings.queues if queue not in self._modes]

    async def _apply_control(self) -> None:
        """Apply operators' requests, cancel requests and changed limits soon after they are written."""
        while True:
            try:
                async with asyncio.timeout(CONTROL_POLL if self._database.can_listen else POLL_WITHOUT_WAKE_UPS):
                    await self._control_changed.wait()
            except TimeoutError:
                pass  # no notification: poll anyway
            self._control_changed.clear()
            await self._read_control()

    async def _read_control(self) -> None:
        modes = await read_control(self._database, self.host, self.settings.queues)
        limited = await limited_queues(self._database, self.settings.queues)
        self._claimer.weigh(await read_weights(self._database, self.settings.queues))
        self._claimer.limited = {queue: self._claimer.limited.get(queue, 0.0) for queue in limited}
        for job_id, attempt, reason in await find_cancels(self._database, list(self.runner.slots)):
            self.runner.cancel(job_id, attempt, reason)
        await self._follow(modes)

    async def _follow(self, modes: dict[str, Mode]) -> None:
        if modes == self._modes:
            return
        log.info("operator control", worker=self.runner.worker, modes=modes or "run")
        self._modes = modes
        given_up = {queue for queue, mode in modes.items() if mode in ("drain", "stop")}
        self.runner.give_back_unstarted("its worker was paused by an operator", given_up)
        stopped = [slot for slot in self.runner.slots.values() if modes.get(slot.claim.queue) == "stop"]
        await self.runner.interrupt(stopped, "its worker was stopped by an operator")
        if all(slot.interruptible for slot in stopped):
            self._claimer.claim_soon()
        else:
            self._life.give_up("ended itself to stop a task in a thread, as an operator asked")

    async def _show_progress(self) -> None:
        """Write the progress of running jobs, a few times a second in one statement."""
        while True:
            await asyncio.sleep(PROGRESS_EVERY)
            try:
                await self._show_lines()
                await self._show_reports()
            except Exception as error:
                if not is_transient(error):
                    raise
                log.debug("progress could not be written", worker=self.runner.worker, error=str(error))

    async def _show_reports(self) -> None:
        reporting = [slot.job for slot in self.runner.slots.values() if slot.job.reported]
        if not reporting:
            return
        for job in reporting:
            job.reported = False
        await report_progress(
            self._database, self._life.worker_id, [(job.id, job.attempt, job.progress, job.note) for job in reporting]
        )

    async def _show_lines(self) -> None:
        """Write the log lines of running jobs; jobs that end soon write their own."""
        since = self._clock.monotonic() - LINES_AFTER
        fresh = [
            log_of(slot.job)
            for slot in self.runner.slots.values()
            if slot.job.lines is not None and slot.job.lines.fresh and slot.job.started < since
        ]
        if fresh:
            await self._database.run(lambda connection: write_logs(self._database, connection, fresh), patience=5.0)


def worker_role(worker: Worker, database: Database) -> Role[Worker]:
    """A worker with its lease and its watchdog."""
    lease = Lease(
        database,
        worker.describe,
        lease_seconds=worker.settings.lease_seconds,
        heartbeat_seconds=worker.settings.heartbeat_seconds,
        process_status=worker.process_status,
        watchdog=Watchdog(
            database,
            JobWatch(database, worker.runner),
            stall_limit=worker.settings.stall_limit,
            grace_seconds=worker.settings.grace_seconds,
        ),
    )
    reporter = MeterReporter(database, worker.runner.meter, "worker", host=worker.host)
    return Role(worker, database, lease=lease, reporter=reporter)
