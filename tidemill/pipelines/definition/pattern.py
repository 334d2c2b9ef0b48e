"""Patterns: conversion between a path and the variables of its entity.

    pattern = Pattern("daily/{date:date}/{name}.txt")
    pattern.match("daily/2026-01-15/a.txt")               {"date": "2026-01-15", "name": "a"}
    pattern.format({"date": "2026-01-15", "name": "a"})   "daily/2026-01-15/a.txt"

    {x}          a part of a name: anything but a slash, and never a hidden name
    {x:int}      an integer as Python writes it; also :date, :month, :year
    {x:**}       any number of folders, including none, as one value: src/{path:**}/{name}.md
    {x.month}    the month of a date called x, written 2026-01; also .year
    *            any part of a name, not part of the entity
    **           any number of folders, including none; at the end, all files in and below a folder
    a/{x}/       with a final slash: a directory

Matching and formatting are inverse. A value that would not be parsed back from its path is rejected, and a path whose
text is not the canonical form of its value (007 for a number) does not match. Only the value of `{x:**}` can contain a
slash, and no value can be `..`, so an entity's path never leaves the folder of its pattern.

An entity is known by its values, joined by slashes (`entity_id`); each value is in it as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date

from tidemill.core.errors import ConfigError

_HOLE = re.compile(r"\{([^{}]*)\}|\*+")
_NAME = re.compile(r"([A-Za-z_]\w*)(?:\.([a-z]+))?(?::([a-z]+|\*\*))?\Z")
_FORMS = {
    "str": r"[^/]+?",
    "int": r"0|-?[1-9][0-9]*",
    "date": r"[0-9]{4}-[0-9]{2}-[0-9]{2}",
    "month": r"[0-9]{4}-(?:0[1-9]|1[0-2])",
    "year": r"[0-9]{4}",
    "**": r"(?!\.)[^/]+(?:/(?!\.)[^/]+)*",
}
_PARTS = {"month": 7, "year": 4}  # the length of each part of a date's text
_DEEP = "**"


class PatternError(ConfigError):
    """A pattern that cannot be parsed, or a value that cannot be part of a path."""


class Segment:
    """The part of a pattern between two slashes."""

    def __init__(self, text: str, whole: str, kinds: dict[str, str]) -> None:
        self.text = text
        self.is_deep = text == _DEEP  # matches any number of segments
        self.parts: list[tuple[str, str]] = [("glob", _DEEP)] if self.is_deep else []
        if not self.is_deep:
            self._read(text, whole, kinds)
        self.is_literal = all(kind == "text" for kind, _ in self.parts)
        self.variables = [part for kind, part in self.parts if kind == "var"]
        if any(kinds[name] == _DEEP for name in self.variables):
            self.is_deep = True
            if len(self.parts) > 1:
                raise PatternError(f"{whole!r}: {text!r} matches folders, and must be alone between slashes")

    def _read(self, text: str, whole: str, kinds: dict[str, str]) -> None:
        """Split the text: ("text", ...), ("glob", "*") or ("var", name)."""
        at, last = 0, "text"
        for hole in _HOLE.finditer(text):
            if hole.start() > at:
                self.parts.append(("text", text[at : hole.start()]))
                last = "text"
            if last != "text" and self.parts:
                raise PatternError(f"{whole!r}: separate {self._last_part()} and {hole[0]!r} with text")
            if hole[1] is None:
                if hole[0] != "*":
                    raise PatternError(f"{whole!r}: {hole[0]!r} matches folders, and must be alone between slashes")
                self.parts.append(("glob", "*"))
            else:
                self.parts.append(("var", _declare(hole[1], whole, kinds)))
            at, last = hole.end(), "hole"
        if at < len(text):
            self.parts.append(("text", text[at:]))
        if any("{" in part or "}" in part for kind, part in self.parts if kind == "text"):
            raise PatternError(f"{whole!r}: a brace is not closed, or was not opened")

    def _last_part(self) -> str:
        kind, name = self.parts[-1]
        return f"{{{name}}}" if kind == "var" else name

    def regex(self, seen: set[str], kinds: Mapping[str, str]) -> str:
        """A regular expression; a variable that occurs again must have the same value."""
        if self.is_deep and not self.variables:
            return r"(?:(?!\.)[^/]+/)*"
        if self.is_deep:
            seen.update(self.variables)
            return f"(?:(?P<{_group(self.variables[0])}>{_FORMS[_DEEP]})/)?"
        made = "" if self.is_literal or self.text.startswith(".") else r"(?!\.)"
        for kind, part in self.parts:
            if kind == "text":
                made += re.escape(part)
            elif kind == "glob":
                made += "[^/]*"
            elif part in seen:
                made += f"(?P={_group(part)})"
            else:
                seen.add(part)
                made += f"(?P<{_group(part)}>{_FORMS[kinds[part]]})"
        return made

    def shape(self) -> list[str | None]:
        """Its characters, with None for any text."""
        shape: list[str | None] = []
        for kind, part in self.parts:
            shape += list(part) if kind == "text" else [None]
        return shape


class Pattern:
    """A parsed pattern, to match and format paths."""

    def __init__(self, text: str) -> None:
        self.is_directory = text.endswith("/")
        self.text = text.removeprefix("./")
        path = self.text.rstrip("/") if self.is_directory else self.text
        _check_text(path, text)
        self.kinds: dict[str, str] = {}
        parts = path.split("/")
        if parts[-1] == _DEEP:
            parts.append("*")
        self.segments = tuple(Segment(part, text, self.kinds) for part in parts)
        self.variables = tuple(self.kinds)
        self.deep = next((name for name, kind in self.kinds.items() if kind == _DEEP), None)
        self._check_deep(text)
        self.has_glob = any(kind == "glob" for segment in self.segments for kind, _ in segment.parts)
        seen: set[str] = set()
        regexes = [segment.regex(seen, self.kinds) + ("" if segment.is_deep else "/") for segment in self.segments]
        self._regex = re.compile("".join(regexes).removesuffix("/"))
        self._dates = tuple(name for name in self.variables if self.kinds[name] == "date")
        # A segment with one variable and no glob returns any value unchanged.
        alone = all(len(segment.variables) < 2 for segment in self.segments)
        self._plain = alone and not self.has_glob and self.deep is None
        self._template = path.replace("%", "%%")
        for name, hole in ((_declared(hole[1]), hole[0]) for hole in _HOLE.finditer(path) if hole[1] is not None):
            hole += "/" if name == self.deep else ""  # Without folders, there is no slash either.
            self._template = self._template.replace(hole.replace("%", "%%"), f"%({name})s", 1)

    def _check_deep(self, text: str) -> None:
        deep = [segment for segment in self.segments if segment.is_deep]
        named = [name for segment in deep for name in segment.variables]
        if len(named) > 1:
            raise PatternError(f"{text!r}: only one variable can match folders, and only once")
        if any(one.is_deep and other.is_deep for one, other in zip(self.segments, self.segments[1:], strict=False)):
            raise PatternError(f"{text!r} is not a pattern: write one {_DEEP} instead of two")
        if self.segments[-1].is_deep:
            raise PatternError(f"{text!r}: write the name of a file after {{{named[0]}:**}}, such as /{{name}}.md")

    def __repr__(self) -> str:
        return f"Pattern({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pattern) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def match(self, path: str) -> dict[str, str] | None:
        """The variables of a path, or None if it does not match."""
        values = self.values(path)
        return None if values is None else dict(zip(self.variables, values, strict=True))

    def values(self, path: str) -> tuple[str, ...] | None:
        """The same without the names, in the order of `variables`."""
        found = self._regex.fullmatch(path)
        if found is None:
            return None
        if self._dates and not all(_is_date(found[_group(name)]) for name in self._dates):
            return None
        return found.groups() if self.deep is None else tuple(value or "" for value in found.groups())

    def format(self, values: Mapping[str, str]) -> str:
        """The path of an entity; a `PatternError` names an invalid value."""
        if self.has_glob:
            raise PatternError(f"{self.text!r} matches many paths because of its *, so it has no single path")
        deep = self.deep
        try:
            given = values if deep is None else {**values, deep: f"{values[deep]}/" if values[deep] else ""}
            path = self._template % given
        except KeyError as error:
            raise PatternError(f"{self.text!r} needs a value for {error.args[0]!r}") from error
        found = self._regex.fullmatch(path)
        if found is None or not _is_storable(path) or (self._dates and self.values(path) is None):
            raise PatternError(f"{self.text!r}: {self._culprit(values)}")
        if not self._plain or "/" in "".join(values[name] for name in self.variables):
            for name in self.variables:
                if (found[_group(name)] or "") != values[name]:
                    raise PatternError(
                        f"{self.text!r} cannot contain {name}={values[name]!r}: "
                        f"it would be parsed back as {found[_group(name)]!r}"
                    )
        return path

    def _culprit(self, values: Mapping[str, str]) -> str:
        for name in self.variables:
            kind, value = self.kinds[name], values[name]
            if kind == _DEEP and not value:
                continue
            if not re.fullmatch(_FORMS[kind], value) or (kind == "date" and not _is_date(value)):
                what = {"str": "part of a name", "int": "whole number", _DEEP: "path of folders"}.get(kind, kind)
                return f"{name}={value!r} is not a {what}"
        return f"{', '.join(f'{name}={values[name]!r}' for name in self.variables)} cannot be part of a path"

    def overlaps(self, other: Pattern) -> bool:
        """Whether a path could match both patterns."""
        return _segments_meet(self.segments, other.segments)

    @property
    def folder(self) -> str:
        """The part before the first variable: the folder of all its paths."""
        fixed = []
        for segment in self.segments[:-1]:
            if not segment.is_literal:
                break
            fixed.append(segment.text)
        return "/".join(fixed)

    @property
    def has_one_folder(self) -> bool:
        """Whether all its paths are in one folder."""
        return all(segment.is_literal for segment in self.segments[:-1])


def derive(name: str, values: Mapping[str, str]) -> str | None:
    """The value of a variable, or of a part of a date: `date.month`."""
    if name in values:
        return values[name]
    whole, _, part = name.partition(".")
    return values[whole][: _PARTS[part]] if part in _PARTS and whole in values else None


def entity_id(values: Sequence[str]) -> str:
    """An entity's values as one string, unique per entity of a stage: a path of no folders is written as a dot."""
    return "/".join(value or "." for value in values)


