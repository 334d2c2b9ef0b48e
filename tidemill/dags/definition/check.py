"""Validate a dag: names, deps, cycles, refs and schemas. Reports every problem with its place."""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

from tidemill.core import retry
from tidemill.core.did_you_mean import did_you_mean
from tidemill.core.errors import ConfigError
from tidemill.core.expressions.conditions import Condition
from tidemill.core.expressions.paths import Path, RefError, format_path
from tidemill.core.expressions.refs import ITEM, RefResolver, Refs, RefSource
from tidemill.core.expressions.template import Template
from tidemill.core.jobs.job import PRIORITIES, check_name
from tidemill.dags.definition.model import RUN, UNSET, Dag, InputNode, Node, SubDag, TaskNode
from tidemill.dags.definition.schema import Schema, SchemaProblem
from tidemill.dags.errors import DagError

INDEX = "index"
RESERVED = frozenset({RUN, ITEM, INDEX})

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,99}", re.ASCII)
_RESERVED = dict.fromkeys(RESERVED)
_LENIENT = Refs(strict=False)


def check_dag(dag: Dag, refs: RefResolver | None = None) -> None:
    """Raise a `DagError` for the first problem in a dag.

    Without `refs`, unknown operators are accepted: they are checked when the application's resolver is known.
    """
    for error in find_problems(dag.name, dag.nodes, dag.result, refs):
        raise error.within(dag=dag.name) from error.__cause__


def find_problems(name: str, nodes: Sequence[Node], result: Any, refs: RefResolver | None = None) -> Iterator[DagError]:
    """Yield every problem in a dag of these nodes. Checks that need valid names are skipped if names are invalid."""
    refs = refs or _LENIENT
    try:
        check_name("dag", name)
    except (ConfigError, AttributeError, TypeError) as error:
        yield _because(DagError(("name",), str(error)), error)
    if not nodes:
        yield DagError(("nodes",), "a dag needs at least one node")
        return
    names = yield from _find_names(nodes)
    if names is None:
        return
    deps: dict[str, tuple[str, ...]] = {}
    sources: list[list[RefSource]] = []
    sound = len(names) == len(nodes)
    for index, node in enumerate(nodes):
        found: list[RefSource] = []
        for error in _node_problems(node, names, refs, found):
            sound = False
            yield error.within("nodes", index)
        sources.append(found)
        deps[node.name] = deps_of(node, found)
    if sound:
        order = yield from _in_order(deps, names)
        if order is not None:
            yield from _unsure_reads(nodes, names, deps, order, sources)
    yield from _result_problems(result, refs, names)


def _node_problems(
    node: Node, names: dict[str, int], refs: RefResolver, sources: list[RefSource]
) -> Iterator[DagError]:
    yield from _field_problems(node)
    try:
        for source in reads(node, refs, names):
            sources.append(source)  # Sources before an invalid one are still checked.
    except RefError as error:
        yield _because(DagError(error.place, f"node {node.name!r}: {error.problem}"), error)
    yield from _dep_problems(node, names)
    yield from _name_problems(node, sources, names)
    if isinstance(node, SubDag) and refs is not _LENIENT:  # Otherwise it was checked when it was created.
        for error in find_problems(node.dag.name, node.dag.nodes, node.dag.result, refs):
            yield error.within("dag")


def _because(problem: DagError, cause: BaseException) -> DagError:
    problem.__cause__ = cause
    return problem


def reads(node: Node, refs: RefResolver, names: Mapping[str, Any]) -> Iterator[RefSource]:
    """Yield all paths that a node reads, each with its place in the node."""
    if node.skip_if is not None:
        if isinstance(node.skip_if, str):
            for name in sorted(condition_of(node.skip_if, names).names):
                yield RefSource((name,), ("skip_if",))
        else:
            yield from refs.sources(node.skip_if, ("skip_if",))
    if isinstance(node, InputNode):
        for path in Template(node.prompt, ("prompt",)).sources:
            yield RefSource(path, ("prompt",))
        return
    if isinstance(node, TaskNode) and node.map is not None:
        yield from refs.sources(node.map, ("map",))
    yield from refs.sources(node.args, ("args",))


