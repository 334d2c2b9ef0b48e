"""Nodes that work on this machine: `run_command` and `append_to_file`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tidemill.core.errors import ConfigError
from tidemill.engine.containment.external_command import run_external_command
from tidemill.pipelines.workflows.expressions.javascript import current_names, evaluate, fill, shown
from tidemill.pipelines.workflows.expressions.names import excerpt
from tidemill.pipelines.workflows.expressions.safe_templates import (
    check_option,
    filled_path,
    shell_template,
    takes_no_options,
)
from tidemill.pipelines.workflows.nodes import node_type, number_of

PATIENCE = 300.0


@node_type("append_to_file", role="admin", raw=("filepath", "path", "file"))
def append_to_file(data: dict[str, Any], item: dict[str, Any]) -> Any:
    """Adds a line to a file."""
    named = str(data.get("filepath") or data.get("path") or data["file"])
    path = Path(filled_path(named, lambda each: shown(evaluate(each, item))))
    line = shown(data.get("content", ""))
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as opened:
        opened.write(line if line.endswith("\n") else f"{line}\n")
    return {"written": True, "filepath": str(path)}


@node_type("run_command", role="admin", raw=("command", "args", "workingDirectory"))
async def run_command(data: dict[str, Any], item: dict[str, Any]) -> Any:
    """Runs a program: a list as it is, a text by the shell; each {{…}} is one word."""
    words = _words(data, _with_places(item))
    if any("\0" in word for word in words):
        raise ConfigError("a value for the command holds a NUL character, which no argument can hold")
    folder = data.get("workingDirectory")
    where = None if not folder else filled_path(str(folder), lambda each: shown(evaluate(each, item)))
    patience = number_of(data, "timeout", PATIENCE)
    given = shown(data.get("stdin", "")).encode()
    try:
        ended = await run_external_command(words, given, timeout=patience, cwd=where)
    except TimeoutError as error:
        raise ConfigError(f"the command ran longer than its timeout of {patience:g} s, and was ended") from error
    except OSError as error:
        raise ConfigError(f"the command cannot be run: {error}") from error
    made = {
        "stdout": ended.output.decode(errors="replace"),
        "stderr": ended.errors.decode(errors="replace"),
        "returnCode": ended.status,
    }
    if ended.status != 0 and not data.get("mayFail"):
        said = excerpt(made["stderr"], 500) or excerpt(made["stdout"], 500)
        raise ConfigError(f"the command ended with {ended.status}{said and f': {said}'}")
    return made


def _words(data: Mapping[str, Any], item: Mapping[str, Any]) -> list[str]:
    command, args = data["command"], data.get("args")
    if isinstance(command, list) or args is not None:
        written = [*(command if isinstance(command, list) else [str(command)]), *(args or [])]
        words = [shown(fill(word, item)) for word in written]
        for at, word in enumerate(words):
            if at and not str(written[at]).startswith("-") and not takes_no_options(words[:at]):
                check_option(word)
        return words
    template = shell_template(str(command))
    values = [shown(evaluate(each, item)) for each in template.expressions]
    for at in template.words:
        check_option(values[at])
    return ["/bin/sh", "-c", template.text, "sh", *values]


def _with_places(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """An item whose states have the paths of their files on this machine."""
    root = current_names().get("state_root")
    if root is None:
        return item
    return {
        name: {**value, "path": str(Path(root) / value["path"])}
        if isinstance(value, Mapping) and "content" in value and value.get("path")
        else value
        for name, value in item.items()
    }