def entity_values(id: str, count: int, deep: int | None = None) -> tuple[str, ...] | None:
    """The `count` values of an entity id, of which the one at `deep` may contain slashes; None if there are others."""
    parts = id.split("/") if count else []
    if deep is None:
        return tuple(parts) if len(parts) == count else None
    after = count - deep - 1
    if len(parts) < count:
        return None
    folders = "/".join(parts[deep : len(parts) - after])
    return (*parts[:deep], "" if folders == "." else folders, *parts[len(parts) - after :])


def _check_text(path: str, text: str) -> None:
    if not path or path.startswith("/") or "\x00" in path or "\\" in path:
        raise PatternError(f"{text!r} is not a pattern: write a path inside the pipeline's root, separated by /")
    for part in path.split("/"):
        if part in ("", ".", ".."):
            raise PatternError(f"{text!r} is not a pattern: {part!r} cannot be a part of it")
    if f"{_DEEP}/{_DEEP}" in path:
        raise PatternError(f"{text!r} is not a pattern: write one {_DEEP} instead of two")


def _declare(written: str, whole: str, kinds: dict[str, str]) -> str:
    found = _NAME.match(written)
    if found is None:
        raise PatternError(
            f"{whole!r}: {{{written}}} is not a variable; write {{name}}, {{name:int}} or {{name.month}}"
        )
    name, part, kind = found[1], found[2], found[3]
    if part is not None:
        if part not in _PARTS or kind is not None:
            raise PatternError(f"{whole!r}: {{{written}}} is not a part of a date; the parts are .year and .month")
        name, kind = f"{name}.{part}", part
    if kind is not None and kind not in _FORMS:
        raise PatternError(f"{whole!r}: there is no type {kind!r}; the types are {', '.join(_FORMS)}")
    if kind is not None and kinds.get(name, kind) != kind:
        raise PatternError(f"{whole!r}: {name} is once {kinds[name]} and once {kind}")
    kinds[name] = kind or kinds.get(name, "str")
    return name


