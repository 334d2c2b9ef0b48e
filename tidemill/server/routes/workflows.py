"""Workflow files: what an editor offers, the files of the application's folder, checks, dry runs, and changes.

Whoever may save a file may have programs run by it (`run_command`): that is for admins.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, delete, get, post, put
from litestar.params import FromPath, HeaderParameter, JSONBody

from tidemill.core.errors import ConfigError, TidemillError
from tidemill.dags.definition import kinds as dagkinds
from tidemill.dags.definition.files import parse_dag
from tidemill.dags.view import dry_run as dagrun
from tidemill.pipelines.workflows import dry_run, kinds
from tidemill.pipelines.workflows.load import TriggerWorkflow, parse_workflow
from tidemill.pipelines.workflows.rehearsal import Rehearsed, rehearse_trigger
from tidemill.server.middleware.authentication import Caller
from tidemill.server.problems import Problem, Refused
from tidemill.server.resources.workflow_files import (
    MOST_FILES,
    MOST_TEXT,
    FoundFile,
    HeldFile,
    WorkflowFiles,
    check_version,
)
from tidemill.server.resources.workflow_text import Checked, check, form_of, parse
from tidemill.server.server_state import ServerState, TheServerState, caller_of
from tidemill.store.audit import write_audit

IfMatch = Annotated[str | None, HeaderParameter(name="If-Match", description="The version that was read.")]

LOOK_WITHIN = 30.0
SHOWN = 4000
AUDITED = 64 * 1024

LISTED_FOR = 30.0  # seconds; a file of a dag within it may change and say nothing here

_one_dry_run = asyncio.Lock()
_listed_lately: dict[tuple[str, FoundFile], tuple[float, Listed]] = {}


class Kind(msgspec.Struct, frozen=True):
    """A kind of nodes that files of a form may have: the JSON Schema of its fields, and what of it is connected.

    In a graph the fields are those of the node's `data`, in a list of stages those of the stage, and in a dag those
    of the node itself; there `mark` is the field that tells the kind.
    """

    form: str
    type: str
    group: str
    about: str
    schema: Any
    modes: list[str]
    is_start: bool
    exits: list[str]
    mark: str | None = None


class Kinds(msgspec.Struct, frozen=True):
    """Everything that a workflow file may be made of. `files` are the fields at the top, by the form of the file."""

    kinds: list[Kind]
    files: dict[str, Any]
    transforms: list[str]
    tasks: list[str]
    queues: list[str]


class Listed(msgspec.Struct, frozen=True):
    """A file of the folder."""

    path: str
    size: int
    changed_at: datetime
    form: str | None
    mode: str | None
    name: str | None
    nodes: int
    errors: int
    trouble: str | None
    """Why it cannot be opened, if it cannot."""


class Files(msgspec.Struct, frozen=True):
    """The files of the application's folder; `folder` is null where it has none."""

    folder: str | None
    items: list[Listed]


class File(msgspec.Struct, frozen=True):
    """A file as it is now. `version` is its ETag: say it in `If-Match` to save over it."""

    path: str
    text: str
    version: str
    checked: Checked


