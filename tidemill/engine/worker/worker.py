"""A worker: claims jobs of its queues, runs them, and reports how they ended.

    worker = Worker(database, tasks, WorkerSettings(queues=("mail",), concurrency=20))
    await worker.run()                   # until stop() is called or the lease is lost

Its parts: the `Hands` run jobs, the `Pump` moves them from and to the database, the `Lifeline` renews the
lease from a thread of its own. What remains here is life itself: registering, hearing news, obeying
operators, and stopping without losing anything.
"""

from __future__ import annotations

import asyncio
import os
import platform
import socket
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import structlog

from tidemill.core.clock import SYSTEM_CLOCK, Clock
from tidemill.core.errors import ConfigError, LeaseLostError, StoreError
from tidemill.core.job import check_name
from tidemill.engine.hooks import InvokeContext
from tidemill.engine.jobs.task import Task
from tidemill.engine.lease import Lifeline
from tidemill.engine.models.affinity import Affinity
from tidemill.engine.models.cache import ModelCache
from tidemill.engine.models.spec import ModelSpec
from tidemill.engine.telemetry.meter import Reporter
from tidemill.engine.worker.claimer import Claimer
from tidemill.engine.worker.isolation import Children
from tidemill.engine.worker.job_runner import JobRunner, log_of
from tidemill.store.database import Database, is_passing
from tidemill.store.jobs.claims import find_cancels, report_progress
from tidemill.store.jobs.insert import JOBS_CHANNEL
from tidemill.store.jobs.log import write_logs
from tidemill.store.jobs.workers import (
    CONTROL_CHANNEL,
    END_WORKER,
    Mode,
    QueueLimit,
    WorkerCard,
    declare_queues,
    limited_queues,
    read_control,
    register_worker,
)
from tidemill.store.migrate import wait_for_schema
from tidemill.store.notify import ANYTHING, Listener
from tidemill.version import VERSION

log = structlog.get_logger("tidemill.worker")

CONTROL_POLL = 5.0
PROGRESS_EVERY = 0.3
LINES_AFTER = 1.0


class WorkerSettings(msgspec.Struct, frozen=True):
    """What a worker serves and how patient it is. Times are seconds."""

    queues: tuple[str, ...]
    concurrency: int = 10
    lease: float = 15.0
    heartbeat: float = 3.0
    grace: float = 30.0
    host: str = ""
    model_memory: int | None = None
    model_patience: float = 30.0

    def validate(self) -> WorkerSettings:
        if not self.queues:
            raise ConfigError("a worker needs at least one queue")
        for queue in self.queues:
            check_name("queue", queue)
        if self.concurrency < 1:
            raise ConfigError(f"a concurrency of {self.concurrency} would run nothing")
        if self.heartbeat * 2 > self.lease:
            raise ConfigError("the lease must last for at least two heartbeats")
        return self


