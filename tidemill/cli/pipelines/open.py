"""Where commands of `tidemill pipeline` work, and which pipeline, stage or state a word on the command line means."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any, TypeVar, get_args

from cyclopts import CycloptsError, Parameter

from tidemill.cli.arguments import Command, parameters_of, with_parameters
from tidemill.cli.connection_options import (
    ANYWHERE,
    ConnectionOptions,
    ServerOptions,
    operator,
)
from tidemill.cli.open_database import open_or_fail, require_database
from tidemill.core.accounts import Caller
from tidemill.core.errors import ConfigError, NotFoundError
from tidemill.declarations import Declarations
from tidemill.engine.application.hooks import Hooks
from tidemill.engine.settings import Settings
from tidemill.ops.operator.local import Local
from tidemill.ops.operator.operation import Operator
from tidemill.ops.pipelines.change import StageRef
from tidemill.ops.pipelines.find import PipelineObject, find_pipeline_object
from tidemill.ops.pipelines.pipelines import ListPipelines, list_pipelines
from tidemill.pipelines.definition.load_target import PipelineTarget, load_target
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


AllowUnknown = Annotated[
    bool, Parameter(help="Warn about what is not understood in workflow files, instead of refusing them.")
]
AppOption = Annotated[
    str | None, Parameter(help="What declares the pipelines of a state: app.py, a workflow file or folder.")
]
Pipeline = Annotated[str | None, Parameter(help="Only this one.")]
OneOf = Annotated[str | None, Parameter(help="The pipeline, where there are several.")]
Stage = Annotated[str, Parameter(help="The stage: STAGE or PIPELINE/STAGE.")]
Target = Annotated[
    str | None,
    Parameter(help="A state (its path, or STAGE/ENTITY), a STAGE or a PIPELINE; all of them, if not given."),
]


def on_pipelines(command: Callable[..., Awaitable[Any]]) -> Command:
    """A command that is called with an operator and the word that follows the application on the command line.

    The word may be left out if its type allows None. With an option `live` that is off, no database is needed.
    """
    _, word, *own = parameters_of(command)
    kind, *notes = get_args(word.annotation)
    required = type(None) not in get_args(kind)
    ahead, named = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.KEYWORD_ONLY
    more = [
        inspect.Parameter("app", ahead, default=None, annotation=AppArgument),
        inspect.Parameter(word.name, ahead, default=None, annotation=Annotated[kind | None, *notes]),
        inspect.Parameter("allow_unknown", named, default=False, annotation=AllowUnknown),
        inspect.Parameter("connection", named, default=ANYWHERE, annotation=ServerOptions),
    ]

    def run(*values: Any, connection: ServerOptions = ANYWHERE, allow_unknown: bool = False, **options: Any) -> Any:
        app, given = (*values, None, None)[:2]
        work = PipelineWork(app, given, connection, allow_unknown=allow_unknown)
        if required:
            named_word(work.word, word.name.upper())
        return work.run(lambda at: command(at, work.word, **options), live=options.get("live", True))

    return with_parameters(run, command, [*more[:2], *own, *more[2:]])


class PipelineWork:
    """Where a command works: the pipelines that were named, on their database or through a server."""

    def __init__(
        self,
        app: str | None,
        word: str | None,
        connection: ServerOptions,
        *,
        allow_unknown: bool = False,
        needs_pipelines: bool = True,
    ) -> None:
        """`word` comes after the application; a server has the application, so that `app` is the word there."""
        self._connection = connection
        self._allow_unknown, self._needs_pipelines = allow_unknown, needs_pipelines
        if connection.server_url is None:
            self._app, self.word = named_word(app, "APP"), word
        elif word is not None:
            raise ConfigError(f"the server has the application: leave out {app!r}")
        else:
            self._app, self.word = None, app

    def run(self, work: Callable[[Operator], Awaitable[T]], *, live: bool = True) -> T:
        """Do operations; without `live` they need no database."""

        async def go() -> T:
            async with self._operator(live=live) as at:
                return await work(at)

        return asyncio.run(go())

    @contextlib.asynccontextmanager
    async def _operator(self, *, live: bool) -> AsyncIterator[Operator]:
        if self._app is None:
            async with self._connection.operator() as at:
                yield at
            return
        target = load_target(self._app, allow_unknown=self._allow_unknown, needs_pipelines=self._needs_pipelines)
        print_file_problems(target)
        declared = declarations_of(target)
        async with opened(target, self._connection, create=target.app is None, live=live) as database:
            declared.pipelines.cache = PipelineCache(database, declared.pipelines)
            yield Local(database, Caller(operator(), "admin"), declared)


def print_file_problems(target: PipelineTarget) -> None:
    """Tell on stderr which files are not in use, and what is not understood in others."""
    for problem in (*target.problems, *target.notes):
        sys.stderr.write(f"{'error' if problem in target.problems else 'warning'}: {problem}\n")


def declarations_of(target: PipelineTarget) -> Declarations:
    """What the application declares; pipelines of files without one are declared by themselves."""
    if target.app is not None:
        return target.app.declarations
    declared = Declarations("pipelines", hooks=Hooks(), models=(), settings={}, declared_in={})
    declared.pipelines.declared |= {pipeline.name: pipeline for pipeline in target.pipelines}
    for workflow in target.triggers.values():
        declared.pipelines.declare_trigger(workflow)
    return declared


def settings_of(target: PipelineTarget, connection: ConnectionOptions, **more: Any) -> Settings:
    if target.app is None:
        return connection.settings(**more)
    target.app.declarations.configure(**connection.arguments(), **more)
    return target.app.settings


@contextlib.asynccontextmanager
async def opened(
    target: PipelineTarget, connection: ConnectionOptions, *, create: bool = False, live: bool = True
) -> AsyncIterator[Database]:
    """The database of pipelines; without `live` it stays closed."""
    settings = settings_of(target, connection)
    if not create and live:
        require_database(settings)
    database = Database(settings.database(), label="tidemill cli")
    if not live:
        yield database
        return
    try:
        await open_or_fail(database)
        if create:
            await migrate(database)
        await wait_for_schema(database, patience=2.0)
        yield database
    finally:
        await database.close()


def named_word(word: str | None, what: str) -> str:
    """A word of the command line that must be given."""
    if word is None:
        raise CycloptsError(msg=f"say which {what}", command_chain=("pipeline",))
    return word


async def names(at: Operator, name: str | None) -> list[str]:
    """The pipeline that was named, or all."""
    if name is not None:
        return [name]
    return [line.name for line in (await at.do(list_pipelines, ListPipelines(live=False))).items]


async def the_pipeline(at: Operator, name: str | None) -> str:
    """The pipeline that was named, or the only one."""
    known = await names(at, name)
    if len(known) != 1:
        raise ConfigError(f"say which pipeline: --pipeline {' or '.join(known)}")
    return known[0]


async def find(at: Operator, text: str) -> PipelineObject:
    """What PIPELINE, STAGE, STAGE/ENTITY, ENTITY or the path of an output means; also with PIPELINE/ before it."""
    return find_pipeline_object((await at.do(list_pipelines, ListPipelines(live=False))).items, text)


async def find_all(at: Operator, text: str | None) -> list[PipelineObject]:
    """What a word means; all pipelines if there is none."""
    return [PipelineObject(name) for name in await names(at, None)] if text is None else [await find(at, text)]


async def find_stage(at: Operator, text: str) -> StageRef:
    """The stage that STAGE or PIPELINE/STAGE means."""
    meant = await find(at, text)
    if meant.stage is None or meant.entity is not None:
        raise NotFoundError(
            f"pipeline {meant.pipeline} has no stage {meant.entity or text!r}: write STAGE or PIPELINE/STAGE"
        )
    return StageRef(name=meant.pipeline, stage=meant.stage)
