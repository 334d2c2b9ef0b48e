"""`tidemill pipeline check app.py`, without loading what it does not need: for hooks, where every second counts.

All other cases are left to the command itself, which says what is wrong.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.core.errors import TidemillError
from tidemill.pipelines.definition.load_target import is_workflow, load_target
from tidemill.pipelines.definition.pipeline import Pipeline, check_order, patterns_of
from tidemill.pipelines.stores.forked_walk import ForkedWalk, can_fork

if TYPE_CHECKING:
    from tidemill.pipelines.stores.base import Scan
    from tidemill.pipelines.view.pipeline_view import PipelineView
    from tidemill.store.database import DatabaseSettings


def check_quickly(arguments: Sequence[str]) -> int | None:
    """The exit status, after saying how many states are fresh; None if the command itself must do it."""
    if len(arguments) not in (1, 2) or is_workflow(arguments[0]):
        return None
    if _may_load_structlog(arguments[0]):
        import tidemill.cli.plain_structlog  # noqa: F401 - before the application loads it
    try:
        target = load_target(arguments[0])
        chosen = target.choose(arguments[1] if len(arguments) == 2 else None)
        walks = _start_walks(chosen)
        return _run(target.app, chosen, walks)
    except TidemillError as error:
        sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
        return 1


def _may_load_structlog(target: str) -> bool:
    """Whether a program may declare an application, which logs; one with pipelines alone is checked without that."""
    try:
        return b"App" in Path(target).read_bytes()
    except OSError:
        return True  # such as a module by its name


def _start_walks(pipelines: Sequence[Pipeline]) -> dict[str, ForkedWalk]:
    """Read the folders of pipelines of files, by pipeline, while the client of the database is loaded."""
    if not can_fork():
        return {}
    return {
        each.name: ForkedWalk(str(each.root.absolute()), patterns_of(check_order(each.stages.values())))
        for each in pipelines
        if each.store is None
    }


def _run(app: object, pipelines: Sequence[Pipeline], walks: dict[str, ForkedWalk]) -> int | None:
    import asyncio  # Slow imports, which run while the forked walks read the files.

    import asyncpg

    try:
        return asyncio.run(_check(_settings(app), pipelines, walks))
    except asyncpg.PostgresError:
        return None  # no schema yet, say


def _settings(app: object) -> DatabaseSettings:
    from tidemill.store.database import DatabaseSettings

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


async def _check(settings: DatabaseSettings, pipelines: Sequence[Pipeline], walks: dict[str, ForkedWalk]) -> int:
    from tidemill.pipelines.view.pipeline_view import PipelineView
    from tidemill.store.database import Database

    left = 0
    async with Database(settings, label="tidemill check") as database:
        for pipeline in pipelines:
            pipeline_view = PipelineView(database, pipeline)
            fresh = await _count_if_fresh(pipeline_view, walks.get(pipeline.name))
            amiss = 0
            if fresh is None:
                await pipeline_view.read_all()
                pipeline_view.require_place()
                await pipeline_view.read_unknown()
                plan = pipeline_view.plan()
                fresh, amiss = sum(plan.fresh.values()), len(plan.steps)
            left += amiss
            sys.stdout.write(f"{pipeline.name}: {fresh:,} fresh, {amiss:,} not\n")
    return 1 if left else 0


async def _count_if_fresh(pipeline_view: PipelineView, walk: ForkedWalk | None) -> int | None:
    """The number of states if the quick check finds all of them fresh; None otherwise."""
    from tidemill.pipelines.stores.files import FileStates
    from tidemill.pipelines.view.quick_check import count_fresh, is_plain
    from tidemill.store.states.summary import summarise

    if not isinstance(pipeline_view.states, FileStates) or not is_plain(pipeline_view.order):
        return None
    files, states = await summarise(pipeline_view.database, pipeline_view.pipeline.name)
    scan: Scan | None = walk.result() if walk is not None else await pipeline_view.states.scan(pipeline_view.patterns)
    return None if scan is None else count_fresh(pipeline_view.order, scan, files, states)
