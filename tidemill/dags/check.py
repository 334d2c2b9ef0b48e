"""Whether a dag can work: names, deps, cycles, refs, schemas. The first trouble is raised, with its place."""

from __future__ import annotations

import difflib
import re
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tidemill.core import retry
from tidemill.core.conditions import Condition
from tidemill.core.errors import ConfigError
from tidemill.core.job import PRIORITIES, check_name
from tidemill.core.paths import Path, RefError, format_path
from tidemill.core.refs import ITEM, RefResolver, Refs, Source
from tidemill.core.template import Template
from tidemill.dags.errors import DagError
from tidemill.dags.model import RUN, UNSET, Dag, InputNode, Node, SubDag, TaskNode
from tidemill.dags.schema import Schema, SchemaProblem

INDEX = "index"
RESERVED = frozenset({RUN, ITEM, INDEX})

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,99}", re.ASCII)
_RESERVED = dict.fromkeys(RESERVED)
_LENIENT = Refs(strict=False)


def check_dag(dag: Dag, refs: RefResolver | None = None) -> None:
    """Raise a `DagError` at the first thing that cannot work.

    Without `refs`, the refs of a host's own language pass: it is looked at when the resolver is known.
    """
    try:
        _check(dag, refs or _LENIENT)
    except DagError as error:
        raise error.within(dag=dag.name) from error.__cause__


def _check(dag: Dag, refs: RefResolver) -> None:
    try:
        check_name("dag", dag.name)
    except (ConfigError, AttributeError, TypeError) as error:
        raise DagError(("name",), str(error)) from error
    if not dag.nodes:
        raise DagError(("nodes",), "a dag needs at least one node")
    names = _check_names(dag)
    deps: dict[str, tuple[str, ...]] = {}
    sources: list[list[Source]] = []
    for index, node in enumerate(dag.nodes):
        try:
            _check_fields(node)
            sources.append(list(reads(node, refs, names)))
            deps[node.name] = deps_of(node, sources[-1])
            _check_deps(node, names)
            _check_names_read(node, sources[-1], names)
        except RefError as error:
            raise DagError(("nodes", index, *error.place), f"node {node.name!r}: {error.problem}") from error
        except DagError as error:
            raise error.within("nodes", index) from error.__cause__
        if isinstance(node, SubDag):
            _check_inner(node, index, refs)
    order = _in_order(deps, names)
    _check_ancestors(dag, names, deps, order, sources)
    _check_result(dag, refs, names)


def reads(node: Node, refs: RefResolver, names: Mapping[str, Any]) -> Iterator[Source]:
    """All paths that a node reads, with the place in the node where it does."""
    if node.skip_if is not None:
        if isinstance(node.skip_if, str):
            for name in sorted(condition_of(node.skip_if, names).names):
                yield Source((name,), ("skip_if",))
        else:
            yield from refs.sources(node.skip_if, ("skip_if",))
    if isinstance(node, InputNode):
        for path in Template(node.prompt, ("prompt",)).sources:
            yield Source(path, ("prompt",))
        return
    if isinstance(node, TaskNode) and node.map is not None:
        yield from refs.sources(node.map, ("map",))
    yield from refs.sources(node.args, ("args",))


def condition_of(text: str, names: Mapping[str, Any]) -> Condition:
    """A `skip_if` in CEL, which may use the names of these nodes and the reserved ones."""
    return Condition(text, ChainMap(names, _RESERVED), ("skip_if",))  # pyright: ignore[reportArgumentType]


def deps_of(node: Node, sources: Iterable[Source]) -> tuple[str, ...]:
    """What a node depends on: its deps, or else the nodes that its refs read."""
    if node.deps is not None:
        return node.deps
    return tuple(dict.fromkeys(str(source.path[0]) for source in sources if source.path[0] not in RESERVED))


# -- names and fields -----------------------------------------------------------------------------


