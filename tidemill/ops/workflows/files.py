"""Workflow files: what they may be made of, the files of the application's folder, checks, dry runs, and changes.

Editors change them; a file that can run a command (`run_command`) or write to any folder is for admins.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import msgspec

from tidemill.core.codec import storable
from tidemill.core.errors import (
    ConfigError,
    FileProblemsError,
    ForbiddenError,
    NotFoundError,
    TidemillError,
    VersionRequiredError,
)
from tidemill.dags.definition import kinds as dag_kinds
from tidemill.dags.definition.files import parse_dag
from tidemill.dags.view import dry_run as dag_dry_run
from tidemill.declarations import Declarations
from tidemill.engine.jobs.origin import origin_here
from tidemill.ops.jobs.jobs import Enqueued
from tidemill.ops.operator.operation import Arguments, Nothing, doc, operation
from tidemill.ops.workflows.required_role import known_roots
from tidemill.ops.workflows.text import Checked, Form, check, form_of, parse
from tidemill.pipelines.definition.declared import DRAFT
from tidemill.pipelines.workflows.checks import kinds
from tidemill.pipelines.workflows.files import (
    MOST_FILES,
    MOST_TEXT,
    FoundFile,
    WorkflowFiles,
    check_version,
)
from tidemill.pipelines.workflows.load import parse_workflow
from tidemill.pipelines.workflows.read import TriggerWorkflow
from tidemill.pipelines.workflows.trials import dry_run
from tidemill.pipelines.workflows.trials.graph_dry_run import DryRunNode, dry_run_trigger
from tidemill.store.jobs.insert import insert_jobs
from tidemill.store.transaction import Reader, Transaction

READ_WITHIN = 30.0
SHOWN = 4000
AUDITED = 64 * 1024

LISTED_FOR = 30.0  # Seconds: a file that a dag includes may change without a sign here.

_one_dry_run = asyncio.Lock()
_listed_lately: dict[tuple[str, FoundFile], tuple[float, WorkflowFileLine]] = {}

FilePath = Annotated[str, doc("The file, in the folder of workflow files.", min_length=1, max_length=300)]
FileContent = Annotated[str, doc("The whole text of the file.", max_length=MOST_TEXT)]
Version = Annotated[str | None, doc("The version that was read.", extra={"header": "If-Match"})]


class WorkflowFileRef(Arguments, frozen=True, kw_only=True):
    """Which file."""

    path: Annotated[str, doc("The file, in the folder of workflow files.")]


class CheckWorkflow(Arguments, frozen=True, kw_only=True):
    """A text, and the name of the file that it is or will be."""

    path: FilePath
    text: FileContent


class DryRunWorkflow(Arguments, frozen=True, kw_only=True):
    """A text to try: a pipeline for one entity, a trigger's workflow for a payload, a dag for arguments."""

    path: FilePath
    text: FileContent
    entity: Annotated[
        Annotated[str, msgspec.Meta(min_length=1, max_length=500)] | None, doc("The entity to try a pipeline for.")
    ] = None
    payload: Annotated[Any, doc("The event of a trigger, or the arguments of a dag.")] = None


class RunWorkflowDraft(Arguments, frozen=True, kw_only=True):
    """A text to run once, saved or not: a pipeline for one entity, a trigger's workflow for a payload."""

    path: FilePath
    text: FileContent
    entity: Annotated[
        Annotated[str, msgspec.Meta(min_length=1, max_length=500)] | None, doc("The entity to run a pipeline for.")
    ] = None
    payload: Annotated[Any, doc("The event of a trigger.")] = None
    until: Annotated[str | None, doc("Run only what leads to this node, and the node.")] = None


class SaveWorkflowFile(Arguments, frozen=True, kw_only=True):
    """A file to save: over the version that was read, or as a new one."""

    path: Annotated[str, doc("The file, in the folder of workflow files.")]
    text: FileContent
    broken: Annotated[bool, doc("Save it even if it has errors.")] = False
    version: Version = None
    new: Annotated[bool, doc("It must not exist yet.", extra={"header": "If-None-Match"})] = False


