"""The role that runs a folder of workflow files: drives its pipelines and stores its schedules.

A changed file is re-read, and its declarations replace the previous ones; nothing else is affected. An unreadable file
changes nothing, and is logged.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import watchfiles

from tidemill.engine.application.hooks import ResolvingTasks
from tidemill.engine.event_wait import wait_for_event
from tidemill.engine.jobs.task import Task
from tidemill.engine.roles.maintenance import MaintenanceSettings, maintenance_role
from tidemill.engine.roles.role import Life, Role, Runnable, run_roles
from tidemill.engine.roles.scheduler import Scheduler
from tidemill.engine.worker.worker import Worker, WorkerSettings, worker_role
from tidemill.pipelines.definition.pipeline import Pipeline, Stage
from tidemill.pipelines.runner.log import log
from tidemill.pipelines.runner.runner import STAND_BY, PipelineRunner
from tidemill.pipelines.workflows.folder import WorkflowFolder
from tidemill.pipelines.workflows.schedules import FILES, QUEUE, trigger_task, workflow_schedules
from tidemill.store.database import Database
from tidemill.store.database_errors import is_unavailable
from tidemill.store.jobs.schedules.schedules import declare_schedules

LOOK_ANYWAY_MS = 10_000  # poll interval without notifications
GRACE = 10.0  # seconds that a run of a workflow has to end


class WorkflowRunner:
    """Runs what workflow files declare, until stopped."""

    def __init__(
        self,
        database: Database,
        folder: WorkflowFolder,
        *,
        beside: Iterable[Pipeline] = (),
        task_of: Callable[[Stage], Any] | None = None,
        tasks: Mapping[str, Task[Any, Any]] | None = None,
        keep_days: int = 30,
    ) -> None:
        """`beside` are further pipelines to drive. Without `task_of` and `tasks`, everything runs in this process."""
        self._database = database
        self._folder = folder
        self._beside = list(beside)
        self._tasks = tasks if tasks is not None else ResolvingTasks(None, self._filed_task)
        self._runs_jobs = tasks is None
        self._version = -1
        self._changed = asyncio.Event()
        folder.refresh()
        self.pipelines = PipelineRunner(database, self._pipelines(), task_of, keep_days=keep_days)
        self.channels = self.pipelines.channels

    async def work(self, life: Life) -> None:
        """Run what the files declare until stopped, and follow their changes."""
        self._note_version()
        async with asyncio.TaskGroup() as group:
            helpers = [group.create_task(self._follow()), group.create_task(self._keep_schedules(life))]
            await self.pipelines.work(life)
            for helper in helpers:
                helper.cancel()

    def _pipelines(self) -> list[Pipeline]:
        return [*self._beside, *self._folder.pipelines.values()]

    def _note_version(self) -> None:
        self._version = self._folder.version
        for note in self._folder.notes:
            log.warning("not understood", note=note)
        for file, error in self._folder.errors.items():
            log.error("a workflow file cannot be used: what it declared before stays", file=file, error=error)

    async def _follow(self) -> None:
        """Re-read the files whenever they change, and periodically."""
        while True:
            path = self._folder.path
            self._look()
            if not path.exists():
                await asyncio.sleep(STAND_BY)
                continue
            with contextlib.suppress(OSError, RuntimeError):  # Fall back to polling.
                async for _ in watchfiles.awatch(
                    path if path.is_dir() else path.parent,
                    watch_filter=lambda _, changed: changed.endswith(".json"),
                    step=20,
                    stop_event=asyncio.Event(),  # set by the watch itself on cancellation
                    rust_timeout=LOOK_ANYWAY_MS,
                    yield_on_timeout=True,
                ):
                    self._look()
            await asyncio.sleep(STAND_BY)

    def _look(self) -> None:
        self._folder.refresh()
        if self._folder.version == self._version:  # Another reader in this process may have refreshed them first.
            return
        log.info("workflow files reloaded", path=str(self._folder.path))
        self._note_version()
        self.pipelines.replace(self._pipelines())
        self._changed.set()

    # -- schedules ----------------------------------------------------------------------------------

    async def _keep_schedules(self, life: Life) -> None:
        """Store the schedules of the files whenever they change; without an application, also fire and run them."""
        await life.wait_ready()
        async with contextlib.AsyncExitStack() as running:
            is_running = False
            while True:
                self._changed.clear()
                schedules = workflow_schedules(self._folder.triggers.values(), self._task_of_workflow, FILES)
                try:
                    await declare_schedules(self._database, schedules, by=(FILES,))
                except Exception as error:
                    if not is_unavailable(error):
                        raise
                    log.warning("the database is unavailable", error=str(error))
                    await wait_for_event(self._changed, STAND_BY)
                    continue
                if schedules and self._runs_jobs and not is_running:
                    await running.enter_async_context(run_roles(*self._job_roles()))
                    is_running = True
                await self._changed.wait()

    def _job_roles(self) -> list[Runnable]:
        """What fires schedules and runs their jobs in a process without an application."""
        worker = Worker(self._database, self._tasks, WorkerSettings((QUEUE,), grace_seconds=GRACE))
        return [
            maintenance_role(self._database, MaintenanceSettings()),
            Role(Scheduler(self._database, None), self._database),
            worker_role(worker, self._database),
        ]

    def _task_of_workflow(self, name: str) -> Task[Any, Any]:
        return self._tasks[f"workflow/{name}"]

    def _filed_task(self, name: str) -> Task[Any, Any] | None:
        owner, _, workflow = name.partition("/")
        found = self._folder.triggers.get(workflow) if owner == "workflow" else None
        return None if found is None else trigger_task(found)