class Text(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A text that is, or is to be, the file of this name."""

    path: Annotated[str, msgspec.Meta(min_length=1, max_length=300)]
    text: Annotated[str, msgspec.Meta(max_length=MOST_TEXT)]


class Trial(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A text to go through: a pipeline for one `entity`, a trigger's workflow for a `payload`, a dag for `args`."""

    path: Annotated[str, msgspec.Meta(min_length=1, max_length=300)]
    text: Annotated[str, msgspec.Meta(max_length=MOST_TEXT)]
    entity: Annotated[str, msgspec.Meta(min_length=1, max_length=500)] | None = None
    payload: Any = None


class Tried(msgspec.Struct, frozen=True):
    """What would happen. Of a pipeline: some of its entities, and each stage for the one that was asked for."""

    form: str
    mode: str | None
    entity: str | None = None
    entities: list[str] = []
    looked: bool = False
    """Whether files were looked at."""
    stages: list[dry_run.StageRun] = []
    nodes: list[Rehearsed] = []
    plan: list[dagrun.Planned] = []
    notes: list[str] = []


class Saving(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole text of the file; one with errors is saved only if `broken` says so."""

    text: Annotated[str, msgspec.Meta(max_length=MOST_TEXT)]
    broken: bool = False


class Renaming(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file, and the name that it is to have: it may be in another folder, and keeps its ending."""

    path: Annotated[str, msgspec.Meta(min_length=1, max_length=300)]
    to: Annotated[str, msgspec.Meta(min_length=1, max_length=300)]


class Saved(msgspec.Struct, frozen=True):
    path: str
    version: str
    checked: Checked


@get("/workflow-kinds", opt={"scope": "read"}, summary="What workflow files may be made of")
async def get_kinds(server_state: TheServerState) -> Kinds:
    """The kinds of nodes with their fields, from the code that reads them; with what the application adds."""
    app = server_state.app
    found = [
        Kind("graph", each.type, each.group, each.about, each.schema, list(each.modes), each.is_start, list(each.exits))
        for each in kinds.kinds()
    ]
    stage = {"type": "object", "additionalProperties": True}
    fields = dict(kinds.STAGE)
    source = {**stage, "properties": {"pattern": fields["pattern"]}, "required": ["pattern"]}
    made = {**stage, "properties": fields, "required": ["pattern", "input"]}
    found.append(Kind("stages", "source", "stages", "States that are there already.", source, ["pipeline"], True, []))
    found.append(Kind("stages", "transform", "stages", "States made from others.", made, ["pipeline"], False, []))
    found += [
        Kind("dag", each.type, "nodes", each.about, each.schema, [], False, [], each.mark) for each in dagkinds.kinds()
    ]
    files = {
        "graph": {"type": "object", "properties": kinds.FILE},
        "stages": {"type": "object", "properties": kinds.STAGED},
        "dag": dagkinds.dag_schema(),
    }
    return Kinds(
        found, files, kinds.transforms(), sorted(app.declarations.tasks), sorted(app.declarations.served_queues())
    )


@get("/workflow-files", opt={"scope": "read"}, summary="List workflow files")
async def get_files(server_state: TheServerState) -> Files:
    """The files of the folder that `App(workflow_folder=...)` names."""
    folder = folder_of(server_state)
    if folder.shown is None:
        return Files(None, [])
    return Files(folder.shown, await asyncio.to_thread(_list, server_state, folder))


@get("/workflow-files/{path:path}", opt={"scope": "read"}, summary="A workflow file")
async def get_file(server_state: TheServerState, path: FromPath[str]) -> Response[File]:
    """The text of a file, its version, and what is wrong with it."""
    name, folder = _name(path), folder_of(server_state)
    held = await asyncio.to_thread(folder.read, name)
    checked = await asyncio.to_thread(check, held.text, name, app=server_state.app, root=folder.root)
    return Response(File(name, held.text, held.version, checked), headers={"ETag": f'"{held.version}"'})


@post("/workflow-files/check", opt={"scope": "read"}, status_code=200, summary="Check a workflow text")
async def check_text(server_state: TheServerState, data: JSONBody[Text]) -> Checked:
    """Everything that is wrong with a text, each with its place and line. Nothing is written."""
    folder = folder_of(server_state)
    folder.place(data.path)
    return await asyncio.to_thread(check, data.text, data.path, app=server_state.app, root=folder.root)


@post("/workflow-files/dry-run", opt={"scope": "operate"}, status_code=200, summary="Go through a workflow text")
async def try_text(server_state: TheServerState, request: Request[Any, Any, Any], data: JSONBody[Trial]) -> Tried:
    """What would be built or run, with all expressions filled in as far as they are known. Nothing is done.

    Without an `entity`, a pipeline tells which entities there are. States are read where the saved file, or a
    declared pipeline, keeps them; anywhere else only for admins.
    """
    folder = folder_of(server_state)
    folder.place(data.path)
    checked = await asyncio.to_thread(check, data.text, data.path, app=server_state.app, root=folder.root)
    if checked.errors or checked.form is None:
        told = "; ".join(f"{each.where}: {each.message}" if each.where else each.message for each in checked.errors[:3])
        raise ConfigError(f"this cannot be tried before it is right: {told}")
    if checked.form == "dag":
        return await asyncio.to_thread(_try_dag, server_state, folder.root, data)
    parsed, _ = parse(data.text, data.path)
    name = PurePosixPath(data.path).stem
    if checked.mode == "trigger":
        (workflow,) = parse_workflow(parsed, name).triggers
        return await asyncio.to_thread(_try_trigger, workflow, data.payload)
    pipeline, _ = dry_run.read_pipeline(parsed, name)
    looks = await asyncio.to_thread(_may_look, server_state, caller_of(request), folder, data.path, pipeline.root)
    notes = [] if looks else [f"{pipeline.root} was not looked at: no saved file keeps its states there"]
    try:
        async with _one_dry_run, asyncio.timeout(LOOK_WITHIN):
            found = await dry_run.dry_run(parsed, name, data.entity, database=server_state.database if looks else None)
    except TimeoutError as error:
        raise Refused(504, f"looking at all states of {pipeline.root} took longer than {LOOK_WITHIN:g} s") from error
    return Tried(
        checked.form,
        checked.mode,
        found.entity,
        found.entities,
        found.looked,
        [_cut_stage(each) for each in found.stages],
        notes=[*notes, *found.problems],
    )


@put("/workflow-files/{path:path}", opt={"scope": "admin"}, status_code=200, summary="Save a workflow file")
async def save_file(
    server_state: TheServerState,
    request: Request[Any, Any, Any],
    path: FromPath[str],
    data: JSONBody[Saving],
    over: IfMatch = None,
    new: Annotated[str | None, HeaderParameter(name="If-None-Match", description="`*` for a new file.")] = None,
) -> Response[Saved | Problem]:
    """Save a file over the version that was read (`If-Match`), or as a new one (`If-None-Match: *`).

    If somebody has changed it since, this is refused with 412, and nothing is written.
    """
    name, folder, caller = _name(path), folder_of(server_state), caller_of(request)
    folder.place(name)
    base = _base(over, new)
    checked = await asyncio.to_thread(check, data.text, name, app=server_state.app, root=folder.root)
    if checked.errors and not data.broken:
        told = [{"field": each.where or "the file", "message": each.message} for each in checked.errors[:20]]
        wrong = Problem(
            "Unprocessable Entity", 422, f"{name} was not saved: {len(told)} things are wrong with it", errors=told
        )
        return Response(wrong, status_code=422, media_type="application/problem+json")
    before = await asyncio.to_thread(folder.find, name)
    check_version(name, None if before is None else before.text.encode(), base)
    kept = None if before is None else _kept(before)
    async with _noting(server_state, caller, "workflow.save", name, kept, _kept(HeldFile(data.text, ""))):
        version = await asyncio.to_thread(folder.save, name, data.text, base)
    return Response(Saved(name, version, checked), headers={"ETag": f'"{version}"'})


@delete("/workflow-files/{path:path}", opt={"scope": "admin"}, status_code=204, summary="Delete a workflow file")
async def delete_file(
    server_state: TheServerState, request: Request[Any, Any, Any], path: FromPath[str], over: IfMatch = None
) -> None:
    """Delete the version of a file that was read (`If-Match`); the audit trail keeps its text."""
    name, folder, caller = _name(path), folder_of(server_state), caller_of(request)
    base, before = _version(over), await asyncio.to_thread(folder.read, name)
    async with _noting(server_state, caller, "workflow.delete", name, _kept(before)):
        await asyncio.to_thread(folder.delete, name, base)


@post("/workflow-files/rename", opt={"scope": "admin"}, status_code=200, summary="Rename a workflow file")
async def rename_file(
    server_state: TheServerState, request: Request[Any, Any, Any], data: JSONBody[Renaming], over: IfMatch = None
) -> Response[Saved]:
    """Give the version of a file that was read (`If-Match`) another name. No file is ever replaced by it."""
    folder, caller = folder_of(server_state), caller_of(request)
    folder.place(data.to)
    base, held = _version(over), await asyncio.to_thread(folder.read, data.path)
    checked = await asyncio.to_thread(check, held.text, data.to, app=server_state.app, root=folder.root)
    async with _noting(server_state, caller, "workflow.rename", data.path, {"path": data.path}, {"path": data.to}):
        await asyncio.to_thread(folder.rename, data.path, data.to, base)
    return Response(Saved(data.to, base, checked), headers={"ETag": f'"{base}"'})


routes = [get_kinds, get_files, get_file, check_text, try_text, save_file, delete_file, rename_file]


def folder_of(server_state: ServerState) -> WorkflowFiles:
    """The application's folder of workflow files."""
    return WorkflowFiles(server_state.app.settings.workflow_folder)


def _name(path: str) -> str:
    return str(path).removeprefix("/")


def _list(server_state: ServerState, folder: WorkflowFiles) -> list[Listed]:
    return [_listed(server_state, folder, each) for each in folder.list()]


def _listed(server_state: ServerState, folder: WorkflowFiles, file: FoundFile) -> Listed:
    """A file of the list; one that has not changed since a moment ago is not looked into again."""
    key, now = (str(folder.root), file), time.monotonic()
    known = _listed_lately.get(key)
    if known is not None and known[0] > now:
        return known[1]
    at = datetime.fromtimestamp(file.changed_at, UTC)
    try:
        found = check(folder.read(file.path).text, file.path, app=server_state.app, root=folder.root)
        listed = Listed(
            file.path, file.size, at, found.form, found.mode, found.name, found.nodes, len(found.errors), None
        )
    except ConfigError as error:
        listed = Listed(file.path, file.size, at, None, None, None, 0, 0, str(error))
    if len(_listed_lately) > 2 * MOST_FILES:
        _listed_lately.clear()
    _listed_lately[key] = (now + LISTED_FOR, listed)
    return listed


def _base(over: str | None, new: str | None) -> str | None:
    """The version to save over; None for a new file."""
    if over is None and (new or "").strip() == "*":
        return None
    return _version(over, ", or `If-None-Match: *` for a new file")


def _version(over: str | None, otherwise: str = "") -> str:
    version = (over or "").strip().removeprefix("W/").strip('"')
    if not version:
        raise Refused(428, f"say which version you mean: `If-Match` with the one that you read{otherwise}")
    return version


@contextlib.asynccontextmanager
async def _noting(
    server_state: ServerState, caller: Caller, action: str, target: str, before: object, after: object = None
) -> AsyncIterator[None]:
    """The entry is in the trail if and only if what is done meanwhile is done: a refusal takes it back."""
    async with server_state.database.transaction(patience=30.0) as connection:
        await write_audit(
            server_state.database, connection, who=caller.name, action=action, target=target, before=before, after=after
        )
        yield


def _kept(held: HeldFile) -> dict[str, Any]:
    """A text as the trail has it."""
    size = len(held.text.encode())
    return {"bytes": size, "text": held.text if size <= AUDITED else f"{held.text[:AUDITED]}\n... cut off"}


def _may_look(server_state: ServerState, caller: Caller, folder: WorkflowFiles, path: str, root: Path) -> bool:
    """Whether a caller may have states read there: a text could name any folder of this machine."""
    if caller.may("admin"):
        return True
    known = [pipeline.root for pipeline in server_state.app.pipelines.known.values()]
    with contextlib.suppress(TidemillError):  # What is saved may be broken: then it names no folder.
        parsed, _ = parse(folder.read(path).text, path)
        if form_of(parsed, path) in ("graph", "stages"):
            known.append(dry_run.read_pipeline(parsed, PurePosixPath(path).stem)[0].root)
    return any(root.resolve().is_relative_to(each.resolve()) for each in known)


def _try_dag(server_state: ServerState, root: Path, data: Trial) -> Tried:
    dag = parse_dag(
        data.text, file=str(root / data.path), refs=server_state.app.declarations.hooks.ref_resolver, inside=root
    )
    args = data.payload if isinstance(data.payload, Mapping) else {}
    return Tried("dag", None, plan=dagrun.dry_run(dag, args, server_state.app.declarations.hooks.ref_resolver))


def _try_trigger(workflow: TriggerWorkflow, payload: Any) -> Tried:
    return Tried("graph", "trigger", nodes=[_cut(each) for each in rehearse_trigger(workflow.graph, payload)])


def _cut_stage(run: dry_run.StageRun) -> dry_run.StageRun:
    content = None if run.content is None else _short(run.content)
    return msgspec.structs.replace(run, nodes=[_cut(each) for each in run.nodes], content=content)


def _cut(node: Rehearsed) -> Rehearsed:
    fields = [msgspec.structs.replace(each, value=_short(each.value)) for each in node.fields]
    return msgspec.structs.replace(node, fields=fields, output=_short(node.output))


def _short(value: Any) -> Any:
    """A value that can be shown: long texts are cut off."""
    if isinstance(value, str):
        return value if len(value) <= SHOWN else f"{value[:SHOWN]} ... and {len(value) - SHOWN:,} characters more"
    try:
        text = msgspec.json.encode(value).decode()
    except (TypeError, ValueError, OverflowError, RecursionError):
        return _in_words(value)
    return value if len(text) <= SHOWN else _short(text)


def _in_words(value: Any) -> str:
    try:
        return repr(value)[:SHOWN]
    except (ValueError, RecursionError):  # Python writes no number of more than some thousand digits.
        return "a value that is too large to be shown"
