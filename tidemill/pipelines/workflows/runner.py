"""The role that runs a folder of workflow files: drives its pipelines and fires its schedules.

A changed file is re-read, and its declarations replace the previous ones; nothing else is affected. An unreadable file
changes nothing, and is logged.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import watchfiles

from tidemill.core.schedule import Schedule, next_fire
from tidemill.engine.cancellation import end, is_ending
from tidemill.engine.event_wait import wait_for_event
from tidemill.engine.role import Life
from tidemill.pipelines.definition.pipeline import Pipeline, Stage
from tidemill.pipelines.runner.log import log
from tidemill.pipelines.runner.runner import STAND_BY, PipelineRunner
from tidemill.pipelines.runner.slots import Slots
from tidemill.pipelines.workflows.folder import WorkflowFolder
from tidemill.pipelines.workflows.read import TriggerWorkflow
from tidemill.store.database import Database
from tidemill.store.database_errors import is_unavailable
from tidemill.store.states import states as rows

LOOK_ANYWAY_MS = 10_000  # poll interval without notifications

#: Runs a workflow once for an event.
Fire = Callable[[TriggerWorkflow, Any], Awaitable[Any]]


class WorkflowRunner:
    """Runs what workflow files declare, until stopped."""

    def __init__(
        self,
        database: Database,
        folder: WorkflowFolder,
        *,
        beside: Iterable[Pipeline] = (),
        task_of: Callable[[Stage], Any] | None = None,
        fire: Fire | None = None,
        keep_days: int = 30,
    ) -> None:
        """`beside` are further pipelines to drive. Without `task_of` and `fire`, everything runs in this process."""
        self._database = database
        self._folder = folder
        self._beside = list(beside)
        self._fire = fire or self._run_here
        self._slots = Slots(database)
        self._version = -1
        self._fired: dict[tuple[str, int], float] = {}  # when each schedule was last due
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
        """Fire due schedules, unless another process does it for these files."""
        await life.wait_ready()
        while True:
            self._changed.clear()
            if not any(workflow.schedules for workflow in self._folder.triggers.values()):
                await self._changed.wait()
                continue
            try:
                await self._lead_schedules()
            except Exception as error:
                if not is_unavailable(error):
                    raise
                log.warning("the database is unavailable", error=str(error))
            await wait_for_event(self._changed, STAND_BY)

    async def _lead_schedules(self) -> None:
        """Fire due schedules while the files and the connection stay; return if another process does it."""
        connection = await self._database.connect_to_listen()
        try:
            name = f"{self._database.schema}:schedules of {self._folder.path.resolve()}"
            if not await connection.fetchval(rows.TAKE_LEAD, name):
                return
            lost = asyncio.Event()
            connection.add_termination_listener(lambda _: lost.set())
            keeping = [
                asyncio.create_task(self._keep_schedule(workflow, at, schedule))
                for workflow in self._folder.triggers.values()
                for at, schedule in enumerate(workflow.schedules)
            ]
            waiting = [asyncio.create_task(lost.wait()), asyncio.create_task(self._changed.wait())]
            try:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await end([*waiting, *keeping])
        finally:
            connection.terminate()

    async def _run_here(self, workflow: TriggerWorkflow, payload: Any) -> None:
        async with self._slots.hold(workflow.concurrency_key, workflow.max_concurrency):
            await workflow.run(payload)

    async def _keep_schedule(self, workflow: TriggerWorkflow, at: int, schedule: Schedule) -> None:
        after = self._fired.setdefault((workflow.name, at), time.time())
        while not is_ending():
            after = next_fire(schedule, after)
            await asyncio.sleep(max(0.0, after - time.time()))
            self._fired[workflow.name, at] = after
            try:
                await self._fire(workflow, {"scheduledAt": after})
                log.info("workflow ran", workflow=workflow.name)
            except Exception as error:  # noqa: BLE001 - a failed run must not stop the schedule
                log.error("workflow failed", workflow=workflow.name, error=f"{type(error).__name__}: {error}")
            after = max(after, time.time() - 1.0)  # Fires missed during the run are skipped.
