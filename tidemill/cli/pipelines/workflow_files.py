"""`tidemill workflow`: check workflow files as the editor does, and switch workflows off and on."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from rich.table import Table
from rich.text import Text

from tidemill.cli.arguments import Json
from tidemill.cli.connection_options import ANYWHERE, ServerOptions
from tidemill.cli.pipelines.open import AllowUnknown, AppOption, PipelineWork
from tidemill.cli.render import out, print_json, show, table
from tidemill.core.errors import ConfigError
from tidemill.declarations import Declarations
from tidemill.engine.application.hooks import Hooks
from tidemill.ops.operator.operation import Nothing
from tidemill.ops.pipelines.triggers import (
    TriggerLine,
    WorkflowName,
    disable_workflow,
    enable_workflow,
    list_triggers,
)
from tidemill.ops.workflows.text import TextProblem, check as check_text, is_refused
from tidemill.pipelines.workflows.files import WorkflowFiles

commands = App(
    name="workflow", help="Workflow files: check them as the editor does; list, disable and enable workflows."
)

Name = Annotated[str, Parameter(help="The workflow.")]


@commands.command
def check(
    path: Annotated[Path, Parameter(help="A workflow file, or a folder of them.")],
    /,
    *,
    allow_unknown: AllowUnknown = False,
    json: Json = False,
) -> int:
    """Show everything that is wrong with workflow files, line by line; the status is 1 if one cannot be used."""
    if not path.exists():
        raise ConfigError(f"there is no workflow file or folder {path}")
    folder = path if path.is_dir() else path.parent
    files = [each.path for each in WorkflowFiles(str(folder)).list()] if path.is_dir() else [path.name]
    found = {file: _problems(folder, file) for file in files}
    refused = {file for file, problems in found.items() if any(is_refused(each, allow_unknown) for each in problems)}
    if json:
        print_json([{"file": file, "usable": file not in refused, "problems": found[file]} for file in files])
        return 1 if refused else 0
    for file, problems in found.items():
        for each in problems:
            where = f"{folder / file}:{each.line or 1}"
            word = "error" if is_refused(each, allow_unknown) else "warning"
            place = f"{each.where}: " if each.where else ""
            out().print(f"{where}: {word}: {place}{each.message}", markup=False, highlight=False, soft_wrap=True)
    out().print(f"{len(files):,} {'file' if len(files) == 1 else 'files'}, {len(refused):,} of them cannot be used")
    return 1 if refused else 0


@commands.command(name="list")
def list_workflows(*, app: AppOption = None, json: Json = False, connection: ServerOptions = ANYWHERE) -> None:
    """List the workflows that events and schedules start, and those that are disabled."""
    rows = _work(app, connection).run(lambda at: at.do(list_triggers, Nothing())).items
    show(rows, _workflows_table, json=json, none='no workflows: a file with "mode": "trigger" is one')


@commands.command
def disable(name: Name, /, *, app: AppOption = None, connection: ServerOptions = ANYWHERE) -> None:
    """Let a workflow start nothing: its webhook refuses events, its schedules and its state triggers do not fire."""
    _work(app, connection).run(lambda at: at.do(disable_workflow, WorkflowName(name=name)))
    out().print(f"workflow {name} is disabled", markup=False)


@commands.command
def enable(name: Name, /, *, app: AppOption = None, connection: ServerOptions = ANYWHERE) -> None:
    """Let a disabled workflow start again: its schedules fire from now on, but for those that are paused."""
    _work(app, connection).run(lambda at: at.do(enable_workflow, WorkflowName(name=name)))
    out().print(f"workflow {name} is enabled", markup=False)


def _work(app: str | None, connection: ServerOptions) -> PipelineWork | ServerOptions:
    return connection if app is None else PipelineWork(app, None, connection, needs_pipelines=False)


def _workflows_table(rows: Sequence[TriggerLine], _: datetime) -> Table:
    made = table("workflow", "starts by", "schedules", "", wide="starts by")
    for each in rows:
        word = "enabled" if each.disabled_by is None else f"disabled by {each.disabled_by}"
        starts = each.webhook or f"/api/v1/triggers/{each.name}"
        made.add_row(
            each.name, starts, ", ".join(each.schedules), Text(word, style="red" if each.disabled_by else "green")
        )
    return made


def _problems(folder: Path, file: str) -> list[TextProblem]:
    declared = Declarations("check", hooks=Hooks(), models=(), settings={}, declared_in={})
    try:
        text = (folder / file).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        return [TextProblem(f"it cannot be read: {error}", "error", [], "", None, None)]
    return check_text(text, file, declared=declared, root=folder).problems
