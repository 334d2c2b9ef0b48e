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
from tidemill.pipelines.runner.driver import Driver, run_once
from tidemill.pipelines.runner.log import log
from tidemill.pipelines.view.pipeline_view import read_and_plan
from tidemill.store.database import Database
from tidemill.store.database_errors import is_unavailable
from tidemill.store.migrate import migrate

#: How often a process that brings a pipeline up to date begins, where it loses the database in the middle.
BEGINNINGS = 10


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


async def bring_up_to_date(database: Database, pipeline: Pipeline) -> tuple[Driver, BuildPlan]:
    """Bring a pipeline up to date in this process; returns its driver and the remaining plan.

    Where the database goes away in the middle, it begins again with what is built: an embedded one ends with the
    process that has started it, and the next one starts it again.
    """
    for left in reversed(range(BEGINNINGS)):
        driver = Driver(database, pipeline)
        try:
            return driver, await run_once(driver)
        except Exception as error:
            if not left or not is_unavailable(error):
                raise
            log.warning("the database went away: going on with what is built", pipeline=pipeline.name, error=str(error))
    raise AssertionError


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
