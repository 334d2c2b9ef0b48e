"""The states of a pipeline: its grid, one state and its origin, the content of a file, inputs from outside, orphans."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tidemill.core.errors import ArgumentError, ForbiddenError, StoreError
from tidemill.declarations import Declarations
from tidemill.engine.jobs.origin import origin_text
from tidemill.ops.operator.cursor import read_row_cursor, write_row_cursor
from tidemill.ops.operator.operation import Arguments, Limit, NameCursor, doc, operation
from tidemill.pipelines.runner.running_builds import BuildJobs
from tidemill.pipelines.stores.base import StateStoreError
from tidemill.pipelines.stores.database import DatabaseStates
from tidemill.pipelines.stores.external_states import Inputs, check_input
from tidemill.pipelines.view import state_grid as grid
from tidemill.pipelines.view.content_preview import Content, EarlierContent, earlier_contents, preview
from tidemill.pipelines.view.lineage import output_paths
from tidemill.pipelines.view.pipeline_cache import PipelineCache, cache_of
from tidemill.pipelines.view.snapshot import PipelineSnapshot
from tidemill.pipelines.view.state_details import StateDetails, describe_state
from tidemill.store.states.build_jobs import is_kept
from tidemill.store.states.origins import FileOrigin
from tidemill.store.transaction import Reader, Transaction

SHOWN = 200
MOST_SHOWN = 100_000
MOST_WRITTEN = 16 << 20

PipelineName = Annotated[str, doc("The pipeline.")]
StageFilter = Annotated[Annotated[str, Meta(max_length=400)] | None, doc("Only this stage.")]
Shown = Annotated[int, doc("How many to name.", ge=0, le=MOST_SHOWN)]


class GetPipelineGrid(Arguments, frozen=True, kw_only=True):
    """Which rows and columns of a pipeline's states."""

    name: PipelineName
    by: Annotated[
        Annotated[str, Meta(max_length=400)] | None, doc("Which grid: its variables, or *; the first if not given.")
    ] = None
    state: Annotated[
        tuple[str, ...], doc("Rows with a state that is this: fresh, stale, failed and so on; may be repeated.")
    ] = ()
    stage: Annotated[tuple[str, ...], doc("Only this stage; may be repeated.")] = ()
    text: Annotated[str, doc("Entities with this text in their name.", max_length=400)] = ""
    order: Annotated[Literal["asc", "desc"], doc("The order of the entities.")] = "desc"
    limit: Limit = 50
    cursor: NameCursor = None


class GetState(Arguments, frozen=True, kw_only=True):
    """Which state."""

    name: PipelineName
    stage: Annotated[str, doc("Its stage.", max_length=4000)]
    entity: Annotated[str, doc("Its entity.", max_length=4000)] = ""
    follow: Annotated[bool, doc("Follow its inputs and outputs step by step.")] = False


class GetContent(Arguments, frozen=True, kw_only=True):
    """Which file of a pipeline."""

    name: PipelineName
    path: Annotated[str, doc("The path of an input or output.", max_length=4000)]


class WriteInput(Arguments, frozen=True, kw_only=True):
    """An input of a pipeline to write: a state that a stage reads and no stage makes."""

    name: PipelineName
    path: Annotated[str, doc("Its path: in/2026-01-15.txt.", min_length=1, max_length=4000)]
    content: Annotated[str, doc("Its content.", max_length=MOST_WRITTEN)]
    encoding: Annotated[Literal["utf-8", "base64"], doc("How the content is given.")] = "utf-8"


class InputWritten(msgspec.Struct, frozen=True):
    """What was written."""

    pipeline: str
    path: str
    bytes: int


class ListOrphans(Arguments, frozen=True, kw_only=True):
    """Which orphans."""

    name: PipelineName
    stage: StageFilter = None
    limit: Shown = SHOWN


class GridGroup(msgspec.Struct, frozen=True):
    """Stages that share a grid, because their entities have the same variables."""

    by: str
    stages: list[str]
    entities: int


class GridRow(msgspec.Struct, frozen=True):
    """An entity, and its state in each stage; null where there is none."""

    entity: str
    cells: list[str | None]


class StateGrid(msgspec.Struct, frozen=True):
    """Entities down, stages across; `next` is the cursor of the next page, or null on the last one."""

    by: str
    groups: list[GridGroup]
    stages: list[str]
    items: list[GridRow]
    total: int
    before: Annotated[int, doc("How many rows come before this page.")]
    next: Annotated[str | None, doc("The cursor of the next page; null on the last one.")]
    looked_at: datetime


class Orphan(msgspec.Struct, frozen=True):
    """A state whose inputs are gone, and what its stage does with it when it is cleaned up."""

    stage: str
    entity: str
    paths: Annotated[list[str], doc("Its files.")]
    bytes: int
    how: Annotated[str, doc("What its stage does with it: keep, archive or delete.")]


class EarlierContents(msgspec.Struct, frozen=True):
    """What a state held before, newest first."""

    items: list[EarlierContent]


class Orphans(msgspec.Struct, frozen=True):
    """States whose inputs are gone; `items` are the first of `total`."""

    items: list[Orphan]
    total: int
    bytes: int
    looked_at: datetime


