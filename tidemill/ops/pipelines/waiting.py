"""Waiting for a backfill: woken by changes, with a slow safety poll behind."""

from __future__ import annotations

from collections.abc import Callable

from tidemill.core.errors import ConfigError
from tidemill.ops.operator.operation import Operator
from tidemill.ops.pipelines.plan import Backfill, ListBackfills, list_backfills
from tidemill.ops.waiting import SAFETY_POLL


async def wait_for_backfill(
    at: Operator, pipeline: str, id: int, *, each: Callable[[Backfill], None] | None = None
) -> Backfill:
    """The backfill once its states are built, have failed, or cannot be built now. `each` gets it at every look."""
    left = None
    async with at.watch("pipelines") as changes:
        while True:
            backfill = await _read(at, pipeline, id)
            if each is not None:
                each(backfill)
            if backfill.left == left:  # Nothing was built for a while: find out whether anything can be.
                backfill = await _read(at, pipeline, id, waiting=True)
            left = backfill.left
            if left == backfill.failed + (backfill.waiting or 0):
                return backfill
            await changes.wait(SAFETY_POLL)


async def _read(at: Operator, pipeline: str, id: int, *, waiting: bool = False) -> Backfill:
    """A backfill that is not stopped, of a pipeline that a process builds."""
    found = await at.do(list_backfills, ListBackfills(name=pipeline, limit=100, waiting=waiting))
    if not found.kept:
        raise ConfigError(
            f"no process keeps pipeline {pipeline} up to date: the backfill goes on when `tidemill up` or "
            "`tidemill pipeline run` does"
        )
    backfill = next((one for one in found.items if one.id == id), None)
    if backfill is None or backfill.stopped_at is not None:
        raise ConfigError(f"backfill {id} of pipeline {pipeline} was stopped")
    return backfill
