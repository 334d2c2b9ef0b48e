"""Waiting for a job to end, or for workers to be drained: woken by changes, with a slow safety poll behind."""

from __future__ import annotations

from collections.abc import Callable

from tidemill.core.job import FINAL_STATES
from tidemill.ops.jobs import GetJob, Job, ListJobs, get_job, list_jobs
from tidemill.ops.operation import MOST_ON_A_PAGE, Operator

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
