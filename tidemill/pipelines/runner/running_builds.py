"""Queued and running builds: jobs, and builds in the processes of pipelines and scripts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

import msgspec

from tidemill.pipelines.definition.pipeline import Pipeline, Stage
from tidemill.store.database import Database
from tidemill.store.states.build_jobs import list_build_jobs, served_queues
from tidemill.store.states.leases import list_leases


class BuildJob(msgspec.Struct, frozen=True):
    """A queued or running build: a job, or a build in the process `builder`, without job and queue.

    `note` says why a job waits, and `is_served` whether a worker serves its queue.
    """

    id: int | None
    state: str
    queue: str | None
    started_at: datetime | None
    builder: str | None = None
    note: str | None = None
    is_served: bool = True


#: Builds by stage and entity.
BuildJobs = Mapping[tuple[str, str], BuildJob]


async def builds_under_way(database: Database, pipeline: Pipeline, stages: Iterable[Stage]) -> BuildJobs:
    """The queued and running builds of some stages."""
    wanted = {stage.name: stage for stage in stages}
    if not wanted:
        return {}
    found: dict[tuple[str, str], BuildJob] = {}
    tasks = {stage.full_name: stage for stage in wanted.values() if not stage.options.in_process}
    jobs = await list_build_jobs(database, list(tasks)) if tasks else []
    served = await served_queues(database) if jobs else set()
    for row in jobs:
        stage = tasks[row["task"]]
        entity = "" if row["unique_key"] == "*" and not stage.variables else row["unique_key"]
        queue = row["queue"]
        found[stage.name, entity] = BuildJob(
            row["id"], row["state"], queue, row["started_at"], None, row["note"], queue in served
        )
    for row in await list_leases(database, pipeline.name):
        if row["stage"] in wanted and row["job"] is None:  # A build of a job is listed as the job.
            found[row["stage"], row["entity"]] = BuildJob(None, "running", None, row["began_at"], row["builder"])
    return found
