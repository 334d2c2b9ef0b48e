"""`tidemill workflow`: check workflow files as the editor does."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from tidemill.cli.arguments import Json
from tidemill.cli.pipelines.open import AllowUnknown
from tidemill.cli.render import out, print_json
from tidemill.core.errors import ConfigError
from tidemill.declarations import Declarations
from tidemill.engine.application.hooks import Hooks
from tidemill.ops.workflows.text import TextProblem, check as check_text, is_refused
from tidemill.pipelines.workflows.files import WorkflowFiles

commands = App(name="workflow", help="Workflow files: check them as the editor does.")


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


def _problems(folder: Path, file: str) -> list[TextProblem]:
    declared = Declarations("check", hooks=Hooks(), models=(), settings={}, declared_in={})
    try:
        text = (folder / file).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        return [TextProblem(f"it cannot be read: {error}", "error", [], "", None, None)]
    return check_text(text, file, declared=declared, root=folder).problems
