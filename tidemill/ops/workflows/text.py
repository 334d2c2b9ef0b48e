"""The text of a workflow file: which form it has, and everything that is wrong with it, line by line.

A file is a graph of nodes or a list of stages (see `tidemill.pipelines.workflows`), or a dag (`tidemill.dags`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path as FilePath, PurePosixPath
from typing import Any, Literal

import msgspec

from tidemill.core.did_you_mean import did_you_mean
from tidemill.core.encoding.located_json import Lines, line_of
from tidemill.core.errors import TidemillError
from tidemill.core.expressions.paths import Path, format_path
from tidemill.dags.definition.files import problems_in_text
from tidemill.dags.definition.parse import read_json, read_yaml
from tidemill.dags.errors import DagError
from tidemill.declarations import Declarations
from tidemill.ops.workflows.required_role import admin_reason
from tidemill.pipelines.workflows.checks.check import find_problems
from tidemill.pipelines.workflows.read import form_of as workflow_form, has_states

Form = Literal["graph", "stages", "dag"]
MOST_PROBLEMS = 200


class TextProblem(msgspec.Struct, frozen=True):
    """Something that is wrong, and where: a node of the picture, a field of it, a line of the text."""

    message: str
    severity: Literal["error", "warning"]
    place: list[str | int]
    where: str
    node: int | None
    """Which of the nodes or stages it is at, counted from 0; None if it is about the file."""
    line: int | None
    is_unknown: bool = False
    """Whether it is about something that is not understood, which `--allow-unknown` turns into a warning."""


class Checked(msgspec.Struct, frozen=True):
    """What a text is, and what is wrong with it."""

    form: Form | None
    mode: str | None
    name: str | None
    nodes: int
    problems: list[TextProblem]
    admin_reason: str | None = None
    """Why only an admin may save it; null if an editor may."""

    @property
    def errors(self) -> list[TextProblem]:
        return [each for each in self.problems if each.severity == "error"]


def is_refused(problem: TextProblem, allow_unknown: bool) -> bool:
    """Whether a file cannot be used because of a problem."""
    return problem.severity == "error" and not (problem.is_unknown and allow_unknown)


def parse(text: str, file: str) -> tuple[Any, Lines]:
    """A text as data, with the lines of its parts; a `DagError` says why it is not JSON or YAML."""
    return (read_json if file.endswith(".json") else read_yaml)(text.removeprefix("\ufeff"), file)


def form_of(data: Any, file: str) -> Form | None:
    """Which form a file has; only dags are written in YAML too."""
    if not isinstance(data, Mapping):
        return None
    if not file.endswith(".json"):
        return "dag"
    return workflow_form(data) or "dag"


def check(text: str, file: str, *, declared: Declarations, root: FilePath) -> Checked:
    """Everything that is wrong with a text that is to be the file of this name."""
    try:
        data, lines = parse(text, file)
    except DagError as error:
        return Checked(None, None, None, 0, [_problem(error.problem, (), error.line, is_error=True)])
    form = form_of(data, file)
    if form is None:
        message = "a workflow file is an object with nodes, or with stages"
        return Checked(None, None, None, 0, [_problem(message, (), 1, is_error=True)])
    if form == "dag":
        problems = list(_dag_problems(text, file, data, lines, declared, root))
    else:
        problems = [
            msgspec.structs.replace(
                _problem(each.problem, each.place, line_of(each.place, lines), is_error=not each.is_note),
                is_unknown=each.severity == "unknown",
            )
            for each in find_problems(data, PurePosixPath(file).stem)
        ]
    listed = data.get("stages" if form == "stages" else "nodes")
    return Checked(
        form,
        _mode(data, form),
        data["name"] if isinstance(data.get("name"), str) else None,
        len(listed) if isinstance(listed, list) else 0,
        sorted(problems, key=lambda each: (each.severity, each.line or 0))[:MOST_PROBLEMS],
        admin_reason(data, is_pipeline=_mode(data, form) == "pipeline", declared=declared),
    )


def _mode(data: Mapping[str, Any], form: Form) -> str | None:
    if form == "dag":
        return None
    named = data.get("mode")
    return named if isinstance(named, str) else "pipeline" if form == "stages" or _is_pipeline(data) else "trigger"


def _is_pipeline(data: Mapping[str, Any]) -> bool:
    return isinstance(data.get("nodes"), list) and has_states(data)


def _dag_problems(
    text: str, file: str, data: Mapping[str, Any], lines: Lines, declared: Declarations, root: FilePath
) -> Iterator[TextProblem]:
    place = root / file
    try:
        found = problems_in_text(text, place, inside=root, refs=declared.hooks.ref_resolver)
    except TidemillError as error:
        yield _problem(str(error), (), None, is_error=True)
        return
    for error in found:
        if error.file in (None, str(place)):
            yield _problem(error.problem, error.place, error.line, is_error=True)
        else:
            inner = PurePosixPath(str(error.file)).name
            where = f"{inner}, line {error.line}" if error.line else inner
            at = _node_with(data, inner)
            yield _problem(f"{where}: {error.problem}", at, line_of(at, lines), is_error=True)
    nodes = data.get("nodes")
    for at, node in enumerate(nodes if isinstance(nodes, list) else []):
        task = node.get("task") if isinstance(node, Mapping) else None
        if isinstance(task, str) and task and declared.tasks.get(task) is None:
            spot: Path = ("nodes", at, "task")
            message = f"application {declared.name} has no task {task!r}{did_you_mean(task, declared.tasks)}"
            yield _problem(message, spot, line_of(spot, lines), is_error=False)


def _node_with(data: Mapping[str, Any], file: str) -> Path:
    """The node whose dag is in a file of this name."""
    nodes = data.get("nodes")
    for at, node in enumerate(nodes if isinstance(nodes, list) else []):
        inner = node.get("dag") if isinstance(node, Mapping) else None
        if isinstance(inner, str) and PurePosixPath(inner).name == file:
            return ("nodes", at, "dag")
    return ()


def _problem(message: str, place: Path, line: int | None, *, is_error: bool) -> TextProblem:
    node = place[1] if len(place) > 1 and place[0] in ("nodes", "stages") and isinstance(place[1], int) else None
    where = format_path(place) if place else ""
    return TextProblem(message, "error" if is_error else "warning", list(place), where, node, line)
