"""What a run worker's watchdog knows of runs: which step blocks the event loop.

The step's attempt fails as its timeout would have failed it, if only it had yielded: the failure is sent to the run,
and its next owner takes it before anything of the run is started again. All other runs go on with other owners.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from tidemill.core.blame import ALONE
from tidemill.engine.containment.watchdog import CancelWatch, Culprit, EndedFor
from tidemill.engine.runs.durable_run import DurableRun, StepHere
from tidemill.store.database import Connection, Database
from tidemill.store.runs.claims import FREE_RUNS
from tidemill.store.runs.inbox import IS_CANCEL_ASKED, SEND


class StepWatch:
    """Watches the runs of one run worker."""

    def __init__(self, database: Database, runs: Mapping[int, DurableRun]) -> None:
        self._database = database
        self._runs = runs
        self._cancels = CancelWatch()

    def find(self, task: asyncio.Task[Any] | None) -> Culprit | None:
        if task is None:
            return None
        found = [(run, step) for run in list(self._runs.values()) for step in run.steps_here()]
        mine = [(run, step) for run, step in found if step.is_run_by(task)]
        if not mine and len(found) == 1:  # A task that the only step has started.
            mine = found
        if not mine:
            return None
        return _culprit(*mine[0])

    def overdue(
        self, now: float, loop: asyncio.AbstractEventLoop, *, is_blocked: bool
    ) -> tuple[Culprit, EndedFor] | None:
        """The step that did not end when its timeout cancelled it; one that blocks the loop is found by that."""
        if is_blocked:
            return None
        try:
            found = [_culprit(run, step) for run in list(self._runs.values()) for step in run.steps_here()]
        except RuntimeError:  # The loop has changed what was being read.
            return None
        return self._cancels.find(found, now)

    async def is_cancelled(self, connection: Connection, culprit: Culprit) -> bool:
        run, _ = culprit.work
        return bool(await connection.fetchval(self._database.sql(IS_CANCEL_ASKED), run.number))

    async def write_end(self, connection: Connection, worker_id: int, culprit: Culprit, ended: EndedFor) -> None:
        run, step = culprit.work
        if ended.kind != "cancel":
            await connection.execute(self._database.sql(SEND), run.number, run.failure_of(step, ended.why))
        await connection.execute(self._database.sql(FREE_RUNS), ALONE)

    async def report(self, connection: Connection, ended: EndedFor) -> None: ...


def _culprit(run: DurableRun, step: StepHere) -> Culprit:
    return Culprit(f"step {step.name} of run r{run.number}", (run, step), step.limit_at, step.limit, step.task)
