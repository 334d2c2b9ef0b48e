"""Waiting for a job to end, or for workers to be drained: woken by changes, with a slow safety poll behind."""

from __future__ import annotations

from collections.abc import Callable

from tidemill.core.job import FINAL_STATES
from tidemill.ops.jobs import GetJob, Job, get_job
from tidemill.ops.operation import Operator
from tidemill.ops.workers import ListWorkers, list_workers

SAFETY_POLL = 5.0


async def wait_for_job(
    at: Operator, id: int, *, each: Callable[[Job], None] | None = None, every: float = SAFETY_POLL
) -> Job:
    """The job once it has ended, however it ended. `each` is called with the job at every look before."""
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


async def wait_for_workers(at: Operator, host: str, queue: str) -> None:
    """Return when no living worker of this host and queue (`*` for all) runs a job."""
    async with at.watch("workers") as changes:
        while True:
            living = (await at.do(list_workers, ListWorkers(ended_within=0.0))).items
            meant = [each for each in living if host in (each.host, "*") and queue in (*each.queues, "*")]
            if not any(each.running for each in meant):
                return
            await changes.wait(SAFETY_POLL)
