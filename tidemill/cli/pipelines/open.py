"""Where commands of `tidemill pipeline` work, and which pipeline, stage or state a word on the command line means."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any, TypeVar

import msgspec
from cyclopts import CycloptsError, Parameter

from tidemill.cli.connection_options import ConnectionOptions, ServerOptions, open_soon, operator, require_database
from tidemill.core.errors import ConfigError, NotFoundError
from tidemill.declarations import Declarations
from tidemill.engine.hooks import Hooks
from tidemill.engine.settings import Settings
from tidemill.ops.operator.local import Caller, Local
from tidemill.ops.operator.operation import Operator
from tidemill.ops.pipelines.read import ListPipelines, PipelineLine, StageLine, list_pipelines
from tidemill.pipelines.definition.load_target import PipelineTarget, load_target
from tidemill.pipelines.definition.pattern import Pattern, entity_id
from tidemill.pipelines.view.pipeline_cache import PipelineCache
from tidemill.store.database import Database
from tidemill.store.migrate import migrate, wait_for_schema

T = TypeVar("T")

AppArgument = Annotated[
    str | None,
    Parameter(
        help="Where pipelines are declared: app.py, package.module, a workflow file or a folder of them. "
        "Leave it out with a server."
    ),
]


class Meant(msgspec.Struct, frozen=True):
    """What a word means: a pipeline, a stage of it, a state; or an entity in all its stages."""

    pipeline: str
    stage: str | None = None
    entity: str | None = None

    @property
    def entities(self) -> list[str] | None:
        return None if self.entity is None else [self.entity]


class Work:
    """Where a command works: the pipelines that were named, on their database or through a server."""

    def __init__(self, app: str | None, word: str | None, place: ServerOptions) -> None:
        """`word` comes after the application; a server has the application, so that `app` is the word there."""
        self._place = place
        if place.server_url is None:
            self._app, self.word = named(app, "APP"), word
        elif word is not None:
            raise ConfigError(f"the server has the application: leave out {app!r}")
        else:
            self._app, self.word = None, app

    def require_word(self, what: str) -> str:
        return named(self.word, what)

    def run(self, work: Callable[[Operator], Awaitable[T]], *, live: bool = True) -> T:
        """Do operations; without `live` they need no database."""

        async def go() -> T:
            async with self._operator(live=live) as at:
                return await work(at)

        return asyncio.run(go())

    @contextlib.asynccontextmanager
    async def _operator(self, *, live: bool) -> AsyncIterator[Operator]:
        if self._app is None:
            async with self._place.operator() as at:
                yield at
            return
        target = load_target(self._app)
        declared = declarations_of(target)
        async with opened(target, self._place, create=target.app is None, live=live) as database:
            declared.pipelines.cache = PipelineCache(database, declared.pipelines)
            yield Local(database, Caller(operator(), "admin"), declared)


def declarations_of(target: PipelineTarget) -> Declarations:
    """What the application declares; pipelines of files without one are declared by themselves."""
    if target.app is not None:
        return target.app.declarations
    declared = Declarations("pipelines", hooks=Hooks(), models=(), settings={}, source=None)
    declared.pipelines.declared |= {pipeline.name: pipeline for pipeline in target.pipelines}
    return declared


def settings_of(target: PipelineTarget, place: ConnectionOptions, **more: Any) -> Settings:
    if target.app is None:
        return place.settings(**more)
    target.app.declarations.configure(**place.arguments(), **more)
    return target.app.settings


@contextlib.asynccontextmanager
async def opened(
    target: PipelineTarget, place: ConnectionOptions, *, create: bool = False, live: bool = True
) -> AsyncIterator[Database]:
    """The database of pipelines; without `live` it stays closed."""
    settings = settings_of(target, place)
    if not create and live:
        require_database(settings)
    database = Database(settings.database(), label="tidemill cli")
    if not live:
        yield database
        return
    try:
        await open_soon(database)
        if create:
            await migrate(database)
        await wait_for_schema(database, patience=2.0)
        yield database
    finally:
        await database.close()


def named(word: str | None, what: str) -> str:
    """A word of the command line that must be given."""
    if word is None:
        raise CycloptsError(msg=f"say which {what}", command_chain=("pipeline",))
    return word


async def names(at: Operator, name: str | None) -> list[str]:
    """The pipeline that was named, or all."""
    if name is not None:
        return [name]
    return [line.name for line in (await at.do(list_pipelines, ListPipelines(live=False))).items]


async def find(at: Operator, text: str) -> Meant:
    """What PIPELINE, STAGE, STAGE/ENTITY, ENTITY or the path of an output means; also with PIPELINE/ before it."""
    lines = (await at.do(list_pipelines, ListPipelines(live=False))).items
    owner = _owner(lines, text)
    rest = "" if text == owner.name else text.removeprefix(f"{owner.name}/")
    for stage in owner.stages:
        values = Pattern(stage.output).match(rest)
        if values is not None and all(name in values for name in stage.variables):
            return Meant(owner.name, stage.name, entity_id([values[name] for name in stage.variables] or [""]))
    name, _, entity = rest.partition("/")
    for stage in owner.stages:
        if stage.name == name:
            return Meant(owner.name, name, entity or None)
    return Meant(owner.name, None, rest or None)


async def find_all(at: Operator, text: str | None) -> list[Meant]:
    """What a word means; all pipelines if there is none."""
    return [Meant(name) for name in await names(at, None)] if text is None else [await find(at, text)]


async def find_state(at: Operator, text: str) -> Meant:
    """The state that the path of an output, STAGE/ENTITY or PIPELINE/STAGE/ENTITY means."""
    meant = await find(at, text)
    if meant.stage is None:
        raise NotFoundError(
            f"{text!r} is no state of pipeline {meant.pipeline}: write the path of an output, or STAGE/ENTITY"
        )
    return meant


async def find_stage(at: Operator, text: str) -> tuple[str, str]:
    """The pipeline and the stage that STAGE or PIPELINE/STAGE means."""
    meant = await find(at, text)
    if meant.stage is None or meant.entity is not None:
        raise NotFoundError(
            f"pipeline {meant.pipeline} has no stage {meant.entity or text!r}: write STAGE or PIPELINE/STAGE"
        )
    return meant.pipeline, meant.stage


def _owner(lines: list[PipelineLine], text: str) -> PipelineLine:
    """The pipeline that a word belongs to."""
    tests: tuple[Callable[[PipelineLine], bool], ...] = (
        lambda line: text == line.name or text.startswith(f"{line.name}/"),
        lambda line: text.partition("/")[0] in [stage.name for stage in line.stages],
        lambda line: any(_makes(stage, text) for stage in line.stages),
        lambda line: len(lines) == 1,
    )
    for test in tests:
        found = [line for line in lines if test(line)]
        if len(found) > 1:
            several = ", ".join(line.name for line in found)
            raise ConfigError(f"{text!r} could be of several pipelines ({several}): write PIPELINE/{text}")
        if found:
            return found[0]
    known = ", ".join(line.name for line in lines) or "none"
    raise ConfigError(f"{text!r} is of no pipeline; there are: {known}")


def _makes(stage: StageLine, path: str) -> bool:
    return Pattern(stage.output).values(path) is not None
