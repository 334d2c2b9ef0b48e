"""A workflow file as a graph of nodes, and its run for one entity or one event.

Items flow along the connections. A node gets the items of all its predecessors; its result is added to each item under
the node's name. An `if` passes items on through its connector `true` or `false`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from tidemill.core.errors import ConfigError
from tidemill.pipelines.workflows.nodes import Node, NodeError, filled, run_node

PASSING = ("state_clear_failure",)

NODE_FIELDS = frozenset({"id", "typeId", "name", "position", "data", "agentConfig"})
AGENT_FIELDS = frozenset({"concurrencyGroup", "tags"})
LINK_FIELDS = frozenset({"id", "sourceNodeId", "sourceConnectorId", "targetNodeId", "targetConnectorId"})


class NodeLink(msgspec.Struct, frozen=True):
    """A connection between two nodes."""

    source: str
    target: str
    connector: str = ""


class Graph(msgspec.Struct):
    """The nodes of a workflow by id, and their connections."""

    nodes: dict[str, Node]
    links: list[NodeLink]
    _into: dict[str, list[NodeLink]] = {}

    def __post_init__(self) -> None:
        for link in self.links:
            self._into.setdefault(link.target, []).append(link)

    def into(self, id: str) -> list[NodeLink]:
        return self._into.get(id, [])

    def above(self, id: str) -> list[Node]:
        """All predecessors of a node in the order in which they run; the node itself comes last."""
        order: dict[str, None] = {}
        visiting: set[str] = set()

        def visit(at: str) -> None:
            if at in order:
                return
            if at in visiting:
                names = ", ".join(sorted(self.nodes[each].name for each in visiting))
                raise ConfigError(f"these nodes form a cycle: {names}")
            visiting.add(at)
            for link in self.into(at):
                visit(link.source)
            visiting.discard(at)
            order[at] = None

        visit(id)
        return [self.nodes[each] for each in order]

    async def run(
        self, target: str, seeds: Mapping[str, Any], first: Mapping[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """The items that reach a node. `seeds` are the outputs, by name, of nodes that are already done."""
        outputs: dict[str, list[tuple[dict[str, Any], Any]]] = {}
        base = dict(first or {})
        for node in self.above(target):
            items = self.arriving(node, outputs, base)
            if node.id == target:
                return items
            if node.name in seeds:
                outputs[node.id] = [(item, seeds[node.name]) for item in items]
            elif node.type in PASSING:
                outputs[node.id] = [(item, None) for item in items]
            else:
                outputs[node.id] = await run_node(node, items) if items else []
        raise ConfigError(f"there is no node {target!r}")

    def arriving(
        self, node: Node, outputs: Mapping[str, list[tuple[dict[str, Any], Any]]], base: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        links = self.into(node.id)
        if not links:
            return [dict(base)]
        items: list[dict[str, Any]] = []
        merged: dict[str, Any] = {}
        for link in links:
            source = self.nodes[link.source]
            for item, output in outputs.get(link.source, ()):
                if source.type == "if" and link.connector in ("true", "false") and output != (link.connector == "true"):
                    continue
                items.append({**base, **item, source.name: output})
        if len(links) > 1 and items and all(len(outputs.get(link.source, ())) <= 1 for link in links):
            # One item from each branch: the next node sees them merged.
            for item in items:
                merged.update(item)
            return [merged]
        return items


def read_graph(data: Mapping[str, Any], notes: list[str]) -> Graph:
    """The graph of a file with `nodes` and `connections`; unknown fields are noted."""
    nodes: dict[str, Node] = {}
    for at, entry in enumerate(data.get("nodes") or []):
        if not isinstance(entry, Mapping) or not entry.get("id") or not entry.get("typeId"):
            raise ConfigError(f"nodes[{at}]: a node has an id and a typeId")
        note_unknown(entry, NODE_FIELDS, f"nodes[{at}]", notes)
        agent = entry.get("agentConfig") or {}
        note_unknown(agent, AGENT_FIELDS, f"nodes[{at}].agentConfig", notes)
        name = str(entry.get("name") or entry["id"])
        if any(node.name == name for node in nodes.values()):
            raise ConfigError(f"nodes[{at}]: two nodes are called {name!r}")
        if entry["id"] in nodes:
            raise ConfigError(f"nodes[{at}]: two nodes have the id {entry['id']!r}")
        nodes[entry["id"]] = Node(
            str(entry["id"]), str(entry["typeId"]), name, dict(entry.get("data") or {}),
            agent.get("concurrencyGroup"), tuple(agent.get("tags") or ()),
        )  # fmt: skip
    links: list[NodeLink] = []
    for at, entry in enumerate(data.get("connections") or []):
        note_unknown(entry, LINK_FIELDS, f"connections[{at}]", notes)
        source, target = entry.get("sourceNodeId"), entry.get("targetNodeId")
        for end in (source, target):
            if end not in nodes:
                raise ConfigError(f"connections[{at}]: there is no node {end!r}")
        links.append(NodeLink(str(source), str(target), str(entry.get("sourceConnectorId") or "")))
    return Graph(nodes, links)


def note_unknown(data: Mapping[str, Any], known: Iterable[str], place: str, notes: list[str]) -> None:
    """Add a note for each unknown field."""
    for field in data.keys() - set(known):
        notes.append(f"{place}: the field {field!r} is not understood, and changes nothing")


def read_groups(data: Mapping[str, Any]) -> dict[str, int]:
    """The limits of the concurrency groups in a file's settings; a group without one is limited to one."""
    groups = (data.get("settings") or {}).get("concurrencyGroups") or {}
    if not isinstance(groups, Mapping) or any(type(most) is not int or most < 1 for most in groups.values()):
        raise ConfigError('settings.concurrencyGroups: this is an object like {"models": 2}')
    return {str(name): most for name, most in groups.items()}


def concurrency_limit(nodes: Iterable[Node], groups: Mapping[str, int], notes: list[str]) -> dict[str, Any]:
    """The `concurrency_key` and `max_concurrency` of nodes that run together; empty if no node has a group."""
    every = list(nodes)
    named = list(dict.fromkeys(node.concurrency_key for node in every if node.concurrency_key))
    if len(named) > 1:
        notes.append(f"node {every[-1].name!r}: of the groups {', '.join(named)} only the first limits what runs")
    return {"concurrency_key": named[0], "max_concurrency": groups.get(named[0], 1)} if named else {}


def content_of(node: Node, item: Mapping[str, Any], field: str = "content") -> Any:
    """The content that a state_write node writes for an item."""
    if field not in node.data:
        raise NodeError(f"node {node.name!r}: field {field!r} is missing")
    return filled(msgspec.structs.replace(node, data={field: node.data[field]}), item, set())[field]


def as_content(value: Any) -> Any:
    """A node's result as the content of a state: the obvious field of an object, or all of it as JSON."""
    if isinstance(value, Mapping):
        for field in ("content", "stdout", "body"):
            if isinstance(value.get(field), str):
                return value[field]
    return value
