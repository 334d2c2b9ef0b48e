"""JSON text as plain data, with the line of every part: for messages about files that people write."""

from __future__ import annotations

import json
import re
from json.decoder import scanstring  # pyright: ignore[reportAttributeAccessIssue]
from typing import Any

from tidemill.core.errors import ConfigError
from tidemill.core.expressions.paths import Path

Lines = dict[Path, int]
_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")


class JsonTextError(ConfigError):
    """A text that is not JSON, or has a key twice; names the line if it is known."""

    def __init__(self, problem: str, line: int | None = None, place: Path = ()) -> None:
        super().__init__(problem if line is None else f"line {line}: {problem}")
        self.problem, self.line, self.place = problem, line, place


def read_json(text: str) -> tuple[Any, Lines]:
    """Parse JSON text; returns the data and the lines of its parts."""
    try:
        data = json.loads(text, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        raise JsonTextError(f"this is not JSON: {error.msg}", error.lineno) from error
    except ValueError as error:
        raise JsonTextError(f"this is not JSON: {error}") from error
    except RecursionError as error:
        raise JsonTextError("this is nested too deeply") from error
    lines: Lines = {}
    _JsonMarks(text, lines).value(0, ())
    if _HALF_PAIR.search(text) is not None and (place := _find_half_pair(data, ())) is not None:
        raise JsonTextError("this text has half of a surrogate pair, which is no character", lines.get(place), place)
    return data, lines


def _find_half_pair(data: Any, place: Path) -> Path | None:
    """The place of a key or text that cannot be encoded."""
    if isinstance(data, str):
        return None if data.isascii() or data.encode("utf-8", "ignore").decode() == data else place
    parts = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for name, part in parts:
        found = _find_half_pair(name, (*place, name)) or _find_half_pair(part, (*place, name))
        if found is not None:
            return found
    return None


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is not a valid number in JSON")


class _JsonMarks:
    """Scans valid JSON text and records the line of each part."""

    def __init__(self, text: str, lines: Lines) -> None:
        self._text = text
        self._lines = lines
        self._decoder = json.JSONDecoder()
        self._line, self._counted = 1, 0

    def value(self, at: int, path: Path) -> int:
        """Record a value and its parts; returns the offset of its end."""
        at = self._skip(at)
        self._lines.setdefault(path, self._line_at(at))
        opening = self._text[at]
        if opening not in "{[":
            return self._decoder.raw_decode(self._text, at)[1]
        at, index = self._skip(at + 1), 0
        while self._text[at] not in "}]":
            if opening == "{":
                key, end = scanstring(self._text, at + 1)
                if (*path, key) in self._lines:
                    raise JsonTextError(f"the key {key!r} appears twice", self._line_at(at), (*path, key))
                self._lines[(*path, key)] = self._line_at(at)
                at = self.value(self._skip(end) + 1, (*path, key))
            else:
                at = self.value(at, (*path, index))
                index += 1
            at = self._skip(at)
            if self._text[at] == ",":
                at = self._skip(at + 1)
        return at + 1

    def _skip(self, at: int) -> int:
        while self._text[at] in " \t\r\n":
            at += 1
        return at

    def _line_at(self, at: int) -> int:
        self._line += self._text.count("\n", self._counted, at)
        self._counted = at
        return self._line


def line_of(place: Path, lines: Lines) -> int | None:
    """Return the line of a place, or of its nearest enclosing part."""
    while place not in lines and place:
        place = place[:-1]
    return lines.get(place)