class DeleteWorkflowFile(Arguments, frozen=True, kw_only=True):
    """A file to delete."""

    path: Annotated[str, doc("The file, in the folder of workflow files.")]
    version: Version = None


class RenameWorkflowFile(Arguments, frozen=True, kw_only=True):
    """A file, and its new name."""

    path: FilePath
    to: Annotated[str, doc("Its new name, with the same ending.", min_length=1, max_length=300)]
    version: Version = None


class WorkflowKind(msgspec.Struct, frozen=True):
    """A kind of nodes that files of a form may have: the JSON Schema of its fields, and how it is connected.

    In a graph the fields are those of the node's `data`, in a list of stages those of the stage, and in a dag those
    of the node itself; there `mark` is the field that names the kind.
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


class WorkflowKinds(msgspec.Struct, frozen=True):
    """Everything that a workflow file may be made of. `files` are the fields at the top, by the form of the file."""

    kinds: list[WorkflowKind]
    files: dict[str, Any]
    transforms: list[str]
    tasks: list[str]
    queues: list[str]


class WorkflowFileLine(msgspec.Struct, frozen=True):
    """A file of the folder."""

    path: str
    size: int
    changed_at: datetime
    form: str | None
    mode: str | None
    name: str | None
    nodes: int
    errors: int
    trouble: Annotated[str | None, doc("Why it cannot be opened, if it cannot.")]


class WorkflowFileList(msgspec.Struct, frozen=True):
    """The files of the application's folder; `folder` is null where it has none."""

    folder: str | None
    items: list[WorkflowFileLine]


class WorkflowFile(msgspec.Struct, frozen=True):
    """A file. `version` is its ETag: name it to save over this version."""

    path: str
    text: str
    version: Annotated[str, doc("Its ETag: name it to save over this version.")]
    checked: Checked


class WorkflowDryRun(msgspec.Struct, frozen=True):
    """What would happen. Of a pipeline: some of its entities, and each stage for the entity that was asked for."""

    form: str
    mode: str | None
    entity: str | None = None
    entities: list[str] = []
    looked: Annotated[bool, doc("Whether files were read.")] = False
    stages: list[dry_run.StageRun] = []
    nodes: list[DryRunNode] = []
    plan: list[dag_dry_run.Planned] = []
    notes: list[str] = []


class WorkflowSaved(msgspec.Struct, frozen=True):
    """A file as it is stored now."""

    path: str
    version: str
    checked: Checked


@operation("GET /workflow-kinds", role="viewer")
async def list_workflow_kinds(at: Reader, args: Nothing, declared: Declarations) -> WorkflowKinds:
    """List the kinds of nodes that workflow files may have, with their fields; also those that the application adds."""
    found = [
        WorkflowKind(
            "graph", each.type, each.group, each.about, each.schema, list(each.modes), each.is_start, list(each.exits)
        )
        for each in kinds.kinds()
    ]
    stage = {"type": "object", "additionalProperties": True}
    fields = dict(kinds.STAGE)
    described = {name: fields[name] for name in ("pattern", "name", "description")}
    source = {**stage, "properties": described, "required": ["pattern"]}
    made = {**stage, "properties": fields, "required": ["pattern", "input"]}
    found += [
        WorkflowKind("stages", "source", "stages", "States that exist already.", source, ["pipeline"], True, []),
        WorkflowKind("stages", "transform", "stages", "States made from others.", made, ["pipeline"], False, []),
    ]
    found += [
        WorkflowKind("dag", each.type, "nodes", each.about, each.schema, [], False, [], each.mark)
        for each in dag_kinds.kinds()
    ]
    files = {
        "graph": {"type": "object", "properties": kinds.FILE},
        "stages": {"type": "object", "properties": kinds.STAGED},
        "dag": dag_kinds.dag_schema(),
    }
    return WorkflowKinds(found, files, kinds.transforms(), sorted(declared.tasks), sorted(declared.served_queues()))


