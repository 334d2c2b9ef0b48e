"""Running builds: those that are jobs, and those that a pipeline's own process has marked.

A local build is only marked after a moment: most end before they could be shown.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime

import msgspec

from tidemill.engine.event_wait import wait_for_event
from tidemill.pipelines.definition.pipeline import Pipeline, Stage
from tidemill.pipelines.runner.build_job import task_name
from tidemill.pipelines.runner.log import log
from tidemill.store.database import Database
from tidemill.store.database_errors import is_full, is_unavailable
from tidemill.store.states.build_jobs import list_build_jobs
from tidemill.store.states.marks import list_marks, set_marks

WORTH_A_MARK = 0.5  # seconds that a build has taken
LOOK_EVERY = 0.5
SAY_AGAIN = 5.0
HEARD_WITHIN = 20.0
MOST = 500


class BuildJob(msgspec.Struct, frozen=True):
    """A queued or running build: a job, or a local build of the driver, without job and queue."""

    id: int | None
    state: str
    queue: str | None
    started_at: datetime | None


#: Builds by stage and entity.
BuildJobs = Mapping[tuple[str, str], BuildJob]


async def builds_under_way(database: Database, pipeline: Pipeline, stages: Iterable[Stage]) -> BuildJobs:
    """The queued and running builds of some stages."""
    wanted = {stage.name: stage for stage in stages}
    if not wanted:
        return {}
    found = {
        (row["stage"], row["entity"]): BuildJob(None, "running", None, row["began_at"])
        for row in await list_marks(database, pipeline.name, heard_within=HEARD_WITHIN)
        if row["stage"] in wanted
    }
    tasks = {task_name(stage): stage for stage in wanted.values() if not stage.options.in_process}
    for row in await list_build_jobs(database, list(tasks)) if tasks else ():
        stage = tasks[row["task"]]
        entity = "" if row["unique_key"] == "*" and not stage.variables else row["unique_key"]
        found[stage.name, entity] = BuildJob(row["id"], row["state"], row["queue"], row["started_at"])
    return found


class BuildMarks(msgspec.Struct, eq=False):
    """Marks the builds that run in this process, while there are any."""

    database: Database
    pipeline: str
    builder: str
    running: Callable[[], Iterable[tuple[str, str, float]]]
    """The running builds: stage, entity, and start by the monotonic clock."""
    is_idle: Callable[[], bool]
    task: asyncio.Task[None] | None = None
    closing: asyncio.Event = msgspec.field(default_factory=asyncio.Event)

    def begin(self) -> None:
        """Start marking: builds have started."""
        if self.task is None:
            self.task = asyncio.create_task(self._mark_running())
            self.task.add_done_callback(self._ended)

    async def close(self) -> None:
        """Remove the marks."""
        self.closing.set()
        if self.task is not None:
            await asyncio.wait([self.task])

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.task = None
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.warning("builds cannot be marked", pipeline=self.pipeline, error=str(error))
        elif not self.closing.is_set() and not self.is_idle():
            self.begin()  # Builds may have started while the last marks were removed.

    async def _mark_running(self) -> None:
        """Mark running builds until there are none."""
        said: set[tuple[str, str]] = set()
        due = 0.0
        while not self.closing.is_set() and not self.is_idle():
            await wait_for_event(self.closing, LOOK_EVERY)
            now = time.monotonic()
            long = [each for each in self.running() if now - each[2] >= WORTH_A_MARK][:MOST]
            names = {(stage, entity) for stage, entity, _ in long}
            if names != said or (names and now >= due):
                said, due = names, now + SAY_AGAIN
                ahead = time.time() - now
                await self._set([(stage, entity, since + ahead) for stage, entity, since in long])
        if said:
            await self._set([])

    async def _set(self, marks: list[tuple[str, str, float]]) -> None:
        try:
            await set_marks(self.database, self.pipeline, self.builder, marks)
        except Exception as error:
            if not (is_unavailable(error) or is_full(error)):
                raise