def condition_of(text: str, names: Mapping[str, Any]) -> Condition:
    """Compile a `skip_if` in CEL; it may use the names of these nodes and the reserved names."""
    return Condition(text, ChainMap(names, _RESERVED), ("skip_if",))  # pyright: ignore[reportArgumentType]


def deps_of(node: Node, sources: Iterable[RefSource]) -> tuple[str, ...]:
    """Return the dependencies of a node: its deps, or else the nodes that its refs read."""
    if node.deps is not None:
        return node.deps
    return tuple(dict.fromkeys(str(source.path[0]) for source in sources if source.path[0] not in RESERVED))


# -- names and fields -----------------------------------------------------------------------------


def _find_names(nodes: Sequence[Node]) -> Generator[DagError, None, dict[str, int] | None]:
    """Return the index of each name, and yield the problems; None if one of the nodes is not a node."""
    names: dict[str, int] = {}
    for index, node in enumerate(nodes):
        place: Path = ("nodes", index)
        if not isinstance(node, Node):
            yield DagError(place, f"{node!r} is not a node; create one with node(), input_node() or sub_dag()")
            return None
        if not isinstance(node.name, str) or not _NAME.fullmatch(node.name):
            yield DagError(
                (*place, "name"),
                f"{node.name!r} is not a valid node name: use letters, digits, _ and -, and begin with a letter",
            )
            if not isinstance(node.name, str):
                return None
        elif node.name in RESERVED:
            yield DagError(
                (*place, "name"), f"{node.name!r} is a reserved name in refs; choose another name for the node"
            )
        if node.name in names:
            yield DagError(
                (*place, "name"), f"two nodes have the name {node.name!r}: this one and nodes[{names[node.name]}]"
            )
        names.setdefault(node.name, index)
    return names


def _field_problems(node: Node) -> Iterator[DagError]:
    if node.on_failure not in ("fail_run", "continue"):
        yield DagError(("on_failure",), f"node {node.name!r}: {node.on_failure!r} is neither 'fail_run' nor 'continue'")
    if node.skip_with not in ("all", "any", "none"):
        yield DagError(("skip_with",), f"node {node.name!r}: {node.skip_with!r} is not 'all', 'any' or 'none'")
    if isinstance(node, TaskNode):
        yield from _task_problems(node)
    elif isinstance(node, InputNode):
        yield from _input_problems(node)


def _task_problems(node: TaskNode) -> Iterator[DagError]:
    for field, what in (("task", "task"), ("queue", "queue"), ("required_model", "model")):
        value = getattr(node, field)
        if value is not None:
            try:
                check_name(what, value)
            except ConfigError as error:
                yield _because(DagError((field,), f"node {node.name!r}: {error}"), error)
    if node.priority is not None and node.priority not in PRIORITIES:
        yield DagError(("priority",), f"node {node.name!r}: priority {node.priority} is outside 0 to 9")
    for field in ("budget", "stall"):
        seconds = getattr(node, field)
        if seconds is not None and seconds <= 0:
            yield DagError(
                (field,), f"node {node.name!r}: a {field} of {seconds:g} seconds is too short: it must be above 0"
            )
    if node.retry is not None:
        try:
            retry.validate(node.retry)
        except ConfigError as error:
            yield _because(DagError(("retry",), f"node {node.name!r}: {error}"), error)
    if node.max_concurrency is not None and node.max_concurrency < 1:
        yield DagError(
            ("max_concurrency",),
            f"node {node.name!r}: max_concurrency={node.max_concurrency} would start no items; use 1 or more",
        )
    if node.tolerate < 0:
        yield DagError(
            ("tolerate",), f"node {node.name!r}: tolerate={node.tolerate} is not a number of items; use 0 or more"
        )
    for field, usual in (("max_concurrency", None), ("tolerate", 0)):
        if node.map is None and getattr(node, field) != usual:
            yield DagError((field,), f"node {node.name!r}: {field} is only for nodes with map")