@operation("GET /workflow-files", role="viewer")
async def list_workflow_files(at: Reader, args: Nothing, declared: Declarations) -> WorkflowFileList:
    """List the files of the folder that `App(workflow_folder=...)` names."""
    folder = _folder(declared)
    if folder.shown is None:
        return WorkflowFileList(None, [])
    return WorkflowFileList(
        folder.shown, await asyncio.to_thread(lambda: [_line(declared, folder, each) for each in folder.list()])
    )


@operation("GET /workflow-files/{path:path}", role="viewer", etag=True)
async def get_workflow_file(at: Reader, args: WorkflowFileRef, declared: Declarations) -> WorkflowFile:
    """The text of a file, its version, and what is wrong with it."""
    folder = _folder(declared)
    held = await asyncio.to_thread(folder.read, args.path)
    checked = await asyncio.to_thread(check, held.text, args.path, declared=declared, root=folder.root)
    return WorkflowFile(args.path, held.text, held.version, checked)


@operation("POST /workflow-files/check", role="viewer")
async def check_workflow(at: Reader, args: CheckWorkflow, declared: Declarations) -> Checked:
    """Everything that is wrong with a text, each with its place and line. Nothing is written."""
    folder = _folder(declared)
    folder.place(args.path)
    return await asyncio.to_thread(check, args.text, args.path, declared=declared, root=folder.root)


@operation("POST /workflow-files/dry-run", role="operator")
async def dry_run_workflow(at: Reader, args: DryRunWorkflow, declared: Declarations) -> WorkflowDryRun:
    """What would be built or run, with all expressions filled in as far as they are known. Nothing is done.

    Without an `entity`, a pipeline returns which entities there are. States are read where the saved file, or a
    declared pipeline, keeps them; anywhere else only for admins.
    """
    folder = _folder(declared)
    folder.place(args.path)
    checked = await asyncio.to_thread(check, args.text, args.path, declared=declared, root=folder.root)
    form = _check_without_errors(checked, "tried")
    if form == "dag":
        return await asyncio.to_thread(_dry_run_dag, declared, folder.root, args)
    parsed, _ = parse(args.text, args.path)
    name = PurePosixPath(args.path).stem
    if checked.mode == "trigger":
        (workflow,) = parse_workflow(parsed, name).triggers
        return await asyncio.to_thread(_dry_run_trigger, workflow, args.payload)
    pipeline, _ = dry_run.read_pipeline(parsed, name)
    may_read = at.may("admin") or await asyncio.to_thread(_is_known_root, declared, folder, args.path, pipeline.root)
    notes = [] if may_read else [f"{pipeline.root} was not read: no saved file keeps its states there"]
    try:
        async with _one_dry_run, asyncio.timeout(READ_WITHIN):
            found = await dry_run.dry_run(parsed, name, args.entity, database=at.database if may_read else None)
    except TimeoutError as error:
        raise TimeoutError(f"reading all states of {pipeline.root} took longer than {READ_WITHIN:g} s") from error
    return WorkflowDryRun(
        form,
        checked.mode,
        found.entity,
        found.entities,
        found.looked,
        [_cut_stage(each) for each in found.stages],
        notes=[*notes, *found.problems],
    )


