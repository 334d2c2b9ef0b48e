"""What all commands of `tidemill pipeline` need: the database, and pipelines with what is known of them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from cyclopts import CycloptsError

from tidemill.cli.connection_options import ConnectionOptions, open_soon, require_database
from tidemill.core.errors import ConfigError
from tidemill.engine.settings import Settings
from tidemill.pipelines.definition.load_target import PipelineTarget, load_target
from tidemill.pipelines.definition.pipeline import Pipeline
from tidemill.pipelines.reducer.plan import BuildPlan
from tidemill.pipelines.view.pipeline_view import PipelineView, look_at
from tidemill.store.database import Database
from tidemill.store.migrate import migrate, wait_for_schema

APPROVAL_LASTS = 86400.0


def settings_of(target: PipelineTarget, place: ConnectionOptions, **more: Any) -> Settings:
    if target.app is None:
        return place.settings(**more)
    target.app.declarations.configure(**place.arguments(), **more)
    return target.app.settings


@contextlib.asynccontextmanager
async def opened(target: PipelineTarget, place: ConnectionOptions, *, create: bool = False) -> AsyncIterator[Database]:
    settings = settings_of(target, place)
    if not create:
        require_database(settings)
    database = Database(settings.database(), label="tidemill cli")
    try:
        await open_soon(database)
        if create:
            await migrate(database)
        await wait_for_schema(database, patience=2.0)
        yield database
    finally:
        await database.close()


async def looks(
    target: PipelineTarget, name: str | None, place: ConnectionOptions
) -> AsyncIterator[tuple[PipelineView, BuildPlan]]:
    """Each pipeline with what is known of it and what is to be done about it; nothing is changed."""
    async with opened(target, place, create=target.app is None) as database:
        for pipeline in target.choose(name):
            yield await look_at(database, pipeline)


def local_target(app: str, place: ConnectionOptions) -> PipelineTarget:
    """The pipelines of an application, for what a server cannot do."""
    place.arguments()  # says so, before anything is loaded
    return load_target(app)


def named(word: str | None, what: str) -> str:
    """A word of the command line that only a server can do without."""
    if word is None:
        raise CycloptsError(msg=f"say which {what}", command_chain=("pipeline",))
    return word


def owner_of(target: PipelineTarget, text: str) -> Pipeline:
    """The pipeline that a target on the command line belongs to."""
    by_name = [one for one in target.pipelines if text == one.name or text.startswith(f"{one.name}/")]
    if by_name:
        return by_name[0]
    tests: list[Callable[[Pipeline], bool]] = [
        lambda one: text.partition("/")[0] in one.stages,
        lambda one: any(stage.output.values(text) is not None for stage in one.stages.values()),
    ]
    for test in tests:
        found = [one for one in target.pipelines if test(one)]
        if len(found) > 1:
            names = ", ".join(one.name for one in found)
            raise ConfigError(f"{text!r} could be of several pipelines ({names}): write PIPELINE/{text}")
        if found:
            return found[0]
    if len(target.pipelines) == 1:
        return target.pipelines[0]
    names = ", ".join(one.name for one in target.pipelines)
    raise ConfigError(f"{text!r} is of no pipeline; there are: {names}")
