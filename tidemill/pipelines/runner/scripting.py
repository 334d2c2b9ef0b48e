"""Brings a pipeline up to date from a script, in this process and without workers.

from tidemill.pipelines import Pipeline, plan_pipeline, update_pipeline

left = await update_pipeline(blog)          what could not be built, and why: left.builds, left.holds
plan = await plan_pipeline(blog)            what would be built, and why
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tidemill.pipelines.definition.pipeline import Pipeline
from tidemill.pipelines.reducer.plan import BuildPlan
from tidemill.pipelines.runner.driver import bring_up_to_date
from tidemill.pipelines.view.pipeline_view import read_and_plan
from tidemill.store.database import Database
from tidemill.store.migrate import migrate


async def update_pipeline(pipeline: Pipeline, database: Database | None = None) -> BuildPlan:
    """Build what is missing or out of date; returns what is left: failures, waits and holds."""
    async with _opened(database) as opened:
        _, plan = await bring_up_to_date(opened, pipeline)
        return plan


async def plan_pipeline(pipeline: Pipeline, database: Database | None = None) -> BuildPlan:
    """What would be built and why, without building anything."""
    async with _opened(database) as opened:
        _, plan = await read_and_plan(opened, pipeline)
        return plan


@asynccontextmanager
async def _opened(database: Database | None) -> AsyncIterator[Database]:
    """The given database, or that of the current settings, opened and migrated."""
    if database is not None:
        yield database
        return
    from tidemill.engine.settings import load_settings  # slow to load

    async with Database(load_settings().database(), label="tidemill pipelines") as opened:
        await migrate(opened)
        yield opened
