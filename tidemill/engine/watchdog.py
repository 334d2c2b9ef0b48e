"""The watchdog: ends jobs that run longer than their budget or show no sign of life, and if need be the process.

It runs in the lease's thread. A job that can be cancelled is cancelled first. One that does not end after that, or that
runs in a thread and cannot be stopped, takes the process with it: the outcome of this job and of all others that the
worker holds is written in one transaction, and the process exits with status 75 (budget), 76 (stall) or 77 (its run
does not want it any more, and it had not ended after the grace period). A supervisor starts the process again.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import structlog

from tidemill.core.job import ClaimedJob, Requeue
from tidemill.engine.lease import exit_now
from tidemill.engine.telemetry.meter import MeterReporter
from tidemill.engine.worker.context import RunningJob
from tidemill.engine.worker.outcome import OVERRUNS, after_overrun
from tidemill.store.database import Database
from tidemill.store.jobs.claims import finish_jobs, requeue_jobs
from tidemill.store.jobs.workers import END_WORKER

if TYPE_CHECKING:
    from tidemill.engine.worker.job_runner import JobRunner, Slot

log = structlog.get_logger("tidemill.watchdog")

CANCEL_SECONDS = 5.0
WRITE_SECONDS = 10.0


class Watchdog:
    """Watches the jobs of one job runner."""

    def __init__(self, database: Database, runner: JobRunner) -> None:
        self._database = database
        self._runner = runner
        self._cancelled: dict[int, float] = {}

    async def check(self, worker_id: int, loop: asyncio.AbstractEventLoop) -> bool:
        """Cancel what is overdue; True when the process was ended for a job that does not end."""
        overdue = self._find_overdue(time.monotonic(), loop)
        if overdue is None:
            return False
        await self._end_process(worker_id, *overdue)
        return True

    def _find_overdue(self, now: float, loop: asyncio.AbstractEventLoop) -> tuple[Slot, str] | None:
        """The job that takes the process with it, if there is one; others are cancelled first."""
        watched = self._runner.watched
        for slot in list(watched.values()):
            kind = overrun_kind(slot.job, now)
            if kind is None:
                continue
            if not slot.interruptible or kind == "cancel":
                return slot, kind
            cancelled = self._cancelled.get(slot.claim.id)
            if cancelled is None or slot.job.overrun is None:
                self._cancelled[slot.claim.id] = cancelled or now
                loop.call_soon_threadsafe(self._runner.overrun, slot.claim.id, slot.claim.attempt, kind)
                if cancelled is None:
                    continue
            if now - self._cancelled[slot.claim.id] > CANCEL_SECONDS:
                return slot, kind
        for job_id in self._cancelled.keys() - watched.keys():
            del self._cancelled[job_id]
        return None

    async def _end_process(self, worker_id: int, slot: Slot, kind: str) -> None:
        """Write the outcome of every job that the worker holds, in one transaction, and exit."""
        overrun = OVERRUNS[kind]
        runner, worker = self._runner, self._runner.worker
        runner.closed = why = f"its worker was ended for job {slot.claim.id} ({overrun.kind})"
        finished, requeues, claimed = runner.unwritten()
        ended = after_overrun(slot.claim, overrun, slot.job, at=time.time(), worker=worker)
        requeues += [_interrupted(job, why) for job in claimed if job.id != slot.claim.id]
        (requeues if isinstance(ended, Requeue) else finished).append(ended)  # pyright: ignore[reportArgumentType]
        log.error("watchdog ends the worker", job=slot.claim.id, task=slot.claim.task, why=ended.note, worker=worker)
        try:
            async with asyncio.timeout(WRITE_SECONDS):
                connection = await self._database.connect(patience=WRITE_SECONDS)
                async with connection.transaction():
                    await finish_jobs(self._database, connection, worker_id, finished)
                    await requeue_jobs(self._database, connection, worker_id, requeues)
                    end_reason = f"{overrun.kind}: job {slot.claim.id}"
                    await connection.execute(self._database.sql(END_WORKER), worker_id, end_reason)
                if slot.job.overrun is None:
                    runner.meter.count("watchdog_trips", kind)
                await MeterReporter(self._database, runner.meter, "worker").report(connection=connection)
        finally:
            # If the database does not answer either, the lease lapses and maintenance does the same.
            exit_now(overrun.exit_status)


def overrun_kind(job: RunningJob, now: float) -> str | None:
    """Which limit a running job has broken, if any: `budget`, `stall`, or `cancel` when it should have ended."""
    if job.kill_at is not None and now > job.kill_at:
        return "cancel"
    if job.budget is not None and now - job.started > job.budget:
        return "budget"
    if job.stall is not None and job.beat_at is not None and now - job.beat_at > job.stall:
        return "stall"
    return None


def _interrupted(job: ClaimedJob, why: str) -> Requeue:
    return Requeue(job.id, job.attempt, 0.0, why)