@operation("GET /pipelines/{name}/grid", role="viewer")
async def get_pipeline_grid(at: Reader, args: GetPipelineGrid, declared: Declarations) -> StateGrid:
    """Whether each state is fresh, stale, failed and so on: entities down, stages across."""
    after = read_row_cursor(args.cursor)
    snapshot, jobs = await read_states(cache_of(at.database, declared.pipelines), args.name)
    by, members = grid.group(snapshot, args.by)
    shown = grid.known_stages(snapshot, by, args.stage)
    rows = grid.Rows(by, args.state, tuple(shown), args.text).validate()
    entities = await asyncio.to_thread(grid.matching, snapshot, rows, jobs)
    order = grid.order_of(members[0])
    page, before = grid.page_of(entities, order, after=after, limit=args.limit, down=args.order == "desc")
    return StateGrid(
        by,
        [
            GridGroup(each, [stage.name for stage in found], len(grid.all_rows(snapshot, each)))
            for each, found in grid.groups(snapshot).items()
        ],
        shown,
        [GridRow(entity, [snapshot.state_of(stage, entity, jobs) for stage in shown]) for entity in page],
        len(entities),
        before,
        write_row_cursor(page[-1]) if page and before + len(page) < len(entities) else None,
        snapshot.looked_at,
    )


@operation("GET /pipelines/{name}/state", role="viewer")
async def get_state(at: Reader, args: GetState, declared: Declarations) -> StateDetails:
    """Explain a state: why it is fresh or not, what it is made from, what is made from it, and each build."""
    cache = cache_of(at.database, declared.pipelines)
    snapshot, jobs = await read_states(cache, args.name)
    return await describe_state(
        at.database,
        snapshot,
        jobs,
        snapshot.stage(args.stage),
        args.entity,
        kept=await is_kept(at.database, args.name),
        pipelines=cache.known.values(),
        follow=args.follow,
    )


@operation("GET /pipelines/{name}/content", role="viewer")
async def get_content(at: Reader, args: GetContent, declared: Declarations) -> Content:
    """The beginning of an input or output of a pipeline, as text or a small picture in JSON."""
    snapshot, _ = await read_states(cache_of(at.database, declared.pipelines), args.name)
    return await preview(snapshot, args.path)


@operation("GET /pipelines/{name}/content/earlier", role="viewer")
async def list_earlier_contents(at: Reader, args: GetContent, declared: Declarations) -> EarlierContents:
    """The contents that a small state had before its last builds, newest first, each with what was changed then."""
    snapshot, _ = await read_states(cache_of(at.database, declared.pipelines), args.name)
    return EarlierContents(await earlier_contents(at.database, snapshot, args.path))


@operation("PUT /pipelines/{name}/input", role="operator")
async def write_pipeline_input(tx: Transaction, args: WriteInput, declared: Declarations) -> InputWritten:
    """Write an input of a pipeline; what is made from it is built at once.

    An operator may write states that are kept in the database; files and objects are for admins.
    """
    pipeline = declared.pipelines.require(args.name)
    if not isinstance(pipeline.store, DatabaseStates) and not tx.may("admin"):
        raise ForbiddenError(f"the states of {pipeline.name} are not in the database: writing them needs admin")
    if any(part in ("", ".", "..") for part in args.path.split("/")):
        raise ArgumentError("path", f"{args.path!r} is not a path inside the pipeline's folder")
    check_input(pipeline, args.path)
    try:
        content = b64decode(args.content, validate=True) if args.encoding == "base64" else args.content.encode()
    except ValueError as error:
        raise ArgumentError("content", f"this is not base64: {error}") from error
    # Imported here, because lists of states do not need it.
    from tidemill.engine.telemetry.tracing import current_trace

    written = FileOrigin(args.path, origin_text(tx.by), current_trace())
    await Inputs(declared.pipelines).write(tx.database, tx.connection, pipeline.name, {written: content})
    await tx.audit("pipeline.write", f"{pipeline.name}/{args.path}", after={"bytes": len(content)})
    return InputWritten(pipeline.name, args.path, len(content))


@operation("GET /pipelines/{name}/orphans", role="viewer")
async def list_orphans(at: Reader, args: ListOrphans, declared: Declarations) -> Orphans:
    """List the states that `clean_pipeline` would clean up, and how much space they take."""
    snapshot, _ = await read_states(cache_of(at.database, declared.pipelines), args.name)
    found = orphans_of(snapshot, args.stage)
    return Orphans(found[: args.limit], len(found), sum(orphan.bytes for orphan in found), snapshot.looked_at)


async def read_states(cache: PipelineCache, name: str, *, fresh: bool = False) -> tuple[PipelineSnapshot, BuildJobs]:
    """A snapshot of a pipeline, and its builds that wait or run."""
    try:
        return await cache.read(name, fresh=fresh)
    except StateStoreError as error:
        raise StoreError(str(error)) from error


def orphans_of(snapshot: PipelineSnapshot, stage: str | None) -> list[Orphan]:
    """The states of a pipeline or of a stage whose inputs are gone."""
    if stage is not None:
        snapshot.stage(stage)
    files, found = snapshot.pipeline_view.world.files, []
    for each, entity in snapshot.plan.orphans:
        if stage in (None, each.name):
            paths = output_paths(snapshot.pipeline_view, each, entity)
            size = sum(files[path].size for path in paths if path in files)
            found.append(Orphan(each.name, entity, paths, size, each.options.on_orphan))
    return found
