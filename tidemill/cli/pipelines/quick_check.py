"""`tidemill pipeline check app.py`, without loading what it does not need: for hooks, where every second counts.

Whatever is not plain is left to the command itself, which says what is wrong.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import asyncpg

from tidemill.core.errors import TidemillError
from tidemill.pipelines.definition.load_target import is_workflow, load_target
from tidemill.pipelines.definition.pipeline import Pipeline
from tidemill.pipelines.stores.files import FileStates
from tidemill.pipelines.view.pipeline_view import PipelineView
from tidemill.pipelines.view.quick_check import count_fresh, is_plain
from tidemill.store.database import Database, DatabaseSettings
from tidemill.store.states.summary import summarise


def check_quickly(arguments: Sequence[str]) -> int | None:
    """The exit status, after saying how many states are fresh; None if the command itself must do it."""
    if len(arguments) not in (1, 2) or is_workflow(arguments[0]):
        return None
    if _may_load_structlog(arguments[0]):
        import tidemill.cli.plain_structlog  # noqa: F401 - before the application loads it
    try:
        target = load_target(arguments[0])
        settings = _settings(target.app)
        chosen = target.choose(arguments[1] if len(arguments) == 2 else None)
        return asyncio.run(_check(settings, chosen))
    except asyncpg.PostgresError:
        return None  # no schema yet, say
    except TidemillError as error:
        sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
        return 1


def _may_load_structlog(target: str) -> bool:
    """Whether a program may declare an application, which logs; one with pipelines alone is checked without that."""
    try:
        return b"App" in Path(target).read_bytes()
    except OSError:
        return True  # such as a module by its name


def _settings(app: object) -> DatabaseSettings:
    if app is not None:
        return app.settings.database()  # pyright: ignore[reportAttributeAccessIssue]
    names = {name.removeprefix("TIDEMILL_").lower() for name in os.environ if name.startswith("TIDEMILL_")}
    if names <= {"database_url", "directory"} and not _has_project():
        given = {name: os.environ[f"TIDEMILL_{name.upper()}"] for name in names}
        return DatabaseSettings(url=given.get("database_url"), directory=given.get("directory") or ".tidemill")
    from tidemill.engine.settings import load_settings  # knows all the ways to say it, and is slow to load

    return load_settings().database()


def _has_project() -> bool:
    here = Path.cwd()
    return any((folder / "pyproject.toml").exists() for folder in (here, *here.parents))


async def _check(settings: DatabaseSettings, pipelines: Sequence[Pipeline]) -> int:
    left = 0
    async with Database(settings, label="tidemill check") as database:
        for pipeline in pipelines:
            pipeline_view = PipelineView(database, pipeline)
            fresh = await _count_if_fresh(pipeline_view)
            amiss = 0
            if fresh is None:
                await pipeline_view.read_all()
                await pipeline_view.read_unknown()
                plan = pipeline_view.plan()
                fresh, amiss = sum(plan.fresh.values()), len(plan.steps)
            left += amiss
            sys.stdout.write(f"{pipeline.name}: {fresh:,} fresh, {amiss:,} not\n")
    return 1 if left else 0


async def _count_if_fresh(pipeline_view: PipelineView) -> int | None:
    """The number of states if the quick check finds all of them fresh; None otherwise."""
    if not isinstance(pipeline_view.states, FileStates) or not is_plain(pipeline_view.order):
        return None
    knowing = asyncio.ensure_future(summarise(pipeline_view.database, pipeline_view.pipeline.name))
    try:
        scan = await pipeline_view.states.scan(pipeline_view.patterns)
    finally:
        files, states = await knowing
    return count_fresh(pipeline_view.order, scan, files, states)
