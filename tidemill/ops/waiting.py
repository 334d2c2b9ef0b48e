"""Waiting for jobs to end, workers and streams to be drained, backfills: woken by changes, with a slow safety poll."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import nullcontext

import msgspec

from tidemill.core.jobs.job import FINAL_STATES
from tidemill.ops.jobs.jobs import GetJob, Job, ListJobs, get_job, list_jobs
from tidemill.ops.monitors.monitors import MOST_EVENTS, ListMonitorEvents, MonitorEvent, list_monitor_events
from tidemill.ops.operator.operation import MOST_ON_A_PAGE, Operator
from tidemill.ops.streams.streams import ListStreams, list_streams

SAFETY_POLL = 5.0


async def wait_for_job(at: Operator, id: int, *, each: Callable[[Job], None] | None, every: float) -> Job:
    """The job once it has ended, however it ended. Until then, `each` is called with the job whenever it is read."""
    job = await at.do(get_job, GetJob(id=id))
    if job.state in FINAL_STATES:
        return job
    async with at.watch(f"queue:{job.queue}") as changes:
        while True:
            job = await at.do(get_job, GetJob(id=id))
            if job.state in FINAL_STATES:
                return job
            if each is not None:
                each(job)
            await changes.wait(every)


async def wait_until_drained(at: Operator, host: str, queue: str) -> None:
    """Return when no job of this queue runs on this host; `*` means all."""
    async with at.watch("queues") as changes:
        while await _runs_a_job(at, host, queue):
            await changes.wait(SAFETY_POLL)


async def _runs_a_job(at: Operator, host: str, queue: str) -> bool:
    wanted = ListJobs(state=("running",), queue=None if queue == "*" else queue, limit=MOST_ON_A_PAGE)
    running = (await at.do(list_jobs, wanted)).items
    if host == "*":
        return bool(running)
    for line in running:
        if (await at.do(get_job, GetJob(id=line.id))).worker_host == host:
            return True
    return False


async def wait_for_drain(at: Operator, stream: str, *, each: Callable[[int], None]) -> None:
    """Return when no dispatcher of a stream has messages in flight; `each` gets their number when it has changed."""
    reported: int | None = None
    async with at.watch("streams") as changes:
        while True:
            found = (await at.do(list_streams, ListStreams(name=stream))).items
            dispatchers = [dispatcher for line in found for dispatcher in line.dispatchers]
            left = sum(dispatcher["in_flight"] for dispatcher in dispatchers)
            if not left and all(dispatcher["mode"] == "drain" for dispatcher in dispatchers):
                return
            if left not in (0, reported):
                each(reported := left)
            await changes.wait(SAFETY_POLL)


async def wait_for_backfill(at: Operator, monitor: str, entities: Collection[str] = ()) -> None:
    """Return when the past of these entities, or of all, has been read."""
    async with at.watch("monitors") as changes:
        while await _is_filling(at, monitor, entities):
            await changes.wait(SAFETY_POLL)


async def _is_filling(at: Operator, monitor: str, entities: Collection[str]) -> bool:
    from tidemill.ops.monitors.roster import (  # Loads the monitors' code: only for commands about them.
        ListRoster,
        list_roster,
    )

    wanted, cursor = set(entities), None
    while True:
        page = await at.do(list_roster, ListRoster(name=monitor, filling=True, limit=MOST_ON_A_PAGE, cursor=cursor))
        if any(not wanted or each.entity in wanted for each in page.items):
            return True
        cursor = page.next
        if cursor is None:
            return False


async def follow_events(at: Operator, wanted: ListMonitorEvents, *, follow: bool) -> AsyncIterator[MonitorEvent]:
    """Events of a monitor's log in the order in which they arrived: the newest that there are, and with `follow` all
    that arrive from then on."""
    seen: set[str] = set()
    async with at.watch("monitors") if follow else nullcontext() as changes:
        while True:
            events = (await at.do(list_monitor_events, wanted)).items
            for each in reversed(events):
                if each.id not in seen:
                    yield each
            if changes is None:
                return
            if events:
                seen = {each.id for each in events if each.tick == events[0].tick}
                wanted = msgspec.structs.replace(wanted, tick=events[0].tick, limit=MOST_EVENTS)
            await changes.wait(SAFETY_POLL)
