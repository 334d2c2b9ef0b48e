"""Paths into plain data, as used by refs, templates and errors.

    parse_path("extract.rows")            ("extract", "rows")
    parse_path("$.extract.files[0].name") ("extract", "files", 0, "name")
    parse_path(["extract", "odd.name"])   for names that the text form cannot express

A path begins with the name of a source in a context and continues with fields of objects and indexes of lists. A
negative index counts from the end.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tidemill.core.errors import ConfigError

Path = tuple[str | int, ...]

#: The value of a skipped source: every path into it gives null.
ABSENT: Any = type("Absent", (), {"__repr__": lambda self: "ABSENT"})()

_PART = re.compile(r"(?:^|\.)([^.\[\]{}\s](?:[^.\[\]{}]*[^.\[\]{}\s])?)|\[(-?\d+)\]")


class RefError(ConfigError):
    """A ref, template or condition cannot be parsed, or its path does not exist; `place` says which one."""

    def __init__(self, place: Path, problem: str) -> None:
        self.place = place
        self.problem = problem
        super().__init__(f"{format_path(place)}: {problem}" if place else problem)


def parse_path(written: object, place: Path = ()) -> Path:
    """Parse a path that is written as text or as a list of its parts."""
    if isinstance(written, str):
        return _parse_text(written, place)
    if isinstance(written, list | tuple) and written and isinstance(written[0], str) and all(map(_is_part, written)):
        return tuple(written)
    raise RefError(place, f'{written!r} is not a path; write "node.field" or ["node", "field", 0]')


def _parse_text(text: str, place: Path) -> Path:
    rest = text.strip().removeprefix("$.")
    parts: list[str | int] = []
    at = 0
    while at < len(rest):
        found = _PART.match(rest, at)
        if found is None or (found[1] is None and not parts):
            break
        parts.append(found[1] if found[1] is not None else int(found[2]))
        at = found.end()
    if not parts or at < len(rest):
        raise RefError(place, f"{text!r} is not a path; write something like 'node.field' or '$.node.list[0]'")
    return tuple(parts)


def format_path(path: Path) -> str:
    """Format a path as text: `nodes[3].args.rows`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def look_up(path: Path, context: Mapping[str, Any], place: Path = ()) -> Any:
    """Return the value at a path in a context; a `RefError` says which part of the path does not exist."""
    name = path[0]
    if name not in context:
        raise RefError(place, f"{format_path(path)}: there is no source named {name!r}")
    value = context[str(name)]
    if value is ABSENT:
        return None
    for depth, part in enumerate(path[1:], 1):
        value = _step(value, part, path, depth, place)
    return value


def _step(value: Any, part: str | int, path: Path, depth: int, place: Path) -> Any:
    sofar = format_path(path[:depth])
    if isinstance(value, Mapping):
        key = part if isinstance(part, str) else str(part)
        if key in value:
            return value[key]
        known = ", ".join(sorted(map(str, value))[:10]) or "none"
        raise RefError(place, f"{format_path(path)}: {sofar} has no field {key!r}; its fields: {known}")
    if isinstance(value, list | tuple):
        index = int(part) if _is_integer(part) or (isinstance(part, str) and part.isdecimal()) else None
        if index is None:
            raise RefError(place, f"{format_path(path)}: {sofar} is a list, and {part!r} is not an index")
        if not -len(value) <= index < len(value):
            problem = f"{sofar} is a list of length {len(value)}, and index {index} is out of range"
            raise RefError(place, f"{format_path(path)}: {problem}")
        return value[index]
    raise RefError(place, f"{format_path(path)}: {sofar} is {kind_of(value)}, which has no fields")


def kind_of(value: Any) -> str:
    """Describe the type of a plain value for an error message."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "text"
    return "an object" if isinstance(value, Mapping) else "a list"


def _is_part(part: object) -> bool:
    return isinstance(part, str) or _is_integer(part)


def _is_integer(value: object) -> bool:
    """Return whether the value is an integer (a bool is not)."""
    return isinstance(value, int) and not isinstance(value, bool)
