"""Counts what a process does in memory, and adds it to the totals in the database every few seconds.

On the hot path a job costs one append to a list; the list is sorted into histogram buckets when it is reported. Totals
are in the database and outlive every process, so any `/metrics` endpoint shows them all.

A killed process loses what it has counted since its last report: about two seconds' worth.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from time import monotonic

import structlog

from tidemill.core.errors import StoreError
from tidemill.core.jobs.job import ClaimedJob, Finish, Requeue
from tidemill.store.database import Database, Executor
from tidemill.store.database_errors import is_transient
from tidemill.store.telemetry.history import BEYOND, BOUNDS, TASK_WAIT
from tidemill.store.telemetry.hosts import Key, ProcessPlace, leave, report

log = structlog.get_logger("tidemill.telemetry")

REPORT_EVERY = 2.0
REPORT_IDLE_EVERY = 20.0
LAG_EVERY = 0.5
MOST_UNSORTED = 20_000
MOST_LOOKED_AT = 32


class Meter:
    """The counts of one role of one process since its last report."""

    def __init__(self) -> None:
        self.gauges: dict[str, Callable[[], object]] = {}
        """Gauges that are read at every report."""
        self.lag = 0.0
        self._counts: defaultdict[Key, float] = defaultdict(float)
        self._ran: defaultdict[tuple[str, str, str], list[float]] = defaultdict(list)
        self._waited: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        self._unsorted = 0

    def claimed(self, jobs: Sequence[ClaimedJob]) -> None:
        """Record how long the jobs of a claimed batch had been due. Assumes that our clock agrees with the database's.

        A batch is ordered by due time, so a large one is sampled: some jobs represent their neighbours. If several
        queues or tasks alternate in it, each job is counted.
        """
        now, step = time.time(), 1 + len(jobs) // MOST_LOOKED_AT
        if step > 1 and len({(job.queue, job.task) for job in jobs}) > 1:
            step = 1
        for index in range(0, len(jobs), step):
            job = jobs[index]
            if job.due_at is not None:
                neighbours = min(step, len(jobs) - index)
                self._waited[job.queue, job.task] += [now - job.due_at.timestamp()] * neighbours
        self._unsorted += len(jobs)
        if self._unsorted > MOST_UNSORTED:
            self._sort()

    def ended(self, job: ClaimedJob, ended: Finish | Requeue, started: float) -> None:
        """Record the end of an attempt that began at monotonic time `started`."""
        outcome = ended.state if type(ended) is Finish else outcome_of(ended)
        self._ran[job.queue, job.task, outcome].append(monotonic() - started)

    def count(self, name: str, *labels: str, by: float = 1) -> None:
        """Add to a count; its labels depend on its name."""
        self._counts[name, labels] += by

    def take(self) -> dict[Key, float]:
        """Take everything counted since the last call, and reset."""
        self._sort()
        counts, self._counts = self._counts, defaultdict(float)
        return dict(counts)

    def give_back(self, counts: dict[Key, float]) -> None:
        """Add counts back that could not be reported."""
        for key, value in counts.items():
            self._counts[key] += value

    def _sort(self) -> None:
        self._unsorted = 0
        ran, self._ran = self._ran, defaultdict(list)
        waited, self._waited = self._waited, defaultdict(list)
        for (queue, task, outcome), times in ran.items():
            self._counts["ended", (queue, task, outcome)] += len(times)
            self._spread("run", (queue, task), times)
        for (queue, task), times in waited.items():
            # With clock skew, a job may seem to be claimed before it was due.
            found = [max(0.0, waited) for waited in times]
            self._spread("wait", (queue,), found)
            self._spread(TASK_WAIT, (task,), found)

    def _spread(self, name: str, labels: tuple[str, ...], times: list[float]) -> None:
        for bound, number in spread(times):
            self._counts[name, (*labels, bound)] += number
        self._counts[f"{name}_sum", labels] += sum(times)


class MeterReporter:
    """Adds the counts of a meter to the totals, and measures the lag of the event loop."""

    def __init__(self, database: Database, meter: Meter, role: str, *, host: str | None = None) -> None:
        self.place = ProcessPlace(host or socket.gethostname(), os.getpid(), role)
        self._database = database
        self._meter = meter
        self._reported_at = 0.0
        self._checked_at = float("-inf")

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            before = monotonic()
            await asyncio.sleep(LAG_EVERY)
            self._meter.lag = max(self._meter.lag, monotonic() - before - LAG_EVERY)
            await self.report_when_due()

    async def report_when_due(self) -> None:
        """Report, if a report is due: sooner when there are counts."""
        now = monotonic()
        if now - self._checked_at >= REPORT_EVERY:
            self._checked_at = now
            counts = self._meter.take()
            if counts or now - self._reported_at >= REPORT_IDLE_EVERY:
                await self._report(counts)

    async def report(self, *, connection: Executor | None = None) -> None:
        """Report now."""
        await self._report(self._meter.take(), connection=connection)

    async def close(self) -> None:
        """Send the last report."""
        if await self._report(self._meter.take()):
            await leave(self._database, self.place)

    async def _report(self, counts: dict[Key, float], *, connection: Executor | None = None) -> bool:
        lag, self._meter.lag = self._meter.lag, 0.0
        gauges = {"lag": round(lag, 4), **{name: ask() for name, ask in self._meter.gauges.items()}}
        try:
            await report(self._database, self.place, gauges, counts, connection=connection)
            self._reported_at = monotonic()
        except Exception as error:  # noqa: BLE001 - counting must never stop the work
            self._meter.give_back(counts)
            expected = is_transient(error) or isinstance(error, StoreError)
            (log.debug if expected else log.warning)("counts could not be reported: kept for later", error=str(error))
            return False
        return True


def outcome_of(ended: Finish | Requeue) -> str:
    """The outcome of an attempt in a word: a final state, or why it is not final."""
    if isinstance(ended, Requeue):
        return "retried" if ended.failed else "snoozed"
    return ended.state


def spread(times: Sequence[float]) -> list[tuple[str, int]]:
    """The number of times in each bucket, by the bucket's upper bound; empty buckets are omitted."""
    ordered = sorted(times)
    found: list[tuple[str, int]] = []
    below = 0
    for bound in BOUNDS:
        upto = bisect_right(ordered, bound)
        if upto > below:
            found.append((str(bound), upto - below))
            below = upto
    if below < len(ordered):
        found.append((BEYOND, len(ordered) - below))
    return found
