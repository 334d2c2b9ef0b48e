"""Loads workflow files: the three JSON forms of pipelines, and workflows that run once.

    load_workflow("auto-blog.json").pipelines      pipelines, to be passed to `app.pipeline(...)`
    load_workflow("nightly.json").triggers         workflows that an event or a schedule runs once

A field, connector or kind of node that is not understood is an error that names the file and the line; with
`allow_unknown=True` it is one of the `notes`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tidemill.core.encoding.located_json import JsonTextError, Lines, line_of, read_json
from tidemill.core.errors import ConfigError
from tidemill.pipelines.workflows.checks.check import examine
from tidemill.pipelines.workflows.checks.problem import WorkflowProblem
from tidemill.pipelines.workflows.read import Loaded, merge_loaded

MOST_PROBLEMS = 10


def load_workflow(path: str | Path, *, allow_unknown: bool = False) -> Loaded:
    """The pipelines and workflows in a file, or in all files of a folder."""
    path = Path(path)
    if path.is_dir():
        every = [
            load_workflow(file, allow_unknown=allow_unknown) for file in sorted(path.glob("*.json")) if file.is_file()
        ]
        return merge_loaded(every)
    return load_data(*read_file(path), path, allow_unknown=allow_unknown)


def read_file(path: Path) -> tuple[Any, Lines]:
    """The decoded JSON of a workflow file, with its lines."""
    try:
        return read_json(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the workflow file {path} cannot be read: {error}") from error
    except JsonTextError as error:
        where = str(path) if error.line is None else f"{path}, line {error.line}"
        raise ConfigError(f"{where}: {error.problem}") from error


def load_data(data: Any, lines: Lines, path: Path, *, allow_unknown: bool = False) -> Loaded:
    """The declarations of a decoded document; errors name the file and the line."""
    return _loaded(data, path.stem, lines, str(path), allow_unknown=allow_unknown)


def parse_workflow(data: Any, name: str, *, allow_unknown: bool = False) -> Loaded:
    """The same from a document that no file holds; `name` is the default name."""
    return _loaded(data, name, {}, None, allow_unknown=allow_unknown)


def _loaded(data: Any, name: str, lines: Lines, file: str | None, *, allow_unknown: bool) -> Loaded:
    found = examine(data, name, allow_unknown=allow_unknown)
    errors = [_located(each, lines, file) for each in found.problems if each.is_error(allow_unknown=allow_unknown)]
    if errors or found.loaded is None:
        more = [f"and {len(errors) - MOST_PROBLEMS} more"] if len(errors) > MOST_PROBLEMS else []
        raise ConfigError("\n".join([*errors[:MOST_PROBLEMS], *more]))
    notes = [_located(each, lines, file) for each in found.problems]
    return msgspec.structs.replace(found.loaded, notes=notes)


def _located(problem: WorkflowProblem, lines: Lines, file: str | None) -> str:
    line = line_of(problem.place, lines) if lines else None
    where = file if line is None else f"{file}, line {line}"
    return str(problem) if where is None else f"{where}: {problem}"