def _declared(written: str) -> str:
    return written.partition(":")[0]


def _group(name: str) -> str:
    return name.replace(".", "__of__")


def _is_storable(path: str) -> bool:
    """Whether a path can be a file's name and a text of the database."""
    if path.isascii():
        return "\x00" not in path
    try:
        return b"\x00" not in path.encode()
    except UnicodeEncodeError:
        return False


def _is_date(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def _segments_meet(a: Sequence[Segment], b: Sequence[Segment]) -> bool:
    """Whether two sequences of segments can match the same path."""
    for one, other in ((a, b), (b, a)):
        if one and one[0].is_deep:
            return _segments_meet(one[1:], other) or (bool(other) and _segments_meet(one, other[1:]))
    if not a or not b:
        return not a and not b
    return _meet(a[0].shape(), b[0].shape()) and _segments_meet(a[1:], b[1:])


def _meet(a: list[str | None], b: list[str | None]) -> bool:
    """Whether two texts with gaps (None) can be equal."""
    reached = {(0, 0)}
    todo = [(0, 0)]
    while todo:
        i, j = todo.pop()
        if i == len(a) and j == len(b):
            return True
        steps: list[tuple[int, int]] = []
        if i < len(a) and a[i] is None:
            steps += [(i + 1, j)] + ([(i, j + 1)] if j < len(b) else [])
        if j < len(b) and b[j] is None:
            steps += [(i, j + 1)] + ([(i + 1, j)] if i < len(a) else [])
        if i < len(a) and j < len(b) and a[i] is not None and a[i] == b[j]:
            steps.append((i + 1, j + 1))
        for step in steps:
            if step not in reached:
                reached.add(step)
                todo.append(step)
    return False