def _input_problems(node: InputNode) -> Iterator[DagError]:
    if node.timeout is not None and node.timeout <= 0:
        yield DagError(
            ("timeout",), f"node {node.name!r}: a timeout of {node.timeout:g} seconds is too short: it must be above 0"
        )
    if node.default is not UNSET and node.timeout is None:
        yield DagError(
            ("default",), f"node {node.name!r}: a default needs a timeout, after which it is used; add a timeout"
        )
    if node.schema is None:
        return
    try:
        schema = Schema(node.schema)
    except SchemaProblem as error:
        yield _because(DagError(("schema",), f"node {node.name!r}: this is not a JSON Schema: {error}"), error)
        return
    if node.default is not UNSET and (problem := schema.problem_of_default(node.default)):
        yield DagError(("default",), f"node {node.name!r}: the default does not fit the schema: {problem}")


# -- deps and refs --------------------------------------------------------------------------------


def _dep_problems(node: Node, names: dict[str, int]) -> Iterator[DagError]:
    seen: set[str] = set()
    for at, dep in enumerate(node.deps or ()):
        if dep == node.name:
            yield DagError(("deps", at), f"node {node.name!r} depends on itself")
        if dep not in names:
            yield DagError(
                ("deps", at),
                f"node {node.name!r} depends on {dep!r}, which is not a node of this dag{did_you_mean(dep, names)}",
            )
        if dep in seen:
            yield DagError(("deps", at), f"node {node.name!r} lists its dependency {dep!r} twice")
        seen.add(dep)


def _name_problems(node: Node, sources: list[RefSource], names: dict[str, int]) -> Iterator[DagError]:
    is_map = isinstance(node, TaskNode) and node.map is not None
    for source in sources:
        name = source.path[0]
        if name == node.name:
            yield DagError(source.place, f"node {node.name!r} reads its own result")
        if name in (ITEM, INDEX):
            if not is_map or source.place[0] != "args":
                yield DagError(
                    source.place,
                    f"node {node.name!r} reads {name!r}, which is only available in the args of a node with map",
                )
        elif name != RUN and name not in names:
            yield DagError(
                source.place,
                f"node {node.name!r} reads {format_path(source.path)!r}, but {name!r} is not a node of this dag"
                f"{did_you_mean(str(name), names)}",
            )


def _in_order(deps: dict[str, tuple[str, ...]], names: dict[str, int]) -> Generator[DagError, None, list[str] | None]:
    """Return the names in topological order; for a cycle, yield a problem and return None."""
    try:
        return list(TopologicalSorter(deps).static_order())
    except CycleError as error:
        cycle: list[str] = error.args[1][::-1]
    path = " -> ".join(cycle)
    yield DagError(("nodes", names[cycle[0]], "deps"), f"these nodes depend on each other in a cycle: {path}")
    return None


def _unsure_reads(
    nodes: Sequence[Node],
    names: dict[str, int],
    deps: dict[str, tuple[str, ...]],
    order: list[str],
    sources: list[list[RefSource]],
) -> Iterator[DagError]:
    """Yield a problem for each path of a node that is not always available when the node starts."""
    if all(node.deps is None or _only_direct(node.deps, sources[index]) for index, node in enumerate(nodes)):
        return
    before: dict[str, int] = {}  # for each node the set of its ancestors, as bits
    for name in order:
        bits = 0
        for dep in deps[name]:
            bits |= before[dep] | 1 << names[dep]
        before[name] = bits
    for index, node in enumerate(nodes):
        for source in sources[index]:
            name = str(source.path[0])
            if name in names and not before[node.name] >> names[name] & 1:
                yield DagError(
                    ("nodes", index, *source.place),
                    f"node {node.name!r} reads {format_path(source.path)!r}, but does not depend on {name!r}; "
                    f"add {name!r} to its deps",
                )


def _only_direct(deps: tuple[str, ...], sources: list[RefSource]) -> bool:
    known = RESERVED.union(deps)
    return all(source.path[0] in known for source in sources)


def _result_problems(result: Any, refs: RefResolver, names: dict[str, int]) -> Iterator[DagError]:
    try:
        sources: list[RefSource] = [] if result is None else list(refs.sources(result, ("result",)))
    except RefError as error:
        yield _because(DagError(error.place, error.problem), error)
        return
    for source in sources:
        name = str(source.path[0])
        if name != RUN and name not in names:
            yield DagError(
                source.place,
                f"the result reads {format_path(source.path)!r}, but {name!r} is not a node of this dag"
                f"{did_you_mean(name, names)}",
            )