def _check_names(dag: Dag) -> dict[str, int]:
    names: dict[str, int] = {}
    for index, node in enumerate(dag.nodes):
        place: Path = ("nodes", index)
        if not isinstance(node, Node):
            raise DagError(place, f"{node!r} is not a node; make one with node(), input_node() or sub_dag()")
        if not isinstance(node.name, str) or not _NAME.fullmatch(node.name):
            raise DagError(
                (*place, "name"),
                f"{node.name!r} is not a name for a node: use letters, digits, _ and -, and begin with a letter",
            )
        if node.name in RESERVED:
            raise DagError((*place, "name"), f"{node.name!r} means something else in refs; call the node differently")
        if node.name in names:
            raise DagError(
                (*place, "name"), f"two nodes are called {node.name!r}: this one and nodes[{names[node.name]}]"
            )
        names[node.name] = index
    return names


def _check_fields(node: Node) -> None:
    if node.on_failure not in ("fail_run", "continue"):
        raise DagError(("on_failure",), f"node {node.name!r}: {node.on_failure!r} is neither 'fail_run' nor 'continue'")
    if node.skip_with not in ("all", "any", "none"):
        raise DagError(("skip_with",), f"node {node.name!r}: {node.skip_with!r} is not 'all', 'any' or 'none'")
    if isinstance(node, TaskNode):
        _check_task(node)
    elif isinstance(node, InputNode):
        _check_input(node)


def _check_task(node: TaskNode) -> None:
    for field, what in (("task", "task"), ("queue", "queue"), ("required_model", "model")):
        value = getattr(node, field)
        if value is not None:
            try:
                check_name(what, value)
            except ConfigError as error:
                raise DagError((field,), f"node {node.name!r}: {error}") from error
    if node.priority is not None and node.priority not in PRIORITIES:
        raise DagError(("priority",), f"node {node.name!r}: priority {node.priority} is outside 0 to 9")
    for field in ("budget", "stall"):
        seconds = getattr(node, field)
        if seconds is not None and seconds <= 0:
            raise DagError(
                (field,), f"node {node.name!r}: a {field} of {seconds:g} seconds leaves no time for anything"
            )
    if node.retry is not None:
        try:
            retry.validate(node.retry)
        except ConfigError as error:
            raise DagError(("retry",), f"node {node.name!r}: {error}") from error
    if node.max_parallel is not None and node.max_parallel < 1:
        raise DagError(("max_parallel",), f"node {node.name!r}: max_parallel={node.max_parallel} would start nothing")
    if node.tolerate < 0:
        raise DagError(("tolerate",), f"node {node.name!r}: tolerate={node.tolerate} is not a number of items")
    for field, usual in (("max_parallel", None), ("tolerate", 0)):
        if node.map is None and getattr(node, field) != usual:
            raise DagError((field,), f"node {node.name!r}: {field} is for nodes with map")


def _check_input(node: InputNode) -> None:
    if node.timeout is not None and node.timeout <= 0:
        raise DagError(("timeout",), f"node {node.name!r}: nobody can answer within {node.timeout:g} seconds")
    if node.default is not UNSET and node.timeout is None:
        raise DagError(("default",), f"node {node.name!r}: a default is for after a timeout; give a timeout too")
    if node.schema is None:
        return
    try:
        schema = Schema(node.schema)
    except SchemaProblem as error:
        raise DagError(("schema",), f"node {node.name!r}: this is not a JSON Schema: {error}") from error
    if node.default is not UNSET and (problem := schema.problem(node.default)):
        raise DagError(("default",), f"node {node.name!r}: the default does not fit the schema: {problem}")


def _check_inner(node: SubDag, index: int, refs: RefResolver) -> None:
    if refs is _LENIENT:
        return  # It was checked when it was made.
    try:
        check_dag(node.dag, refs)
    except DagError as error:
        raise error.within("nodes", index, "dag") from error.__cause__


# -- deps and refs --------------------------------------------------------------------------------


