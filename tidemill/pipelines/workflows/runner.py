"""The role that keeps a folder of workflow files: its pipelines up to date, its schedules running.

A file that changes is read anew, and what it describes replaces what it described; one that cannot be read changes
nothing, and is told.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import watchfiles

from tidemill.core.errors import TidemillError
from tidemill.core.schedule import Schedule, next_fire
from tidemill.pipelines.log import log
from tidemill.pipelines.model import check_order
from tidemill.pipelines.runner import STAND_BY, PipelineRunner
from tidemill.pipelines.workflows.load import Loaded, TriggerWorkflow, load_workflow
from tidemill.store import states as rows
from tidemill.store.database import Database, is_away


class WorkflowRunner:
    """Keeps what workflow files describe, until it is stopped."""

    def __init__(self, database: Database, path: Path, *, keep_days: int = 30) -> None:
        self.loaded = read_workflows(path)
        self.reloads = 0
        self._database = database
        self._path = path
        self._keep_days = keep_days
        self._stop = asyncio.Event()
        self._ready = asyncio.Event()

    def stop(self) -> None:
        self._stop.set()

    async def wait_ready(self) -> None:
        """Return when all pipelines are driven."""
        await self._ready.wait()

    async def run(self) -> None:
        """Run what the files describe, until told to stop; when they change, what they describe then."""
        while not self._stop.is_set():
            for note in self.loaded.notes:
                log.warning("not understood", note=note)
            inner = PipelineRunner(
                self._database, self.loaded.pipelines, None, keep_days=self._keep_days, migrates=True
            )
            running = asyncio.create_task(inner.run())
            ready = asyncio.create_task(inner.wait_ready())
            waiting = [asyncio.create_task(self._until_changed()), asyncio.create_task(self._stop.wait())]
            scheduling = asyncio.create_task(self._keep_schedules())
            try:
                if self.loaded.pipelines:
                    await asyncio.wait([running, ready], return_when=asyncio.FIRST_COMPLETED)
                self._ready.set()
                ended = [running] if self.loaded.pipelines else []
                await asyncio.wait([*ended, *waiting], return_when=asyncio.FIRST_COMPLETED)
            finally:
                inner.stop()
                for task in (ready, *waiting, scheduling):
                    task.cancel()
                await asyncio.gather(*waiting, scheduling, return_exceptions=True)
                await running

    async def _until_changed(self) -> None:
        """Return when the files have changed and can be read."""
        folder = self._path if self._path.is_dir() else self._path.parent
        async for _ in watchfiles.awatch(folder, watch_filter=lambda _, path: path.endswith(".json"), step=20):
            try:
                self.loaded = read_workflows(self._path)
            except TidemillError as error:
                log.error("the workflow files have changed and cannot be read: the old ones go on", error=str(error))
                continue
            self.reloads += 1
            log.info("workflow files read anew", path=str(self._path))
            return

    async def _keep_schedules(self) -> None:
        """Run what is due, unless another process that keeps these files does so already."""
        if not any(workflow.schedules for workflow in self.loaded.triggers):
            return
        await self._ready.wait()
        while True:
            try:
                await self._lead_schedules()
            except Exception as error:
                if not is_away(error):
                    raise
                log.warning("the database is away", error=str(error))
            await asyncio.sleep(STAND_BY)

    async def _lead_schedules(self) -> None:
        connection = await self._database.connect_to_listen()
        try:
            name = f"{self._database.schema}:schedules of {self._path.resolve()}"
            if not await connection.fetchval(rows.TAKE_LEAD, name):
                return
            lost = asyncio.Event()
            connection.add_termination_listener(lambda _: lost.set())
            keeping = [
                asyncio.create_task(self._keep_schedule(workflow, schedule))
                for workflow in self.loaded.triggers
                for schedule in workflow.schedules
            ]
            try:
                await lost.wait()
            finally:
                for task in keeping:
                    task.cancel()
                await asyncio.wait(keeping)
        finally:
            connection.terminate()

    async def _keep_schedule(self, workflow: TriggerWorkflow, schedule: Schedule) -> None:
        after = time.time()
        while True:
            after = next_fire(schedule, after)
            await asyncio.sleep(max(0.0, after - time.time()))
            try:
                await workflow.run({"scheduledAt": after})
                log.info("workflow ran", workflow=workflow.name)
            except Exception as error:  # noqa: BLE001 - whatever a node does wrong, the next time is another try
                log.error("workflow failed", workflow=workflow.name, error=f"{type(error).__name__}: {error}")
            after = max(after, time.time() - 1.0)  # What was missed while it ran is not made up for.


def read_workflows(path: Path) -> Loaded:
    """The workflows of a file or folder, checked against each other."""
    loaded = load_workflow(path)
    check_order([stage for pipeline in loaded.pipelines for stage in pipeline.stages.values()])
    return loaded