class Worker:
    """One worker process's life."""

    def __init__(
        self,
        database: Database,
        tasks: Mapping[str, Task[Any, Any]],
        settings: WorkerSettings,
        *,
        limits: Iterable[QueueLimit] = (),
        models: Iterable[ModelSpec] = (),
        invoke_context: InvokeContext | None = None,
        app_path: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.settings = settings.validate()
        self.host = settings.host or socket.gethostname()
        self.worker_id = 0
        self._database = database
        self._tasks = tasks
        self._limits = [limit for limit in limits if limit.name in settings.queues]
        self._clock = clock
        self._modes: dict[str, Mode] = {}
        self._stopping = False
        self._hurried = False
        self._fenced = False
        self._over: str | None = None
        self._news = asyncio.Event()
        self._control_news = asyncio.Event()
        self._stop_news = asyncio.Event()
        self._ready = asyncio.Event()
        self._children = Children(app_path)
        specs = list(models)
        self.models = ModelCache(specs, budget=settings.model_memory, clock=clock) if specs else None
        self.runner = JobRunner(tasks, settings.concurrency, self._children, clock, self._news.set, self.models)
        self.runner.invoke_context = invoke_context
        self.runner.grace = settings.grace
        if self.models is not None:
            self.runner.meter.gauges["models"] = self.models.figures
        self._reporter = Reporter(database, self.runner.meter, "worker", host=self.host)
        self._claimer = Claimer(
            database,
            self.runner,
            settings.queues,
            settings.concurrency,
            clock,
            self._news,
            self._open_queues,
            self._affinity(),
        )

    @property
    def name(self) -> str:
        return f"{self.host}:{os.getpid()}#{self.worker_id}"

    @property
    def status(self) -> str:
        """What operators see: running, or what they asked for and how far it is."""
        if self._stopping:
            return "stopping"
        modes = {self._modes.get(queue, "run") for queue in self.settings.queues}
        if modes == {"run"}:
            return "running"
        if "run" in modes:
            return "partly held"
        if self.runner.slots:
            return "draining"
        if len(modes) > 1:
            return "held"
        return {"pause": "paused", "drain": "drained", "stop": "stopped"}[modes.pop()]

    def stop(self) -> None:
        """Stop claiming and let running jobs finish; a second call gives everything back at once."""
        self._hurried = self._stopping
        self._stopping = True
        self._stop_news.set()

    async def wait_ready(self) -> None:
        """Return when the worker is registered and hears, or has failed to."""
        await self._ready.wait()

    async def run(self) -> None:
        """Work until told to stop. Raises `LeaseLostError` when this incarnation has been taken for dead."""
        await self._database.open()
        await wait_for_schema(self._database)
        await declare_queues(self._database, self._limits)
        self.worker_id = await register_worker(self._database, self._card(), lease=self.settings.lease)
        self.runner.worker = self.name
        lifeline = Lifeline(
            self._database,
            self.worker_id,
            self.runner,
            lease=self.settings.lease,
            heartbeat=self.settings.heartbeat,
            status=lambda: self.status,
            on_fenced=self._fence,
        )
        lifeline.start()
        if self.models is not None:
            self.models.start()
        log.info("worker started", worker=self.name, queues=list(self.settings.queues), tasks=len(self._tasks))
        try:
            await self._work()
        finally:
            self._ready.set()
            await asyncio.to_thread(lifeline.stop)
            await self._children.close()
            self.runner.close()
            if self.models is not None:
                await self.models.close()
        if not self._fenced:
            await self._say_goodbye()
        if self._over is not None:
            raise LeaseLostError(f"worker {self.name} {self._over}; its jobs have gone back to their queues")
        log.info("worker stopped", worker=self.name)

    async def _say_goodbye(self) -> None:
        try:
            await self._database.fetch(END_WORKER, self.worker_id, self._over or "stopped", patience=5.0)
            await self._reporter.close()
        except StoreError as error:
            log.warning("the worker's end could not be recorded: its lease will lapse", error=str(error))

    async def _work(self) -> None:
        listener = Listener(self._database)
        listener.on(JOBS_CHANNEL, self._hear_jobs)
        listener.on(CONTROL_CHANNEL, lambda _: self._control_news.set())
        async with asyncio.TaskGroup() as group:
            helpers = [
                group.create_task(listener.run(), name="listener"),
                group.create_task(self._obey(), name="control"),
                group.create_task(self._show_progress(), name="progress"),
                group.create_task(self._reporter.run(), name="reporter"),
            ]
            if self.models is not None:
                helpers.append(group.create_task(self.models.tend(), name="models"))
            await listener.wait_ready()
            await self._read_control()
            claiming = group.create_task(self._claimer.run(self.worker_id), name="pump")
            self._ready.set()
            await self._stop_news.wait()
            await self._wind_down()
            if not self._fenced:
                self._claimer.close()
                await self._write_down(claiming)
            for task in (*helpers, claiming):
                task.cancel()

    async def _wind_down(self) -> None:
        """Give back what has not started, let the rest finish within the grace, give back what remains."""
        log.info("worker stopping", worker=self.name, running=len(self.runner.slots), grace=self.settings.grace)
        self.runner.stop_taking("its worker stopped before it started")
        give_up = self._clock.monotonic() + self.settings.grace
        while self.runner.slots and not self._hurried and self._clock.monotonic() < give_up:
            self._stop_news.clear()
            running = [slot.runner for slot in self.runner.slots.values() if slot.runner is not None]
            hurry = asyncio.ensure_future(self._stop_news.wait())
            remaining = give_up - self._clock.monotonic()
            await asyncio.wait([*running, hurry], timeout=remaining, return_when=asyncio.FIRST_COMPLETED)
            hurry.cancel()
        await self.runner.interrupt(list(self.runner.slots.values()), "its worker stopped before it had finished")

    async def _write_down(self, claiming: asyncio.Task[None]) -> None:
        """Wait until everything in hand is written; not for ever, if the database is away."""
        done, _ = await asyncio.wait([claiming], timeout=max(self.settings.grace, 5.0))
        if not done:
            self._over = f"stopped with {len(self.hands.held_ids())} jobs unwritten, for the database was away"
            self._fenced = True

    def _fence(self, why: str) -> None:
        """This incarnation is over: others own its jobs. Whatever it still writes changes nothing."""
        log.error("worker fenced off", worker=self.name, why=why)
        self._fenced, self._over = True, why
        self._stopping = self._hurried = True
        self._stop_news.set()

    def _affinity(self) -> Affinity | None:
        """Its preference for the models it has; with no patience at all, jobs are taken strictly in order."""
        patience = self.settings.model_patience
        return None if self.models is None or patience <= 0 else Affinity(self.models, patience, self._clock)

    def _card(self) -> WorkerCard:
        return WorkerCard(
            host=self.host,
            pid=os.getpid(),
            queues=self.settings.queues,
            tasks=tuple(self._tasks),
            concurrency=self.settings.concurrency,
            versions={"tidemill": VERSION, "python": platform.python_version()},
        )

    def _hear_jobs(self, queue: str) -> None:
        if queue == ANYTHING:
            self._claimer.look()
        elif queue in self.settings.queues:
            self._claimer.look(queue)

    def _open_queues(self) -> list[str]:
        return [] if self._stopping else [queue for queue in self.settings.queues if queue not in self._modes]

    async def _obey(self) -> None:
        """Follow operators' wishes, cancel requests and changed limits, soon after they are written."""
        while True:
            try:
                async with asyncio.timeout(CONTROL_POLL):
                    await self._control_news.wait()
            except TimeoutError:
                pass  # nobody rang: look all the same
            self._control_news.clear()
            await self._read_control()

    async def _read_control(self) -> None:
        modes = await read_control(self._database, self.host, self.settings.queues)
        limited = await limited_queues(self._database, self.settings.queues)
        self._claimer.limited = {queue: self._claimer.limited.get(queue, 0.0) for queue in limited}
        for job_id, attempt, reason in await find_cancels(self._database, list(self.runner.slots)):
            self.runner.cancel(job_id, attempt, reason)
        await self._follow(modes)

    async def _follow(self, modes: dict[str, Mode]) -> None:
        if modes == self._modes:
            return
        log.info("operator control", worker=self.name, modes=modes or "run")
        self._modes = modes
        given_up = {queue for queue, mode in modes.items() if mode in ("drain", "stop")}
        self.runner.give_back_unstarted("its worker was told to take no more", given_up)
        stopped = [slot for slot in self.runner.slots.values() if modes.get(slot.claim.queue) == "stop"]
        await self.runner.interrupt(stopped, "its worker was stopped by an operator")
        if all(slot.interruptible for slot in stopped):
            self._claimer.look()
        else:
            self._over = "ended itself to stop a task in a thread, as an operator asked"
            self._stopping = self._hurried = True
            self._stop_news.set()

    async def _show_progress(self) -> None:
        """Write what running jobs report, a few times a second and all in one statement."""
        while True:
            await asyncio.sleep(PROGRESS_EVERY)
            try:
                await self._show_lines()
                await self._show_reports()
            except Exception as error:
                if not is_passing(error):
                    raise
                log.debug("progress cannot be shown now", worker=self.name, error=str(error))

    async def _show_reports(self) -> None:
        told = [slot.job for slot in self.runner.slots.values() if slot.job.reported]
        if not told:
            return
        for job in told:
            job.reported = False
        await report_progress(
            self._database, self.worker_id, [(job.id, job.attempt, job.progress, job.note) for job in told]
        )

    async def _show_lines(self) -> None:
        """Write what running jobs have logged; those that end soon write it themselves when they do."""
        since = self._clock.monotonic() - LINES_AFTER
        fresh = [
            log_of(slot.job)
            for slot in self.runner.slots.values()
            if slot.job.lines is not None and slot.job.lines.fresh and slot.job.started < since
        ]
        if fresh:
            await self._database.run(lambda connection: write_logs(self._database, connection, fresh), patience=5.0)
