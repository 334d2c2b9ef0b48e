"""Parse JSON and YAML into plain data, with the line number of every part.

YAML is parsed as version 1.2: `no` is a string and not false, a date is a string, and a duplicate key is an error.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

import yaml
from yaml.constructor import ConstructorError

from tidemill.core.codec import decode, encode
from tidemill.core.encoding import located_json
from tidemill.core.encoding.located_json import Lines
from tidemill.core.errors import PayloadError
from tidemill.core.expressions.paths import Path
from tidemill.dags.errors import DagError

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
    if file.endswith(".py"):
        raise DagError((), "this is Python and not a dag file: dags in Python are checked by `app.dag(...)`", file=file)
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
        return located_json.read_json(text)
    except located_json.JsonTextError as error:
        raise DagError(error.place, error.problem, file=file, line=error.line) from error
