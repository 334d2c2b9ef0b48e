"""Parse JSON and YAML into plain data, with the line number of every part.

YAML is parsed as version 1.2: `no` is a string and not false, a date is a string, and a duplicate key is an error.
"""

from __future__ import annotations

import json
import re
from json.decoder import scanstring  # pyright: ignore[reportAttributeAccessIssue]
from typing import Any, ClassVar

import yaml
from yaml.constructor import ConstructorError

from tidemill.core.codec import decode, encode
from tidemill.core.errors import PayloadError
from tidemill.core.expressions.paths import Path
from tidemill.dags.errors import DagError

Lines = dict[Path, int]

MOST_PARTS = 1_000_000
MOST_MERGED = 100_000

_MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """The safe loader, limited to the types of plain values that JSON has."""

    yaml_implicit_resolvers: ClassVar[dict[str, list[Any]]] = {}

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, LookupError, AttributeError, TypeError, ArithmeticError) as error:
            tag = node.tag.rpartition(":")[2]
            raise ConstructorError(None, None, f"this cannot be read as {tag!r}", node.start_mark) from error


def _resolve(tag: str, pattern: str, first: str) -> None:
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(rf"^(?:{pattern})$"), list(first))


_resolve("null", "~|null|Null|NULL|", "~nN")
_Loader.yaml_implicit_resolvers.setdefault("", []).extend(_Loader.yaml_implicit_resolvers["~"])
_resolve("bool", "true|True|TRUE|false|False|FALSE", "tTfF")
_resolve("int", "[-+]?[0-9]+", "-+0123456789")
_Loader.add_constructor("tag:yaml.org,2002:int", lambda _, node: int(node.value))
_resolve("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", "-+.0123456789")
_resolve("merge", "<<", "<")


def read_yaml(text: str, file: str) -> tuple[Any, Lines]:
    """Parse YAML text; returns the data and the lines of its parts."""
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            raise DagError((), "the file is empty", file=file)
        lines: Lines = {}
        _mark_yaml(root, (), lines, file)
        if _Merging(file).parts(root) > MOST_PARTS:
            raise _too_many(file)
        return decode(encode(loader.construct_document(root))), lines
    except (PayloadError, RecursionError) as error:
        raise DagError((), f"this is more than plain data: {error}", file=file) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(part for part in (error.context, error.problem) if part)
        raise DagError((), f"this is not YAML: {problem}", file=file, line=mark.line + 1 if mark else None) from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise DagError((), f"this is not YAML: {error}", file=file) from error


def _too_many(file: str) -> DagError:
    problem = "the file expands into millions of parts; its aliases (*name) may be nested"
    return DagError((), problem, file=file)


class _Merging:
    """Counts the parts that merge keys (`<<`) would copy, before anything is copied."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._known: dict[int, int] = {}
        self._merged = 0

    def parts(self, node: yaml.Node) -> int:
        """Return the number of parts of a node after all merge keys and aliases are expanded."""
        if id(node) not in self._known:
            self._known[id(node)] = 0  # For a node that contains itself.
            self._known[id(node)] = 1 + self._inside(node)
        return self._known[id(node)]

    def _inside(self, node: yaml.Node) -> int:
        if isinstance(node, yaml.SequenceNode):
            return sum(map(self.parts, node.value))
        if not isinstance(node, yaml.MappingNode):
            return 0
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise DagError((), "a key is not a string", file=self._file, line=key.start_mark.line + 1)
        merged = sum(self.parts(value) for key, value in node.value if key.tag == _MERGE)
        self._merged += merged
        if self._merged > MOST_MERGED:
            raise _too_many(self._file)
        return merged + sum(self.parts(value) for key, value in node.value if key.tag != _MERGE)


def _mark_yaml(node: yaml.Node, path: Path, lines: Lines, file: str) -> None:
    if len(lines) > MOST_PARTS:
        raise _too_many(file)
    lines[path] = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.tag == _MERGE:
                continue
            at = (*path, str(key.value))
            if not isinstance(key, yaml.ScalarNode):
                raise DagError(path, "a key is not a string", file=file, line=key.start_mark.line + 1)
            if at in lines:
                raise DagError(at, f"the key {key.value!r} appears twice", file=file, line=key.start_mark.line + 1)
            _mark_yaml(value, at, lines, file)
            lines[at] = key.start_mark.line + 1
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            _mark_yaml(value, (*path, index), lines, file)


def read_json(text: str, file: str) -> tuple[Any, Lines]:
    """Parse JSON text; returns the data and the lines of its parts."""
    try:
        data = json.loads(text, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        raise DagError((), f"this is not JSON: {error.msg}", file=file, line=error.lineno) from error
    except ValueError as error:
        raise DagError((), f"this is not JSON: {error}", file=file) from error
    except RecursionError as error:
        raise DagError((), "this is nested too deeply", file=file) from error
    lines: Lines = {}
    _JsonMarks(text, file, lines).value(0, ())
    return data, lines


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is not a valid number in JSON")


class _JsonMarks:
    """Scans valid JSON text and records the line of each part."""

    def __init__(self, text: str, file: str, lines: Lines) -> None:
        self._text = text
        self._file = file
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
                    where = self._line_at(at)
                    raise DagError((*path, key), f"the key {key!r} appears twice", file=self._file, line=where)
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
