"""The lifeline: a thread that proves the worker alive, and ends it when a job will not end.

It renews the worker's lease on a connection and an event loop of its own, so that a busy loop does not look
like a dead worker. It also watches the jobs that have a `budget` (wall-clock) or a `stall` limit (time without
a sign of life, armed by the first). A job that can be cancelled is cancelled; one that does not end after that,
or that runs in a thread and cannot be stopped, takes the process with it: what follows for this job and for
all others in hand is written in one transaction, and then the process exits with status 75 (budget), 76 (stall)
or 77 (its run did not want it any more, and it had not ended after the grace). A supervisor starts it anew.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from tidemill.core.errors import StoreError
from tidemill.core.job import ClaimedJob, Requeue
from tidemill.engine.telemetry.meter import Reporter
from tidemill.engine.worker.context import RunningJob
from tidemill.engine.worker.outcome import OVERRUNS, after_overrun
from tidemill.store.database import Connection, Database, is_away, is_full
from tidemill.store.jobs.claims import finish_jobs, requeue_jobs
from tidemill.store.jobs.workers import END_WORKER, renew_lease

if TYPE_CHECKING:
    from tidemill.engine.worker.job_runner import JobRunner, Slot

log = structlog.get_logger("tidemill.lifeline")

WATCH_EVERY = 0.1
SOFT_GRACE = 5.0
LAST_WORDS = 10.0
EXIT_FENCED = 70


class Lifeline(threading.Thread):
    """Renews one worker's lease and watches over its jobs until stopped."""

    def __init__(
        self,
        database: Database,
        worker_id: int,
        runner: JobRunner,
        *,
        lease: float,
        heartbeat: float,
        status: Callable[[], str],
        on_fenced: Callable[[str], None],
        exit: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(name="tidemill-lifeline", daemon=True)
        self._database = database
        self._worker_id = worker_id
        self._runner = runner
        self._lease = lease
        self._heartbeat = heartbeat
        self._status = status
        self._on_fenced = on_fenced
        self._exit = exit or _exit_now
        self._loop = asyncio.get_running_loop()
        self._stopped = threading.Event()
        self._asked: dict[int, float] = {}

    def stop(self) -> None:
        """Let the thread end; returns when it has."""
        self._stopped.set()
        self.join(timeout=5.0)

    def run(self) -> None:
        try:
            asyncio.run(self._live())
        except Exception as error:  # noqa: BLE001 - without a lifeline the worker must end, whatever broke it
            log.error("the lifeline broke", error=repr(error), worker=self._runner.worker)
            self._fence(f"lost its lifeline: {error!r}")

    async def _live(self) -> None:
        connection: Connection | None = None
        renew_at = 0.0
        while not self._stopped.is_set():
            now = time.monotonic()
            overdue = self._find_overdue(now)
            if overdue is not None:
                await self._end_process(*overdue)
                return
            if now >= renew_at:
                try:
                    if connection is None or connection.is_closed():
                        connection = await self._database.connect(patience=1.0)
                    alive = await asyncio.wait_for(self._renew(connection), self._lease)
                except Exception as error:
                    if not (is_away(error) or is_full(error) or isinstance(error, StoreError)):
                        raise
                    if connection is not None:
                        connection.terminate()
                    connection, alive = None, True
                renew_at = time.monotonic() + (self._heartbeat if connection is not None else 0.5)
                if not alive:
                    self._fence("was silent for longer than its lease")
                    return
            await asyncio.sleep(WATCH_EVERY)
        if connection is not None:
            connection.terminate()

    async def _renew(self, connection: Connection) -> bool:
        return await renew_lease(
            self._database,
            connection,
            self._worker_id,
            lease=self._lease,
            status=self._status(),
            running=len(self._runner.slots),
            models=None if self._runner.models is None else self._runner.models.warm(),
        )

    def _fence(self, why: str) -> None:
        """This incarnation counts as dead: end it, and the process if its loop is stuck."""
        self._loop.call_soon_threadsafe(self._on_fenced, why)
        if not self._stopped.wait(SOFT_GRACE * 2):
            log.error("the worker was fenced off and its loop is stuck: ending the process", worker=self._worker_id)
            self._exit(EXIT_FENCED)

    def _find_overdue(self, now: float) -> tuple[Slot, str] | None:
        """The job that has to take the process with it, if there is one; softer means are tried first."""
        for slot in list(self._runner.watched.values()):
            kind = overrun_kind(slot.job, now)
            if kind is None:
                continue
            if not slot.interruptible or kind == "cancel":
                return slot, kind
            asked = self._asked.get(slot.claim.id)
            if asked is None or slot.job.overrun is None:
                self._asked[slot.claim.id] = asked or now
                self._loop.call_soon_threadsafe(self._runner.overrun, slot.claim.id, slot.claim.attempt, kind)
                if asked is None:
                    continue
            if now - self._asked[slot.claim.id] > SOFT_GRACE:
                return slot, kind
        for job_id in self._asked.keys() - self._runner.watched.keys():
            del self._asked[job_id]
        return None

    async def _end_process(self, slot: Slot, kind: str) -> None:
        """Write down what follows for every job in hand, in one transaction, and exit."""
        overrun = OVERRUNS[kind]
        worker = self._runner.worker
        self._runner.closed = why = f"its worker was ended for job {slot.claim.id} ({overrun.kind})"
        finished, requeues, claimed = self._runner.unwritten()
        ended = after_overrun(slot.claim, overrun, slot.job, at=time.time(), worker=worker)
        requeues += [_interrupted(job, why) for job in claimed if job.id != slot.claim.id]
        (requeues if isinstance(ended, Requeue) else finished).append(ended)  # pyright: ignore[reportArgumentType]
        log.error("watchdog ends the worker", job=slot.claim.id, task=slot.claim.task, why=ended.note, worker=worker)
        try:
            async with asyncio.timeout(LAST_WORDS):
                connection = await self._database.connect(patience=LAST_WORDS)
                async with connection.transaction():
                    await finish_jobs(self._database, connection, self._worker_id, finished)
                    await requeue_jobs(self._database, connection, self._worker_id, requeues)
                    end_reason = f"{overrun.kind}: job {slot.claim.id}"
                    await connection.execute(self._database.sql(END_WORKER), self._worker_id, end_reason)
                if slot.job.overrun is None:
                    self._runner.meter.count("watchdog_trips", kind)
                await Reporter(self._database, self._runner.meter, "worker").report(connection=connection)
        finally:
            # If the database does not answer either, the lease lapses and the sweep does the same.
            self._exit(overrun.exit_status)


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


def _exit_now(status: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