@operation("POST /workflow-files/run", role="editor", status=202)
async def run_workflow_draft(tx: Transaction, args: RunWorkflowDraft, declared: Declarations) -> Enqueued:
    """Run a text once, saved or not: its nodes do their work, pinned ones give what they are pinned to.

    The states of a pipeline are not written. `GET /jobs/{id}` has what each node got and gave.
    """
    folder = _folder(declared)
    folder.place(args.path)
    checked = await asyncio.to_thread(check, args.text, args.path, declared=declared, root=folder.root)
    if _check_without_errors(checked, "run") == "dag":
        raise ConfigError("a dag has no drafts: start a run of it with its definition (POST /runs)")
    _check_editor(tx, args.path, checked, "run")
    name = checked.name or PurePosixPath(args.path).stem
    task = declared.tasks[f"{DRAFT}/{name}"]
    given = {"text": args.text, "payload": args.payload, "entity": args.entity, "until": args.until}
    job = task.new_job(task.signature.bind((), given), origin=origin_here(tx.by))
    (ref,) = await insert_jobs(tx.database, tx.connection, [job], notify=True)
    await tx.audit("workflow.draft", args.path, after={"job": ref.id})
    return Enqueued(ref.id, ref.created)


@operation("PUT /workflow-files/{path:path}", role="editor", etag=True)
async def save_workflow_file(tx: Transaction, args: SaveWorkflowFile, declared: Declarations) -> WorkflowSaved:
    """Save a file over the version that was read (`If-Match`), or as a new one (`If-None-Match: *`).

    If it has been changed since, this is refused with 412, and nothing is written.
    """
    folder = _folder(declared)
    folder.place(args.path)
    over = None if args.new and args.version is None else _version(args.version, ", or `new` for a new file")
    checked = await asyncio.to_thread(check, args.text, args.path, declared=declared, root=folder.root)
    if checked.errors and not args.broken:
        found = [(each.where or "the file", each.message) for each in checked.errors[:20]]
        raise FileProblemsError(f"{args.path} was not saved: {len(found)} things are wrong with it", found)
    before = await asyncio.to_thread(folder.find, args.path)
    _check_editor(tx, args.path, checked)
    if before is not None:
        await _check_existing(tx, args.path, before.text, declared, folder)
    check_version(args.path, None if before is None else before.text.encode(), over)
    kept = None if before is None else _audited(before.text)
    await tx.audit("workflow.save", args.path, before=kept, after=_audited(args.text))
    version = await asyncio.to_thread(folder.save, args.path, args.text, over)
    return WorkflowSaved(args.path, version, checked)


@operation("DELETE /workflow-files/{path:path}", role="editor")
async def delete_workflow_file(tx: Transaction, args: DeleteWorkflowFile, declared: Declarations) -> None:
    """Delete the version of a file that was read (`If-Match`); the audit trail keeps its text."""
    folder, over = _folder(declared), _version(args.version)
    before = await asyncio.to_thread(folder.read, args.path)
    await _check_existing(tx, args.path, before.text, declared, folder)
    await tx.audit("workflow.delete", args.path, before=_audited(before.text))
    await asyncio.to_thread(folder.delete, args.path, over)


@operation("POST /workflow-files/rename", role="editor", etag=True)
async def rename_workflow_file(tx: Transaction, args: RenameWorkflowFile, declared: Declarations) -> WorkflowSaved:
    """Give the version of a file that was read (`If-Match`) another name, which no file has yet."""
    folder = _folder(declared)
    folder.place(args.to)
    over = _version(args.version)
    held = await asyncio.to_thread(folder.read, args.path)
    checked = await asyncio.to_thread(check, held.text, args.to, declared=declared, root=folder.root)
    _check_editor(tx, args.path, checked)
    await tx.audit("workflow.rename", args.path, before={"path": args.path}, after={"path": args.to})
    await asyncio.to_thread(folder.rename, args.path, args.to, over)
    return WorkflowSaved(args.to, over, checked)


def _folder(declared: Declarations) -> WorkflowFiles:
    """The application's folder of workflow files."""
    return WorkflowFiles(declared.settings.workflow_folder)


