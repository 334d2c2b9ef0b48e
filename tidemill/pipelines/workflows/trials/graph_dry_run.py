"""A dry run of a workflow for one entity or event: the inputs of each node, without side effects.

Expressions are filled in, and nodes that only compute (`set`, `transform`, `if`, ...) are run. A node with side effects
is not run: its result is unknown, and so is everything that depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import msgspec

from tidemill.core.errors import TidemillError
from tidemill.core.expressions.dry_run import Field
from tidemill.pipelines.workflows.expressions.javascript import ExpressionError, bare, expressions_in, fill, roots_of
from tidemill.pipelines.workflows.graph import PASSING, Graph
from tidemill.pipelines.workflows.nodes import NODE_TYPES, Node, only_item, pinned_results

#: Types without side effects.
COMPUTING = ("start", "scheduled", "webhook", "hardwired", "set", "transform", "if")
BARE = {("if", "condition"), ("transform", "expression")}
MOST_ITEMS = 100

Outputs = dict[str, list[tuple[dict[str, Any], Any]]]


class Unknown:
    """A value that is not known before the run."""

    def __init__(self, why: str) -> None:
        self.why = why

    def __repr__(self) -> str:
        return f"<{self.why}>"

    def _refuse(self, *_: object) -> NoReturn:
        raise ExpressionError(self.why)

    __bool__ = __eq__ = __ne__ = __len__ = _refuse  # pyright: ignore[reportAssignmentType]
    __hash__ = object.__hash__


class DryRunNode(msgspec.Struct, frozen=True):
    """A node in a dry run, shown for the first of its `items`."""

    id: str
    name: str
    type: str
    fields: list[Field]
    items: int
    is_run: bool
    """Whether it was run, because it only computes."""
    output: Any = None
    note: str = ""


class GraphDryRun:
    """Runs a graph dry, node by node."""

    def __init__(self, graph: Graph, first: Mapping[str, Any], seeds: Mapping[str, Any] | None = None) -> None:
        self.graph = graph
        self.done: list[DryRunNode] = []
        self._first = dict(first)
        self._seeds = dict(seeds or {})
        self._outputs: Outputs = {}

    def arriving(self, node: Node) -> list[dict[str, Any]]:
        """The items that reach a node."""
        return self.graph.arriving(node, self._outputs, self._first)[:MOST_ITEMS]

    def take(self, node: Node) -> None:
        """Process one node, after its predecessors."""
        if node.id in self._outputs:
            return
        items = self.arriving(node)
        if node.name in self._seeds or node.type in PASSING:
            self._outputs[node.id] = [(item, self._seeds.get(node.name)) for item in items]
            return
        shown, outputs = dry_run_node(node, items)
        self._outputs[node.id] = outputs
        self.done.append(shown)


def dry_run_trigger(graph: Graph, payload: Any) -> list[DryRunNode]:
    """Every node of a workflow that runs once, for this payload."""
    graph_run = GraphDryRun(graph, {"payload": payload})
    for id in graph.nodes:
        for node in graph.above(id):
            graph_run.take(node)
    return graph_run.done


def dry_run_node(node: Node, items: Sequence[dict[str, Any]]) -> tuple[DryRunNode, list[tuple[dict[str, Any], Any]]]:
    """One node with its fields filled in, and its result for each item."""
    kind = NODE_TYPES.get(node.type)
    if not items:
        return DryRunNode(node.id, node.name, node.type, [], 0, False, note="nothing reaches it"), []
    scope = items[0] if kind is None or kind.per_item else {"items": list(items), **items[0]}
    fields = [fill_field(node, name, scope) for name in node.data if name not in ("pinned", "pinnedOutput")]
    shown = DryRunNode(node.id, node.name, node.type, fields, len(items), False)
    if (pinned := pinned_results(node, list(items))) is not None:
        return msgspec.structs.replace(shown, output=node.data["pinnedOutput"], note="pinned"), pinned
    if kind is None or node.type not in COMPUTING:
        given = Unknown(f"what {node.name} gives is not known before it runs")
        made = [(item, given) for item in items] if kind is None or kind.per_item else [(only_item(items), given)]
        return msgspec.structs.replace(shown, note="not run in a dry run"), made
    if not kind.per_item:
        value = _computed(node, kind.run, {"items": list(items), **items[0]}, items)
        item = only_item(items)
        made = [(item, each) for each in value] if isinstance(value, list) else [(item, value)]
        return _shown(shown, value), made
    given = [_computed(node, kind.run, item, item) for item in items]
    if node.type == "if" and any(isinstance(each, Unknown) for each in given):
        both = [(item, way) for item in items for way in (True, False)]
        return msgspec.structs.replace(shown, note="either way: what it decides by is not known yet"), both
    return _shown(shown, given[0]), list(zip(items, given, strict=True))


def fill_field(node: Node, name: str, scope: Mapping[str, Any]) -> Field:
    """A field of a node, filled in."""
    value = node.data[name]
    if (node.type, name) in BARE:
        return Field(name, value)
    made = _filled(value, scope)
    if isinstance(made, Unknown):
        return Field(name, value, waits=made.why)
    return Field(name, value, wrong=str(made)) if isinstance(made, ExpressionError) else Field(name, made)


def _shown(shown: DryRunNode, value: Any) -> DryRunNode:
    if isinstance(value, Unknown):
        return msgspec.structs.replace(shown, note=value.why)
    return msgspec.structs.replace(shown, output=value, is_run=True)


def _computed(node: Node, function: Any, scope: Mapping[str, Any], given: Any) -> Any:
    """The result of a node that only computes."""
    data: dict[str, Any] = {}
    for name, value in node.data.items():
        data[name] = value if (node.type, name) in BARE else _filled(value, scope)
        if isinstance(data[name], Unknown):
            return data[name]
        if isinstance(data[name], ExpressionError):
            return Unknown(f"{node.name} fails: {data[name]}")
    unknown = _unknown_among(node, scope)
    try:
        return function(data, given)
    except (TidemillError, TypeError, ValueError, KeyError, AttributeError) as error:
        return unknown if unknown is not None else Unknown(f"{node.name} fails: {error}")


def _unknown_among(node: Node, scope: Mapping[str, Any]) -> Unknown | None:
    """An unknown value that an expression without braces reads."""
    for name in node.data:
        if (node.type, name) in BARE and isinstance(node.data[name], str):
            return _unknown_root(bare(node.data[name]), scope)
    return None


def _filled(value: Any, scope: Mapping[str, Any]) -> Any:
    """The value filled in; otherwise the reason: `Unknown`, or an error."""
    try:
        made = fill(value, scope)
    except (ExpressionError, TypeError) as error:
        for text in expressions_in(value):
            if (unknown := _unknown_root(text, scope)) is not None:
                return unknown
        return error if isinstance(error, ExpressionError) else ExpressionError(str(error))
    unknown = find_unknown(made)
    return made if unknown is None else unknown


def _unknown_root(text: str, scope: Mapping[str, Any]) -> Unknown | None:
    try:
        roots = roots_of(text)
    except ExpressionError:
        return None
    found = (find_unknown(scope.get(root)) for root in sorted(roots))
    return next((each for each in found if each is not None), None)


def find_unknown(value: Any) -> Unknown | None:
    """An unknown part of a value, if there is one."""
    if isinstance(value, Unknown):
        return value
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    for each in parts:
        if (found := find_unknown(each)) is not None:
            return found
    return None
