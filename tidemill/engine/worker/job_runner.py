"""The claimed jobs of a worker: waiting to start, running, and ended but not yet written.

All of this runs on the worker's event loop without database access: the claimer adds claimed jobs and takes finished
ones. Async tasks run on the loop, plain ones in threads, isolated ones in child processes.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import msgspec
import structlog

from tidemill.core.clock import Clock
from tidemill.core.codec import decode
from tidemill.core.encoding.sealing import loggable
from tidemill.core.errors import PayloadError, TidemillError
from tidemill.core.jobs.job import ClaimedJob, Finish, JobOptions, Requeue
from tidemill.core.retry import RefuseJob
from tidemill.engine.application.hooks import InvokeContext, NodeCall, within
from tidemill.engine.containment.blocked_time import BlockedTime
from tidemill.engine.jobs.task import Task, encode_result
from tidemill.engine.models.cache import ModelCache
from tidemill.engine.telemetry.meter import Meter
from tidemill.engine.telemetry.tracing import is_tracing, run_traced
from tidemill.engine.worker.context import JobCancelled, RunningJob, enter_job
from tidemill.engine.worker.isolation import JobProcesses, MachineLost
from tidemill.engine.worker.job_transaction import JobTransaction
from tidemill.engine.worker.log_capture import CapturedLines
from tidemill.engine.worker.outcome import (
    OVERRUNS,
    UnknownArgument,
    after_cancel,
    after_error,
    after_lost_machine,
    after_overrun,
    after_self_cancel,
    after_success,
    describe_error,
    model_of,
    read_options,
)
from tidemill.engine.worker.queue_sharing import put_ahead
from tidemill.engine.worker.threads import caught
from tidemill.store.jobs.log import AttemptLog
from tidemill.store.runs.turns import UNWANTED

log = structlog.get_logger("tidemill.worker")

HELD_TOO_LONG = 1.0
MODEL_ELSEWHERE = 5.0
CANCEL_GRACE = 5.0
REFUSES_FOR = 60.0  # seconds in which a worker claims no job of a task that has refused one


class Slot(msgspec.Struct, eq=False):
    """A running job: its claim, the context that its task sees, and the asyncio task that runs it."""

    claim: ClaimedJob
    job: RunningJob
    interruptible: bool
    is_on_loop: bool
    processes: JobProcesses | None = None
    """The other processes that the job runs in; None if it runs here."""
    abandoned: bool = False
    runner: asyncio.Task[Any] | None = None
    thread: Future[Any] | None = None
    """The call of a plain function, which ends in its thread before the event loop sees it."""

    def watch_loop(self) -> None:
        """From now on, time in which other work blocks the event loop does not count against the job."""
        if self.interruptible and self.runner is not None and self.job.blocked is None:
            self.job.blocked = BlockedTime(self.runner)

    @property
    def has_returned(self) -> bool:
        return self.thread is not None and self.thread.done()


class JobRunner:
    """Runs claimed jobs. `on_change` is called whenever there are results to write or free slots."""

    def __init__(
        self,
        tasks: Mapping[str, Task[Any, Any]],
        max_concurrency: int,
        children: JobProcesses,
        clock: Clock,
        on_change: Callable[[], None],
        models: ModelCache | None = None,
    ) -> None:
        self.worker = ""
        self.models = models
        self.invoke_context: InvokeContext | None = None
        self.open_writes: Callable[[], JobTransaction] | None = None
        self.cluster: JobProcesses | None = None
        """Where jobs run that need no model of this worker; None if they run here."""
        self.grace = CANCEL_GRACE
        self.closed: str | None = None
        self.slots: dict[int, Slot] = {}
        self.watched: dict[int, Slot] = {}
        self.backlog: deque[tuple[float, ClaimedJob]] = deque()
        self._ahead = 0  # how many jobs at the front of the backlog go before older ones
        self.finished: list[Finish] = []
        self.requeues: list[Requeue] = []
        self.logs: list[AttemptLog] = []
        self.unknown: set[str] = set()
        self.missing: Mapping[str, str] = {}
        """What tasks need that this machine does not have."""
        self._grouped: dict[str, tuple[int, int]] = {}  # by task: how many jobs one call takes, and how many run
        self.meter = Meter()
        self._tracing = False
        self._tasks = tasks
        self.max_concurrency = max_concurrency
        self._children = children
        self._clock = clock
        self._on_change = on_change
        self._context = contextvars.copy_context()
        self._threads = ThreadPoolExecutor(max_concurrency, thread_name_prefix="tidemill-task")

    @property
    def count(self) -> int:
        """How many claimed jobs have not ended."""
        return self._used + len(self.backlog)

    @property
    def _used(self) -> int:
        """How many slots are used: the jobs of one call of a task that takes many share one."""
        if not self._grouped:
            return len(self.slots)
        grouped = sum(count - -(-count // size) for size, count in self._grouped.values() if count)
        return len(self.slots) - grouped

    def held_ids(self) -> list[int]:
        """The ids of all jobs that this worker holds."""
        finished, requeues, claimed = self.unwritten()
        return [job.id for group in (finished, requeues, claimed) for job in group]

    def needed_models(self) -> set[str]:
        """The models that the held jobs require."""
        held = [slot.claim for slot in self.slots.values()] + [job for _, job in self.backlog]
        return {model for job in held if (model := model_of(job)) is not None}

    def unwritten(self) -> tuple[list[Finish], list[Requeue], list[ClaimedJob]]:
        """What would be lost if the process ended now: finished, requeued and unfinished jobs."""
        claimed = [slot.claim for slot in list(self.slots.values())] + [job for _, job in list(self.backlog)]
        return list(self.finished), list(self.requeues), claimed

    def take_ended(self) -> tuple[list[Finish], list[Requeue]]:
        """Take the results that are ready to be written."""
        finished, self.finished = self.finished, []
        requeues, self.requeues = self.requeues, []
        return finished, requeues

    def take_in(self, jobs: list[ClaimedJob], ahead: int = 0) -> None:
        """Accept claimed jobs, and start as many as there are slots; the first ones go ahead of what waits already."""
        if self.closed is not None:  # They were claimed while the worker was stopping.
            self.requeues += [Requeue(job.id, job.attempt, 0.0, self.closed) for job in jobs]
            self._on_change()
            return
        now = self._clock.monotonic()
        self.meter.claimed(jobs)
        self._tracing = is_tracing()
        if ahead and len(self.backlog) > self._ahead:
            put = put_ahead(self.backlog, self._ahead, now, jobs[:ahead])
            self._ahead, jobs = self._ahead + put, jobs[put:]
        self.backlog.extend((now, job) for job in jobs)
        self._start_more()

    def stop_taking(self, why: str) -> None:
        """Accept no more jobs; those that have not started are requeued."""
        self.closed = why
        self.give_back_unstarted(why)

    # -- giving up --------------------------------------------------------------------------------

    def give_back_unstarted(self, why: str, queues: set[str] | None = None) -> None:
        """Requeue the jobs that have not started, of these queues or of all."""
        kept: deque[tuple[float, ClaimedJob]] = deque()
        for since, job in self.backlog:
            if queues is None or job.queue in queues:
                self.requeues.append(Requeue(job.id, job.attempt, 0.0, why))
            else:
                kept.append((since, job))
        self.backlog, self._ahead = kept, 0
        self._on_change()

    def held_too_long(self) -> bool:
        """Whether prefetched jobs have waited too long for a slot."""
        oldest = self._ahead if self._ahead < len(self.backlog) else 0
        return bool(self.backlog) and self._clock.monotonic() - self.backlog[oldest][0] > HELD_TOO_LONG

    async def interrupt(self, slots: list[Slot], why: str) -> None:
        """Interrupt running jobs and requeue them: cancelled if possible, abandoned otherwise."""
        runners = []
        for slot in slots:
            if self.slots.pop(slot.claim.id, None) is None:
                continue
            self._count_grouped(slot, -1)
            self.watched.pop(slot.claim.id, None)
            self.requeues.append(Requeue(slot.claim.id, slot.claim.attempt, 0.0, why))
            if slot.runner is not None:
                slot.job.cancel_reason = why
                slot.runner.cancel()
                runners.append(slot.runner)
        self._on_change()
        if runners:
            await asyncio.wait(runners, timeout=CANCEL_GRACE)

    def cancel(self, job_id: int, attempt: int, reason: str) -> None:
        """Cancel a job. A task in a thread is only notified, because a thread cannot be stopped.

        A job that its run no longer needs gets the grace period and no longer: the watchdog enforces that.
        """
        slot = self.slots.get(job_id)
        if slot is not None and slot.claim.attempt == attempt and slot.job.cancel_reason is None:
            slot.job.cancel_reason = reason
            if slot.interruptible and slot.runner is not None:
                slot.runner.cancel()
            if reason == UNWANTED:
                slot.watch_loop()
                slot.job.kill_at = slot.job.now() + self.grace
                self.watched[job_id] = slot

    def overrun(self, job_id: int, attempt: int, kind: str) -> None:
        """Cancel a job that exceeded its budget or has stalled, if it can be cancelled."""
        slot = self.slots.get(job_id)
        if slot is not None and slot.claim.attempt == attempt and slot.job.overrun is None:
            slot.job.overrun = kind
            self.meter.count("watchdog_trips", kind)
            if slot.runner is not None:
                slot.runner.cancel()

    def close(self) -> bool:
        """Release the threads; returns whether any of them is still busy with an abandoned job."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        return any(thread.is_alive() for thread in self._threads._threads)

    # -- running ----------------------------------------------------------------------------------

    def _start_more(self) -> None:
        while self.backlog and self._used < self.max_concurrency:
            self._ahead -= self._ahead > 0
            self._start(*self.backlog.popleft())

    def _start(self, since: float, claim: ClaimedJob) -> None:
        try:
            task = self._tasks.get(claim.task)
        except TidemillError as error:  # The host program's lookup failed.
            self._note_end(after_error(claim, error, at=self._clock.now(), worker=self.worker))
            self._on_change()
            return
        if task is None:
            log.warning("unknown task", job=claim.id, task=claim.task, queue=claim.queue, worker=self.worker)
            note = f"worker {self.worker} does not know task {claim.task}: waiting for one that does"
            self._leave_to_others(claim, note)
        elif claim.task in self.missing:
            note = f"task {claim.task} needs {self.missing[claim.task]}: waiting for a worker that has it"
            self._leave_to_others(claim, note)
        elif claim.expired:
            note = f"its deadline had passed before it could {'start' if claim.attempt == 1 else 'be tried again'}"
            self.finished.append(Finish(claim.id, claim.attempt, "expired", note=note, keyed=claim.keyed))
            self.meter.count("ended", claim.queue, claim.task, "expired")
            self._on_change()
        elif claim.cancel_reason is not None:
            self.finished.append(after_cancel(claim, claim.cancel_reason))
            self.meter.count("ended", claim.queue, claim.task, "cancelled")
            self._on_change()
        else:
            try:
                options = read_options(claim.options)
                if options.required_model is None or self._knows_model(claim, options.required_model):
                    self._launch(claim, task, options, since)
            except PayloadError as error:  # the stored options cannot be decoded
                self._note_end(after_error(claim, error, at=self._clock.now(), worker=self.worker))
                self._on_change()

    def _leave_to_others(self, claim: ClaimedJob, note: str) -> None:
        """Requeue a job of a task that this worker cannot run, and claim no more of them."""
        self.unknown.add(claim.task)
        self.requeues.append(Requeue(claim.id, claim.attempt, 0.0, note, state="no_worker"))
        self._on_change()

    def _knows_model(self, claim: ClaimedJob, model: str) -> bool:
        if self.models is not None and model in self.models.specs:
            return True
        note = f"worker {self.worker} does not know model {model}: waiting for one that does"
        self.requeues.append(Requeue(claim.id, claim.attempt, MODEL_ELSEWHERE, note))
        log.warning("unknown model", job=claim.id, task=claim.task, model=model, worker=self.worker)
        self._on_change()
        return False

    def _launch(self, claim: ClaimedJob, task: Task[Any, Any], options: JobOptions, since: float) -> None:
        job = RunningJob(claim.id, claim.attempt, claim.queue, claim.task, claim.origin)
        processes = self._processes(task, options)
        is_on_loop = task.is_async and processes is None
        if is_on_loop and task.batch is None:  # The results of a call for many jobs are stored one by one.
            job.writes_factory = self.open_writes
        slot = self.slots[claim.id] = Slot(claim, job, task.is_async or processes is not None, is_on_loop, processes)
        if task.batch is not None:
            self._grouped.setdefault(claim.task, (task.batch.max_size, 0))
            self._count_grouped(slot, 1)
        if options.budget is not None or options.stall is not None:
            job.budget, job.stall = options.budget, options.stall
            self.watched[claim.id] = slot
        if self._tracing or options.trace is not None:
            held = self._clock.monotonic() - since
            run = run_traced(claim, options.trace, held, self.worker, lambda: self._run(slot, task, options))
        else:
            run = self._run(slot, task, options)
        # A fresh context, so that a task's context variables do not leak.
        slot.runner = asyncio.create_task(run, context=self._context.copy())
        if claim.id in self.watched:
            slot.watch_loop()

    async def _run(self, slot: Slot, task: Task[Any, Any], options: JobOptions) -> Finish | Requeue:
        """Run one attempt, from arguments to outcome. Never raises."""
        claim, job = slot.claim, slot.job
        enter_job(job)
        ended: Finish | Requeue
        is_written = False
        try:
            kwargs = self._load_args(claim, task)
            if self.models is not None:
                await self._open_models(slot, self.models, options.required_model)
            if options.node is not None and self.invoke_context is not None:
                result = await self._in_context(self.invoke_context, slot, task, options, kwargs)
            elif slot.processes is not None:
                result = await slot.processes.run(task, claim.args, job)
            elif task.is_async:
                result = encode_result(task.name, await task.run(**kwargs))
            else:
                result = encode_result(task.name, await self._in_thread(slot, task, kwargs))
            ended = after_success(claim, result, job.note, calls_back=options.webhook is not None)
            is_written = job.writes is not None and await job.writes.commit(ended)
        except (asyncio.CancelledError, JobCancelled) as error:
            ended = self._after_cancel(claim, job, error)
        except UnknownArgument as error:
            ended = self._wait_for_newer_code(claim, task, error.name)
        except RefuseJob as error:
            ended = self._refuse(claim, error)
        except MachineLost as error:
            ended = after_lost_machine(claim, error, at=self._clock.now(), worker=self.worker)
        except BaseException as error:  # noqa: BLE001 - whatever a task raises becomes its job's outcome
            # Including SystemExit: a task may end itself, but not its worker.
            ended = self._after_error(claim, job, error)
        if job.models is not None and not slot.abandoned:
            job.models.close()
        if job.writes is not None:
            job.writes.close()
        if job.lines is not None:
            self.logs.append(log_of(job))
            job.lines = None
        if type(ended) is not Finish or ended.state != "succeeded":
            self._log_end(claim, ended)
        if self.slots.get(claim.id) is not slot:
            return ended  # Requeued while it ran: its end no longer counts.
        del self.slots[claim.id]
        if self._grouped:
            self._count_grouped(slot, -1)
        if self.watched:
            self.watched.pop(claim.id, None)
        self.meter.ended(claim, ended, job.started)
        if not is_written:
            self._note_end(ended)
        if self.backlog:
            self._start_more()
        self._on_change()
        return ended

    def _count_grouped(self, slot: Slot, by: int) -> None:
        if (known := self._grouped.get(slot.claim.task)) is not None:
            self._grouped[slot.claim.task] = known[0], known[1] + by

    def _processes(self, task: Task[Any, Any], options: JobOptions) -> JobProcesses | None:
        """The other processes that a job runs in; None if it runs here, as one that needs a model does."""
        if self.cluster is not None and options.required_model is None and task.batch is None:
            return self.cluster
        return self._children if options.isolation == "process" else None

    def _load_args(self, claim: ClaimedJob, task: Task[Any, Any]) -> dict[str, Any]:
        """The arguments of a job. One that this code does not know may be known to newer code."""
        try:
            return task.signature.load(claim.args)
        except PayloadError:
            if unknown := task.signature.unknown_arguments(claim.args):
                raise UnknownArgument(unknown[0]) from None
            raise

    def _note_end(self, ended: Finish | Requeue) -> None:
        if isinstance(ended, Finish):
            self.finished.append(ended)
        else:
            self.requeues.append(ended)

    async def _open_models(self, slot: Slot, models: ModelCache, required: str | None) -> None:
        """Give a job access to models; its required model is loaded when this returns."""
        job = slot.job
        job.models = models.use()
        if required is None:
            return
        # Waiting for a load can be interrupted for any task, and does not count against the task's budget.
        interruptible, slot.interruptible = slot.interruptible, True
        budget, job.budget = job.budget, None
        try:
            await job.models.load(required)
        finally:
            slot.interruptible = interruptible
        job.started = job.now()
        job.budget = budget

    async def _in_context(
        self, context: InvokeContext, slot: Slot, task: Task[Any, Any], options: JobOptions, kwargs: dict[str, Any]
    ) -> bytes | None:
        """Run a node inside the context that its host has set up for nodes."""
        claim = slot.claim

        async def invoke() -> Any:
            if slot.processes is not None:
                result = await slot.processes.run(task, claim.args, slot.job)
                return None if result is None else decode(result)
            if task.is_async:
                return await task.run(**kwargs)
            return await self._in_thread(slot, task, kwargs)

        node, run = options.node or "", options.run or 0
        call = NodeCall(claim.id, claim.attempt, claim.task, claim.queue, run, node, kwargs)
        return await within(context, call, invoke)

    async def _in_thread(self, slot: Slot, task: Task[Any, Any], kwargs: dict[str, Any]) -> Any:
        context = contextvars.copy_context()
        slot.job.started = time.monotonic()  # The loop may have been blocked since it was claimed.
        slot.thread = future = self._threads.submit(context.run, caught, partial(task.run, **kwargs))
        try:
            result, error = await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if (models := slot.job.models) is not None:
                # The thread goes on after its job was interrupted, and still uses them.
                slot.abandoned = True
                future.add_done_callback(lambda _: models.close())
            raise
        if error is not None:
            raise error
        return result

    def _refuse(self, claim: ClaimedJob, error: RefuseJob) -> Requeue:
        """Leave a job to other workers; this one claims no job of the task for a while."""
        self.unknown.add(claim.task)
        asyncio.get_running_loop().call_later(REFUSES_FOR, self.unknown.discard, claim.task)
        log.error("job refused", job=claim.id, task=claim.task, worker=self.worker, why=error.reason)
        return Requeue(claim.id, claim.attempt, 0.0, f"worker {self.worker} refuses it: {error.reason}")

    def _wait_for_newer_code(self, claim: ClaimedJob, task: Task[Any, Any], argument: str) -> Requeue:
        note = (
            f"task {claim.task} has no argument {argument!r} on worker {self.worker}: waiting for a worker whose code "
            "has it; if none will, cancel the job and enqueue it without"
        )
        refused_by = task.signature.fingerprint
        return Requeue(claim.id, claim.attempt, 0.0, note, state="no_worker", refused_by=refused_by)

    def _after_cancel(self, claim: ClaimedJob, job: RunningJob, error: BaseException) -> Finish | Requeue:
        at = self._clock.now()
        if job.overrun is not None:
            return after_overrun(claim, OVERRUNS[job.overrun], job, at=at, worker=self.worker)
        if job.cancel_reason is not None:
            return after_cancel(claim, job.cancel_reason)
        return after_self_cancel(claim, error, at=at, worker=self.worker)

    def _after_error(self, claim: ClaimedJob, job: RunningJob, error: BaseException) -> Finish | Requeue:
        at = self._clock.now()
        if job.cancel_reason is not None:  # It was being cancelled and raised another error.
            report = describe_error(claim, error, at=at, worker=self.worker)
            return after_cancel(claim, job.cancel_reason, report)
        return after_error(claim, error, at=at, worker=self.worker)

    def _log_end(self, claim: ClaimedJob, ended: Finish | Requeue) -> None:
        if isinstance(ended, Requeue) and ended.refused_by is not None:
            level, event = log.error, "unknown argument"
        elif isinstance(ended, Finish):
            level, event = (log.info, "job cancelled") if ended.state == "cancelled" else (log.error, "job failed")
        else:
            level, event = (log.warning, "job will be retried") if ended.failed else (log.info, "job snoozed")
        why = ended.note if ended.error is None else loggable(ended.note)
        level(event, job=claim.id, task=claim.task, attempt=claim.attempt, worker=self.worker, why=why)


def log_of(job: RunningJob) -> AttemptLog:
    """The lines that an attempt has logged so far."""
    began_at, dropped, lines = (job.lines or CapturedLines()).take()
    return AttemptLog(job.id, job.attempt, began_at, dropped, lines)