def _check_without_errors(checked: Checked, done: str) -> Form:
    """The form of a text; raises if the text has errors: then it cannot be `done`."""
    if checked.errors or checked.form is None:
        problems = "; ".join(
            f"{each.where}: {each.message}" if each.where else each.message for each in checked.errors[:3]
        )
        raise ConfigError(f"a text with errors cannot be {done}: {problems}")
    return checked.form


def _check_editor(tx: Transaction, path: str, checked: Checked, done: str = "changed") -> None:
    """Raise if a file is for admins, and the caller is not one."""
    if checked.admin_reason is not None and not tx.may("admin"):
        raise ForbiddenError(f"{path} was not {done}, your role is editor: {checked.admin_reason}")


async def _check_existing(tx: Transaction, path: str, text: str, declared: Declarations, folder: WorkflowFiles) -> None:
    """Raise if the present content of a file is for admins, and the caller is not one."""
    if not tx.may("admin"):
        _check_editor(tx, path, await asyncio.to_thread(check, text, path, declared=declared, root=folder.root))


def _version(given: str | None, otherwise: str = "") -> str:
    if not given:
        raise VersionRequiredError(f"name the version that you read: `version`, or the header `If-Match`{otherwise}")
    return given


def _audited(text: str) -> dict[str, Any]:
    """A text as the audit trail keeps it."""
    size = len(text.encode())
    return {"bytes": size, "text": text if size <= AUDITED else f"{text[:AUDITED]}\n... cut off"}


def _line(declared: Declarations, folder: WorkflowFiles, file: FoundFile) -> WorkflowFileLine:
    """A file of the list; a file that has not changed is not read again for a while."""
    key, now = (str(folder.root), file), time.monotonic()
    known = _listed_lately.get(key)
    if known is not None and known[0] > now:
        return known[1]
    at = datetime.fromtimestamp(file.changed_at, UTC)
    try:
        found = check(folder.read(file.path).text, file.path, declared=declared, root=folder.root)
        listed = WorkflowFileLine(
            file.path, file.size, at, found.form, found.mode, found.name, found.nodes, len(found.errors), None
        )
    except (ConfigError, NotFoundError) as error:
        listed = WorkflowFileLine(storable(file.path), file.size, at, None, None, None, 0, 0, storable(str(error)))
    if len(_listed_lately) > 2 * MOST_FILES:
        _listed_lately.clear()
    _listed_lately[key] = (now + LISTED_FOR, listed)
    return listed


def _is_known_root(declared: Declarations, folder: WorkflowFiles, path: str, root: Path) -> bool:
    """Whether states are kept there already: a text could name any folder of this machine."""
    known = known_roots(declared)
    with contextlib.suppress(TidemillError):  # The saved file may be broken: then it names no folder.
        parsed, _ = parse(folder.read(path).text, path)
        if form_of(parsed, path) in ("graph", "stages"):
            known.append(dry_run.read_pipeline(parsed, PurePosixPath(path).stem)[0].root)
    return any(root.resolve().is_relative_to(each.resolve()) for each in known)


def _dry_run_dag(declared: Declarations, root: Path, args: DryRunWorkflow) -> WorkflowDryRun:
    refs = declared.hooks.ref_resolver
    dag = parse_dag(args.text, file=str(root / args.path), refs=refs, inside=root)
    given = args.payload if isinstance(args.payload, Mapping) else {}
    return WorkflowDryRun("dag", None, plan=dag_dry_run.dry_run(dag, given, refs))


def _dry_run_trigger(workflow: TriggerWorkflow, payload: Any) -> WorkflowDryRun:
    return WorkflowDryRun("graph", "trigger", nodes=[_cut(each) for each in dry_run_trigger(workflow.graph, payload)])


def _cut_stage(run: dry_run.StageRun) -> dry_run.StageRun:
    content = None if run.content is None else _short(run.content)
    return msgspec.structs.replace(run, nodes=[_cut(each) for each in run.nodes], content=content)


def _cut(node: DryRunNode) -> DryRunNode:
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
        return "a value that is too large to show"
