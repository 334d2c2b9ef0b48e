"""The role that keeps a folder of workflow files: its pipelines up to date, its schedules running.

A file that changes is read anew, and what it describes replaces what it described; one that cannot be read changes
nothing, and is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any

import watchfiles

from tidemill.core.errors import TidemillError
from tidemill.core.schedule import next_fire
from tidemill.pipelines.log import log
from tidemill.pipelines.model import check_order
from tidemill.pipelines.runner import PipelineRunner
from tidemill.pipelines.workflows.load import Loaded, TriggerWorkflow, load_workflow
from tidemill.store.database import Database


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
            schedules = [
                asyncio.create_task(self._keep_schedule(workflow, schedule))
                for workflow in self.loaded.triggers
                for schedule in workflow.schedules
            ]
            try:
                if self.loaded.pipelines:
                    await asyncio.wait([running, ready], return_when=asyncio.FIRST_COMPLETED)
                self._ready.set()
                ended = [running] if self.loaded.pipelines else []
                await asyncio.wait([*ended, *waiting], return_when=asyncio.FIRST_COMPLETED)
            finally:
                inner.stop()
                for task in (ready, *waiting, *schedules):
                    task.cancel()
                await asyncio.gather(*waiting, *schedules, return_exceptions=True)
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

    async def _keep_schedule(self, workflow: TriggerWorkflow, schedule: Any) -> None:
        while True:
            now = time.time()
            await asyncio.sleep(max(0.0, next_fire(schedule, now) - now))
            try:
                await workflow.run({"scheduledAt": time.time()})
                log.info("workflow ran", workflow=workflow.name)
            except TidemillError as error:
                log.error("workflow failed", workflow=workflow.name, error=str(error))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.01):
                    await self._stop.wait()


def read_workflows(path: Path) -> Loaded:
    """The workflows of a file or folder, checked against each other."""
    loaded = load_workflow(path)
    check_order([stage for pipeline in loaded.pipelines for stage in pipeline.stages.values()])
    return loaded