def _check_deps(node: Node, names: dict[str, int]) -> None:
    seen: set[str] = set()
    for at, dep in enumerate(node.deps or ()):
        if dep == node.name:
            raise DagError(("deps", at), f"node {node.name!r} depends on itself")
        if dep not in names:
            raise DagError(
                ("deps", at), f"node {node.name!r} depends on {dep!r}, which is no node here{_hint(dep, names)}"
            )
        if dep in seen:
            raise DagError(("deps", at), f"node {node.name!r} names its dependency {dep!r} twice")
        seen.add(dep)


def _check_names_read(node: Node, sources: list[Source], names: dict[str, int]) -> None:
    is_map = isinstance(node, TaskNode) and node.map is not None
    for source in sources:
        name = source.path[0]
        if name == node.name:
            raise DagError(source.place, f"node {node.name!r} reads its own result")
        if name in (ITEM, INDEX):
            if not is_map or source.place[0] != "args":
                raise DagError(source.place, f"node {node.name!r} reads {name!r}, which only args of a map have")
        elif name != RUN and name not in names:
            raise DagError(
                source.place,
                f"node {node.name!r} reads {format_path(source.path)!r}, but {name!r} is no node here"
                f"{_hint(str(name), names)}",
            )


def _in_order(deps: dict[str, tuple[str, ...]], names: dict[str, int]) -> list[str]:
    """The names with each after what it depends on; a `DagError` for a cycle."""
    left = {name: len(needed) for name, needed in deps.items()}
    followers: dict[str, list[str]] = {name: [] for name in deps}
    for name, needed in deps.items():
        for dep in needed:
            followers[dep].append(name)
    order = [name for name, count in left.items() if count == 0]
    for name in order:
        for follower in followers[name]:
            left[follower] -= 1
            if left[follower] == 0:
                order.append(follower)
    if len(order) < len(deps):
        cycle = _cycle(deps, {name for name, count in left.items() if count})
        told = " -> ".join((*cycle, cycle[0]))
        raise DagError(("nodes", names[cycle[0]], "deps"), f"these nodes wait for each other in a circle: {told}")
    return order


def _cycle(deps: dict[str, tuple[str, ...]], stuck: set[str]) -> list[str]:
    """One circle among nodes that never get their turn, each waiting for the next."""
    name = next(name for name in deps if name in stuck)
    walked: dict[str, int] = {}
    while name not in walked:
        walked[name] = len(walked)
        name = next(dep for dep in deps[name] if dep in stuck)
    return list(walked)[walked[name] :]


def _check_ancestors(
    dag: Dag, names: dict[str, int], deps: dict[str, tuple[str, ...]], order: list[str], sources: list[list[Source]]
) -> None:
    """What a node reads must surely have ended before it starts."""
    if all(node.deps is None or _only_direct(node.deps, sources[index]) for index, node in enumerate(dag.nodes)):
        return
    before: dict[str, int] = {}  # for each node the set of its ancestors, as bits
    for name in order:
        bits = 0
        for dep in deps[name]:
            bits |= before[dep] | 1 << names[dep]
        before[name] = bits
    for index, node in enumerate(dag.nodes):
        for source in sources[index]:
            name = str(source.path[0])
            if name in names and not before[node.name] >> names[name] & 1:
                raise DagError(
                    ("nodes", index, *source.place),
                    f"node {node.name!r} reads {format_path(source.path)!r}, but does not depend on {name!r}; "
                    f"add {name!r} to its deps",
                )


def _only_direct(deps: tuple[str, ...], sources: list[Source]) -> bool:
    return all(source.path[0] in deps or source.path[0] in RESERVED for source in sources)


def _check_result(dag: Dag, refs: RefResolver, names: dict[str, int]) -> None:
    try:
        sources: list[Source] = [] if dag.result is None else list(refs.sources(dag.result, ("result",)))
    except RefError as error:
        raise DagError(error.place, error.problem) from error
    for source in sources:
        name = str(source.path[0])
        if name != RUN and name not in names:
            raise DagError(
                source.place,
                f"the result reads {format_path(source.path)!r}, but {name!r} is no node here{_hint(name, names)}",
            )


def _hint(name: Any, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(str(name), list(names)[:2000], 1)
    return f"; did you mean {close[0]!r}?" if close else ""
