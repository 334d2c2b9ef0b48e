"""Load dags from JSON or YAML files: the same fields as in Python; errors name the line.

    name: nightly
    nodes:
      - {name: extract, task: etl.extract, queue: fetch, args: {day: {$from: run.day}}}
      - {name: approve, prompt: "Load {{$.extract.rows}} rows?", timeout: 2h, default: {answer: "yes"}}
      - name: load
        task: etl.load
        deps: [approve]
        retry: {max_attempts: 3, backoff: 10s}
        skip_if: approve.answer == 'no'
      - {name: report, dag: report.yaml, args: {rows: {$from: load.rows}}}

A node with `task` runs a task, a node with `prompt` asks a person, and a node with `dag` is a dag, written inline or
in another file of the same folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path as FilePath
from typing import Any

import msgspec

from tidemill.core.codec import encode
from tidemill.core.did_you_mean import did_you_mean
from tidemill.core.duration import parse_duration
from tidemill.core.encoding.located_json import Lines, line_of
from tidemill.core.errors import ConfigError, TidemillError
from tidemill.core.expressions.paths import Path, kind_of
from tidemill.core.expressions.refs import RefResolver, Refs
from tidemill.dags.definition.check import check_dag, find_problems
from tidemill.dags.definition.model import Dag, InputNode, Node, SubDag, TaskNode, read_retry
from tidemill.dags.errors import DagError

Reader = Callable[[str], Any]

_KINDS = {"task": ("task", TaskNode), "prompt": ("input", InputNode), "dag": ("dag", SubDag)}
_DURATIONS = ("budget", "stall", "timeout")
_AT = re.compile(r" - at `\$(.*)`$")
_NO_FIELD = re.compile(r"there is no field `(.*)`")
_STAND_IN = {"name": "stand_in", "nodes": [{"name": "stand_in", "task": "stand_in"}]}


def load_dag(path: str | FilePath, *, refs: RefResolver | None = None) -> Dag:
    """Load a dag from a JSON or YAML file; a `DagError` names the file and the line of a problem."""
    return _load(FilePath(path), refs or Refs(), ())


def parse_dag(
    text: str, *, file: str = "dag.yaml", refs: RefResolver | None = None, inside: FilePath | None = None
) -> Dag:
    """Parse a dag from text. `file` is its name in errors; a name that ends in .json means JSON, others mean YAML.

    With `inside`, the text is the content of `file`, and other dag files are read if they are in the folder `inside`.
    """
    known = refs or Refs()
    if inside is None:
        return _parse(text, file, known, _no_files)
    path, within = FilePath(file), inside.resolve()
    return _parse(text, file, known, lambda name: _load(path.parent / name, known, (path.resolve(),), within))


def read_definition(data: Mapping[str, Any], refs: RefResolver | None) -> Dag:
    """The dag of a definition that a caller brings along: as `Dag.to_json` writes it, or as a file has it."""
    nodes = data.get("nodes")
    if isinstance(nodes, list) and any(isinstance(each, Mapping) and "kind" in each for each in nodes):
        return Dag.from_json(encode(dict(data)))
    return parse_dag(json.dumps(data, indent=2), file="definition.json", refs=refs)


def problems_in(path: str | FilePath, *, refs: RefResolver | None = None) -> list[DagError]:
    """Return every problem in a dag file and in the dag files that it includes; an empty list if it is valid."""
    return sorted(_problems_in(FilePath(path), refs or Refs(), ()), key=lambda each: (each.file or "", each.line or 0))


def problems_in_text(
    text: str, path: str | FilePath, *, inside: str | FilePath, refs: RefResolver | None
) -> list[DagError]:
    """Return every problem in text that is the content of `path`. Other files are read only in the folder `inside`."""
    within = FilePath(inside).resolve()
    found = _problems_in(FilePath(path), refs or Refs(), (), text=text, inside=within)
    return sorted(found, key=lambda each: (each.file or "", each.line or 0))


def located(path: str | FilePath, problems: Sequence[DagError]) -> list[DagError]:
    """Add line numbers to problems that were found in the dag of a file."""
    text, _ = _read(FilePath(path), ())
    _, lines = _marked(text, str(path))
    return [_placed(each, str(path), lines) for each in problems]


def _load(path: FilePath, refs: RefResolver, within: tuple[FilePath, ...], inside: FilePath | None = None) -> Dag:
    _check_inside(path, inside)
    text, above = _read(path, within)
    return _parse(text, str(path), refs, lambda name: _load(path.parent / name, refs, above, inside))


def _check_inside(path: FilePath, inside: FilePath | None) -> None:
    if inside is not None and not path.resolve().is_relative_to(inside):
        raise ConfigError(f"{path.name!r} is outside the folder of dag files and is not read; move it into the folder")


def _read(path: FilePath, within: tuple[FilePath, ...]) -> tuple[str, tuple[FilePath, ...]]:
    """Read a file that other files include, and return its text and the chain of files that include each other."""
    resolved = path.resolve()
    if resolved in within:
        raise ConfigError(f"{path} includes itself: {' -> '.join(each.name for each in (*within, resolved))}")
    try:
        return path.read_text(encoding="utf-8-sig"), (*within, resolved)
    except FileNotFoundError as error:
        near = did_you_mean(path.name, [each.name for each in path.parent.glob(f"*{path.suffix}")])
        raise ConfigError(f"there is no dag file {path}{near}") from error
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"the dag file {path} cannot be read: {why}") from error


def _no_files(name: str) -> Dag:
    raise ConfigError(f"{name!r} is another file, and this text is not in a file; write the dag inline")


def _parse(text: str, file: str, refs: RefResolver, open_file: Reader) -> Dag:
    data, lines = _marked(text, file)
    try:
        dag = _dag(data, (), open_file)
        check_dag(dag, refs)
    except DagError as error:
        raise _placed(error, file, lines) from error.__cause__
    return dag


def _marked(text: str, file: str) -> tuple[Any, Lines]:
    from tidemill.dags.definition.parse import read_json, read_yaml  # with the parser of YAML

    return (read_json if file.endswith(".json") else read_yaml)(text, file)


def _placed(error: DagError, file: str, lines: Lines) -> DagError:
    """Return the error with the line of its place, unless it belongs to another file."""
    if error.file is not None:
        return error
    return DagError(error.place, error.problem, file=file, line=line_of(error.place, lines))


def _dag(data: Any, place: Path, open_file: Reader) -> Dag:
    if not isinstance(data, dict):
        raise DagError(place, f"a dag must be an object with a name and nodes, but this is {kind_of(data)}")
    nodes = data.get("nodes")
    if not isinstance(nodes, list):
        raise DagError((*place, "nodes") if "nodes" in data else place, "a dag must have a list of nodes")
    made = [_node(node, (*place, "nodes", index), open_file) for index, node in enumerate(nodes)]
    stand_in = [{"kind": "task", "name": "stand_in", "task": "stand_in"}]
    result = data.get("result")
    rest = _converted({**data, "nodes": stand_in, "result": None}, Dag, place)
    try:
        return Dag(rest.name, tuple(made), result, rest.about, rest.args)
    except DagError as error:
        raise error.within(*place) from error.__cause__
    except ConfigError as error:
        raise DagError((*place, "result"), str(error)) from error


def _node(data: Any, place: Path, open_file: Reader) -> Node:
    if not isinstance(data, dict):
        raise DagError(place, f"a node must be an object, but this is {kind_of(data)}")
    found = [field for field in _KINDS if field in data]
    if len(found) != 1:
        given = f"has {' and '.join(found)}" if found else "has none of them"
        raise DagError(place, f"a node must have either a task, a prompt or a dag, but this one {given}")
    tag, kind = _KINDS[found[0]]
    fields = {"kind": tag, **data}
    for name in _DURATIONS:
        if fields.get(name) is not None:
            fields[name] = _at_place(lambda name=name: parse_duration(fields[name], what=name), (*place, name))
    if fields.get("retry") is not None:
        fields["retry"] = msgspec.to_builtins(_at_place(lambda: read_retry(fields["retry"]), (*place, "retry")))
    if kind is not SubDag:
        return _converted(fields, kind, place)
    inner = fields["dag"]
    dag = _at_place(lambda: open_file(inner), (*place, "dag")) if isinstance(inner, str) else None
    made = dag or _dag(inner, (*place, "dag"), open_file)
    stand_in = {"name": "stand_in", "nodes": [{"kind": "task", "name": "stand_in", "task": "stand_in"}]}
    return msgspec.structs.replace(_converted({**fields, "dag": stand_in}, SubDag, place), dag=made)


def _at_place(make: Callable[[], Any], place: Path) -> Any:
    """Call a function, and turn its `ConfigError` into a `DagError` with the place."""
    try:
        return make()
    except DagError:
        raise
    except TidemillError as error:
        raise DagError(place, str(error)) from error


def _converted(data: Any, kind: Any, place: Path) -> Any:
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        message = str(error)
        found = _AT.search(message)
        inside: list[str | int] = []
        if found:
            for field, index in re.findall(r"\.([^.\[\]]+)|\[(\d+)\]", found[1]):
                inside.append(int(index) if index else field)
        problem = _AT.sub("", message).replace("Object contains unknown field", "there is no field")
        problem = re.sub(r"Object missing required field (.+)", r"the field \1 is missing", problem)
        raise DagError((*place, *inside), problem) from error


# -- all problems, not only the first -------------------------------------------------------------


def _problems_in(
    path: FilePath,
    refs: RefResolver,
    within: tuple[FilePath, ...],
    *,
    text: str | None = None,
    inside: FilePath | None = None,
) -> Iterator[DagError]:
    _check_inside(path, inside)
    text, above = _read(path, within) if text is None else (text.removeprefix("\ufeff"), (*within, path.resolve()))
    file = str(path)
    try:
        data, lines = _marked(text, file)
    except DagError as error:
        yield error
        return
    read_file = partial(_problems_beside, path, refs, above, inside)
    for error in _problems_of(data, (), refs, read_file):
        yield _placed(error, file, lines)


def _problems_beside(
    path: FilePath, refs: RefResolver, within: tuple[FilePath, ...], inside: FilePath | None, name: str
) -> Iterator[DagError]:
    return _problems_in(path.parent / name, refs, within, inside=inside)


def _problems_of(data: Any, place: Path, refs: RefResolver, read_file: Reader) -> Iterator[DagError]:
    if not isinstance(data, dict) or not isinstance(data.get("nodes"), list):
        try:
            _dag(data, place, _no_files)
        except DagError as error:
            yield error
        return
    nodes: list[Node] = []
    for index, each in enumerate(data["nodes"]):
        at = (*place, "nodes", index)
        node = each
        if isinstance(each, dict) and "dag" in each:
            yield from _problems_inside(each["dag"], (*at, "dag"), refs, read_file)
            node = {**each, "dag": _STAND_IN}
        nodes.append((yield from _nearest_node(node, at)))
    name = data.get("name")
    dag_name = name if isinstance(name, str) else "stand_in"
    stand_in = {"name": "stand_in"} if dag_name is name else {}
    try:
        _converted(
            {**data, "nodes": [{"kind": "task", **_STAND_IN["nodes"][0]}], "result": None, **stand_in}, Dag, place
        )
    except DagError as error:
        yield error
    for error in find_problems(dag_name, nodes, data.get("result"), refs):
        yield error.within(*place)


def _problems_inside(inner: Any, place: Path, refs: RefResolver, read_file: Reader) -> Iterator[DagError]:
    if not isinstance(inner, str):
        yield from _problems_of(inner, place, refs, read_file)
        return
    try:
        yield from read_file(inner)
    except ConfigError as error:  # The file does not exist.
        yield DagError(place, str(error))


def _nearest_node(data: Any, place: Path) -> Generator[DagError, None, Node]:
    """Read a node as far as possible: yield its problems, and leave out the invalid fields."""
    while True:
        try:
            return _node(data, place, _no_files)
        except DagError as error:
            yield error
            unknown = _NO_FIELD.match(error.problem)
            field = unknown[1] if unknown else error.place[len(place)] if len(error.place) > len(place) else None
        if not isinstance(data, dict) or field not in data or field in ("name", *_KINDS):
            break
        data = {key: value for key, value in data.items() if key != field}
    name = data.get("name") if isinstance(data, dict) else None
    return TaskNode(name=name if isinstance(name, str) else f"node_{place[-1]}", task="stand_in", deps=())
