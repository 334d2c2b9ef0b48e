"""Plan a dag without running it: the order of its nodes, their queues, and the arguments that are known beforehand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from graphlib import TopologicalSorter
from typing import Any

import msgspec

from tidemill.core.errors import ConfigError
from tidemill.core.expressions.dry_run import Field
from tidemill.core.expressions.refs import RefResolver, Refs
from tidemill.core.expressions.template import Template
from tidemill.dags.definition.check import condition_of, deps_of, reads
from tidemill.dags.definition.model import RUN, Dag, InputNode, Node, SubDag, TaskNode


class Planned(msgspec.Struct, frozen=True):
    """A node as it would run, after the nodes in `after`; nodes of the same `level` may run in parallel."""

    node: str
    kind: str
    level: int
    after: list[str]
    fields: list[Field]
    note: str
    skipped: bool | None
    """Whether it would be skipped; None if that is not known before the run."""


def dry_run(dag: Dag, args: Mapping[str, Any], refs: RefResolver | None = None) -> list[Planned]:
    """Return all nodes of a dag in the order in which they would run."""
    refs = refs or Refs()
    names = {node.name: node for node in dag.nodes}
    deps = {node.name: deps_of(node, reads(node, refs, names)) for node in dag.nodes}
    levels: dict[str, int] = {}
    for name in TopologicalSorter(deps).static_order():
        levels[name] = 1 + max((levels[dep] for dep in deps[name]), default=-1)
    planned = [_planned(node, levels[node.name], deps[node.name], args, refs, names) for node in dag.nodes]
    return sorted(planned, key=lambda each: each.level)


def _planned(
    node: Node,
    level: int,
    after: Iterable[str],
    args: Mapping[str, Any],
    refs: RefResolver,
    names: Mapping[str, Node],
) -> Planned:
    context = {RUN: args}
    fields: list[Field] = []
    if isinstance(node, InputNode):
        kind, note = "input", "asks a person" + (f", for at most {node.timeout:g} s" if node.timeout else "")
        fields.append(_prompt(node, context))
    else:
        kind = "dag" if isinstance(node, SubDag) else "task"
        note = f"dag {node.dag.name}, {len(node.dag.nodes)} nodes" if isinstance(node, SubDag) else _job(node)
        if isinstance(node, TaskNode) and node.map is not None:
            fields.append(_argument("map", node.map, context, refs))
        fields += [_argument(name, value, context, refs) for name, value in node.args.items()]
    return Planned(node.name, kind, level, list(after), fields, note, _skipped(node, context, refs, names))


def _job(node: TaskNode) -> str:
    queue = f" on queue {node.queue}" if node.queue else ""
    return f"task {node.task}{queue}" + (", one job for each item" if node.map is not None else "")


def _argument(name: str, value: Any, context: Mapping[str, Any], refs: RefResolver) -> Field:
    heads = sorted({str(source.path[0]) for source in refs.sources(value)} - {RUN})
    if heads:
        return Field(name, value, waits=f"it is read from {', '.join(heads)} when the node starts")
    try:
        return Field(name, refs.resolve(value, context))
    except ConfigError as error:
        return Field(name, value, wrong=str(error))


def _prompt(node: InputNode, context: Mapping[str, Any]) -> Field:
    template = Template(node.prompt, ("prompt",))
    heads = sorted({str(path[0]) for path in template.sources} - {RUN})
    if heads:
        return Field("prompt", node.prompt, waits=f"it is read from {', '.join(heads)} when the node starts")
    try:
        return Field("prompt", template.render(context))
    except ConfigError as error:
        return Field("prompt", node.prompt, wrong=str(error))


def _skipped(node: Node, context: Mapping[str, Any], refs: RefResolver, names: Mapping[str, Node]) -> bool | None:
    if node.skip_if is None:
        return False
    try:
        if isinstance(node.skip_if, str):
            condition = condition_of(node.skip_if, names)
            return None if condition.names - {RUN} else condition.holds(context)
        if {str(source.path[0]) for source in refs.sources(node.skip_if)} - {RUN}:
            return None
        found = refs.resolve(node.skip_if, context)
    except ConfigError:
        return None
    return found if isinstance(found, bool) else None
