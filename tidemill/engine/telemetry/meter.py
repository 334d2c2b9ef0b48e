"""Counting: what a process does, gathered in memory and added to the totals in the database every few seconds.

On the hot path a job costs one append to a list; sorting into the buckets of a histogram happens when the list is
handed over. Totals live in the database and outlast every process, so one `/metrics` anywhere shows them all.

A process that is killed takes with it what it has counted since it last reported: two seconds' worth.
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
from tidemill.core.job import ClaimedJob, Finish, Requeue
from tidemill.store.database import Database, Executor, is_away, is_full
from tidemill.store.telemetry.hosts import Key, ProcessPlace, leave, report

log = structlog.get_logger("tidemill.telemetry")

#: Upper ends of the histograms' buckets, in seconds: from what an idle queue takes to what a night's work takes.
BOUNDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0,
)  # fmt: skip
BEYOND = "+Inf"

REPORT_EVERY = 2.0
REPORT_IDLE_EVERY = 20.0
LAG_EVERY = 0.5
MOST_UNSORTED = 20_000
MOST_LOOKED_AT = 32


class Meter:
    """What one role of one process has counted since it last reported."""

    def __init__(self) -> None:
        self.gauges: dict[str, Callable[[], object]] = {}
        """What to tell beside the counts, asked for at every report."""
        self.lag = 0.0
        self._counts: defaultdict[Key, float] = defaultdict(float)
        self._ran: defaultdict[tuple[str, str, str], list[float]] = defaultdict(list)
        self._waited: defaultdict[str, list[float]] = defaultdict(list)
        self._unsorted = 0

    def claimed(self, jobs: Sequence[ClaimedJob]) -> None:
        """A batch has come in: note how long its jobs had been due. Our clock is taken to agree with the database's.

        A batch is in the order in which its jobs were due, so of a large one some speak for their neighbours. Where
        several queues take turns in it, each job speaks for itself.
        """
        now, step = time.time(), 1 + len(jobs) // MOST_LOOKED_AT
        if step > 1 and len({job.queue for job in jobs}) > 1:
            step = 1
        for index in range(0, len(jobs), step):
            job = jobs[index]
            if job.due_at is not None:
                neighbours = min(step, len(jobs) - index)
                self._waited[job.queue] += [now - job.due_at.timestamp()] * neighbours
        self._unsorted += len(jobs)
        if self._unsorted > MOST_UNSORTED:
            self._sort()

    def ended(self, job: ClaimedJob, ended: Finish | Requeue, started: float) -> None:
        """An attempt that began at monotonic time `started` has ended."""
        outcome = ended.state if type(ended) is Finish else outcome_of(ended)
        self._ran[job.queue, job.task, outcome].append(monotonic() - started)

    def count(self, name: str, *labels: str, by: float = 1) -> None:
        """Add to a count; which labels it has is the name's affair."""
        self._counts[name, labels] += by

    def take(self) -> dict[Key, float]:
        """Everything counted since the last time, and start anew."""
        self._sort()
        counts, self._counts = self._counts, defaultdict(float)
        return dict(counts)

    def give_back(self, counts: dict[Key, float]) -> None:
        """What was taken could not be told: count it again."""
        for key, value in counts.items():
            self._counts[key] += value

    def _sort(self) -> None:
        self._unsorted = 0
        ran, self._ran = self._ran, defaultdict(list)
        waited, self._waited = self._waited, defaultdict(list)
        for (queue, task, outcome), times in ran.items():
            self._counts["ended", (queue, task, outcome)] += len(times)
            self._spread("run", (queue, task), times)
        for queue, times in waited.items():
            # A job may seem to have been claimed before it was due, where clocks do not quite agree.
            self._spread("wait", (queue,), [max(0.0, waited) for waited in times])

    def _spread(self, name: str, labels: tuple[str, ...], times: list[float]) -> None:
        for bound, number in spread(times):
            self._counts[name, (*labels, bound)] += number
        self._counts[f"{name}_sum", labels] += sum(times)


class MeterReporter:
    """Adds what a meter has counted to the totals, and watches how late its event loop is."""

    def __init__(self, database: Database, meter: Meter, role: str, *, host: str | None = None) -> None:
        self.place = ProcessPlace(host or socket.gethostname(), os.getpid(), role)
        self._database = database
        self._meter = meter
        self._told_at = 0.0
        self._looked_at = float("-inf")

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            before = monotonic()
            await asyncio.sleep(LAG_EVERY)
            self._meter.lag = max(self._meter.lag, monotonic() - before - LAG_EVERY)
            await self.report_when_due()

    async def report_when_due(self) -> None:
        """Report, if it is time to: more often when there is something to tell."""
        now = monotonic()
        if now - self._looked_at >= REPORT_EVERY:
            self._looked_at = now
            counts = self._meter.take()
            if counts or now - self._told_at >= REPORT_IDLE_EVERY:
                await self._report(counts)

    async def report(self, *, connection: Executor | None = None) -> None:
        """Report now."""
        await self._report(self._meter.take(), connection=connection)

    async def close(self) -> None:
        """Report for the last time."""
        if await self._report(self._meter.take()):
            await leave(self._database, self.place)

    async def _report(self, counts: dict[Key, float], *, connection: Executor | None = None) -> bool:
        lag, self._meter.lag = self._meter.lag, 0.0
        gauges = {"lag": round(lag, 4), **{name: ask() for name, ask in self._meter.gauges.items()}}
        try:
            await report(self._database, self.place, gauges, counts, connection=connection)
            self._told_at = monotonic()
        except Exception as error:  # noqa: BLE001 - counting must never stop the work
            self._meter.give_back(counts)
            expected = is_away(error) or is_full(error) or isinstance(error, StoreError)
            (log.debug if expected else log.warning)("counts could not be told: they are kept", error=str(error))
            return False
        return True


def outcome_of(ended: Finish | Requeue) -> str:
    """How an attempt ended, in a word: a final state, or why it is not final."""
    if isinstance(ended, Requeue):
        return "retried" if ended.failed else "snoozed"
    return ended.state


def spread(times: Sequence[float]) -> list[tuple[str, int]]:
    """How many of these times fall into each bucket, by the bucket's upper end; empty buckets are left out."""
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
