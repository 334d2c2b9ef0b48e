"""What a worker's watchdog knows of jobs: which one blocks the event loop, and which one does not end.

A job that can be cancelled is cancelled when it breaks a limit. One that does not end after that, or that runs in a
thread and cannot be stopped, takes the process with it: exit status 75 (budget), 76 (stall) or 77 (its run does not
want it any more, and it had not ended after the grace period). A supervisor starts the process again.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from tidemill.core.duration import format_duration
from tidemill.core.jobs.job import ClaimedJob, Requeue
from tidemill.engine.containment.blocked_time import CANCEL_SECONDS
from tidemill.engine.containment.watchdog import Culprit, EndedFor
from tidemill.engine.telemetry.meter import MeterReporter
from tidemill.engine.worker.context import RunningJob, job_of_task
from tidemill.engine.worker.job_runner import JobRunner, Slot
from tidemill.engine.worker.outcome import OVERRUNS, after_blocking, after_cancel, after_overrun
from tidemill.store.database import Connection, Database
from tidemill.store.jobs.claims.claims import FIND_CANCELS, finish_jobs, requeue_jobs


class JobWatch:
    """Watches the jobs of one job runner."""

    def __init__(self, database: Database, runner: JobRunner) -> None:
        self._database = database
        self._runner = runner
        self._cancelled: dict[int, float] = {}

    def find(self, task: asyncio.Task[Any] | None) -> Culprit | None:
        on_loop = [slot for slot in list(self._runner.slots.values()) if slot.is_on_loop]
        job = None if task is None else job_of_task(task)
        found = [slot for slot in on_loop if slot.runner is task or slot.job is job]
        if not found and task is not None and len(on_loop) == 1:  # A task that the only job has started.
            found = on_loop
        return _culprit(found[0]) if found else None

    def overdue(
        self, now: float, loop: asyncio.AbstractEventLoop, *, is_blocked: bool
    ) -> tuple[Culprit, EndedFor] | None:
        """The job that takes the process with it, if there is one; others are cancelled first."""
        watched = self._runner.watched
        for slot in list(watched.values()):
            at = now - slot.job.blocked_seconds
            kind = overrun_kind(slot.job, at)
            # A blocked loop keeps work from ending, and the end of a thread from being seen.
            if kind is None or slot.has_returned or (is_blocked and slot.thread is None):
                continue
            if slot.interruptible and kind != "cancel":
                cancelled = self._cancelled.get(slot.claim.id)
                if cancelled is None or slot.job.overrun is None:
                    self._cancelled[slot.claim.id] = cancelled or at
                    loop.call_soon_threadsafe(self._runner.overrun, slot.claim.id, slot.claim.attempt, kind)
                    if cancelled is None:
                        continue
                if at - self._cancelled[slot.claim.id] <= CANCEL_SECONDS:
                    continue
            overrun = OVERRUNS[kind]
            return _culprit(slot), EndedFor(kind, overrun.kind, overrun.kind, overrun.exit_status)
        for job_id in self._cancelled.keys() - watched.keys():
            del self._cancelled[job_id]
        return None

    async def is_cancelled(self, connection: Connection, culprit: Culprit) -> bool:
        slot: Slot = culprit.work
        rows = await connection.fetch(self._database.sql(FIND_CANCELS), [slot.claim.id])
        for row in rows:
            if row["attempt"] == slot.claim.attempt:
                slot.job.cancel_reason = slot.job.cancel_reason or row["cancel_reason"]
        return slot.job.cancel_reason is not None

    async def write_end(self, connection: Connection, worker_id: int, culprit: Culprit, ended: EndedFor) -> None:
        """Write the outcome of every job that the worker holds."""
        slot: Slot = culprit.work
        runner, claim, at = self._runner, slot.claim, time.time()
        runner.closed = why = f"its worker was ended for job {claim.id} ({ended.name})"
        finished, requeues, claimed = runner.unwritten()
        if slot.job.cancel_reason is not None:
            outcome = after_cancel(claim, slot.job.cancel_reason)
        elif ended.kind in OVERRUNS:
            outcome = after_overrun(claim, OVERRUNS[ended.kind], slot.job, at=at, worker=runner.worker)
        else:
            outcome = after_blocking(claim, ended.why, at=at, worker=runner.worker)
        requeues += [_interrupted(job, why) for job in claimed if job.id != claim.id]
        (requeues if isinstance(outcome, Requeue) else finished).append(outcome)  # pyright: ignore[reportArgumentType]
        if slot.job.overrun is None:
            runner.meter.count("watchdog_trips", ended.kind)
        await finish_jobs(self._database, connection, worker_id, finished)
        await requeue_jobs(self._database, connection, worker_id, requeues)

    async def report(self, connection: Connection, ended: EndedFor) -> None:
        await MeterReporter(self._database, self._runner.meter, "worker").report(connection=connection)


def overrun_kind(job: RunningJob, now: float) -> str | None:
    """Which limit a running job has broken, if any: `budget`, `stall`, or `cancel` when it should have ended."""
    if job.kill_at is not None and now > job.kill_at:
        return "cancel"
    if job.budget is not None and now - job.started > job.budget:
        return "budget"
    if job.stall is not None and job.beat_at is not None and now - job.beat_at > job.stall:
        return "stall"
    return None


def _culprit(slot: Slot) -> Culprit:
    job = slot.job
    limit_at = None if job.budget is None else job.started + job.budget + job.blocked_seconds
    limit = "" if job.budget is None else f"its budget of {format_duration(job.budget)}"
    return Culprit(f"job {job.id} (task {job.task})", slot, limit_at, limit, slot.runner)


def _interrupted(job: ClaimedJob, why: str) -> Requeue:
    return Requeue(job.id, job.attempt, 0.0, why)
