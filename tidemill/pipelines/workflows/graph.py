"""A workflow file as a graph of nodes, and its run for one entity or one event.

Items flow along the connections. A node gets the items of all its predecessors; its result is added to each item under
the node's name. An `if` lets items through for which its condition holds; a connection from its connector `false` takes
the others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from tidemill.core.errors import ConfigError
from tidemill.pipelines.workflows.nodes import Node, NodeError, filled, pinned_results, run_node
from tidemill.pipelines.workflows.questions import ASKING, Outputs, Progress

PASSING = ("state_clear_failure",)

#: Outputs in all items that reach a node: two connections from where items part to where they meet double them.
MOST_OUTPUTS = 5_000_000


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

    def order(self) -> list[Node]:
        """All nodes, each after its predecessors."""
        return list({node.id: node for id in self.nodes for node in self.above(id)}.values())

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

    async def run_all(
        self,
        nodes: Iterable[Node],
        seeds: Mapping[str, Any],
        base: Mapping[str, Any],
        *,
        progress: Progress | None = None,
    ) -> dict[str, list[Any]]:
        """The results of these nodes by name, an entry for each item; `seeds` are outputs that are known already.

        With `progress`, which is updated, what is done in it is not done again, and the run stops at nodes that ask a
        person; without it, such a node fails.
        """
        outputs: Outputs = {} if progress is None else progress.outputs
        waiting = set[str]()
        for node in nodes:
            if node.id in outputs:
                continue
            if any(link.source in waiting for link in self.into(node.id)):
                waiting.add(node.id)
                continue
            items = self.arriving(node, outputs, base)
            if progress is not None and node.type in ASKING and items and pinned_results(node, items) is None:
                progress.ask(node, items)
                waiting.add(node.id)
            elif node.name in seeds or node.type in PASSING:
                outputs[node.id] = [(item, seeds.get(node.name)) for item in items]
            else:
                outputs[node.id] = await run_node(node, items) if items else []
        return {self.nodes[id].name: [output for _, output in each] for id, each in outputs.items()}

    def arriving(
        self, node: Node, outputs: Mapping[str, list[tuple[dict[str, Any], Any]]], base: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        links = self.into(node.id)
        if not links:
            return [dict(base)]
        items: list[dict[str, Any]] = []
        merged: dict[str, Any] = {}
        count = 0
        for link in links:
            source = self.nodes[link.source]
            for item, output in outputs.get(link.source, ()):
                if source.type == "if" and bool(output) is (link.connector == "false"):
                    continue  # It filters, unless a connection takes what it does not let through.
                items.append({**base, **item, source.name: output})
                count += len(items[-1])
                if count > MOST_OUTPUTS:
                    raise NodeError(
                        f"node {node.name!r}: more than {len(items) - 1:,} items reach it, with "
                        f"{len(items[-1])} outputs each: let fewer through, or merge the branches before"
                    )
        if len(links) > 1 and items and all(len(outputs.get(link.source, ())) <= 1 for link in links):
            # One item from each branch: the next node sees them merged.
            for item in items:
                merged.update(item)
            return [merged]
        return items


def read_graph(data: Mapping[str, Any], *, is_pipeline: bool) -> Graph:
    """The graph of a file with `nodes` and `connections`."""
    nodes: dict[str, Node] = {}
    written = json.dumps(data.get("nodes"), ensure_ascii=False)
    for at, entry in enumerate(data.get("nodes") or []):
        if not isinstance(entry, Mapping) or not entry.get("id") or not entry.get("typeId"):
            raise ConfigError(f"nodes[{at}]: a node has an id and a typeId")
        agent = entry.get("agentConfig") or {}
        name = str(entry.get("name") or entry["id"])
        if any(node.name == name for node in nodes.values()):
            raise ConfigError(f"nodes[{at}]: two nodes are called {name!r}")
        if entry["id"] in nodes:
            raise ConfigError(f"nodes[{at}]: two nodes have the id {entry['id']!r}")
        nodes[entry["id"]] = Node(
            str(entry["id"]), str(entry["typeId"]), name, dict(entry.get("data") or {}),
            agent.get("concurrencyGroup"), tuple(agent.get("tags") or ()),
            (entry["typeId"] == "http" and not is_pipeline) or _reads_failure(name, written),
        )  # fmt: skip
    links: dict[NodeLink, None] = {}
    for at, entry in enumerate(data.get("connections") or []):
        source, target = entry.get("sourceNodeId"), entry.get("targetNodeId")
        for end in (source, target):
            if end not in nodes:
                raise ConfigError(f"connections[{at}]: there is no node {end!r}")
        links[NodeLink(str(source), str(target), str(entry.get("sourceConnectorId") or ""))] = None
    return Graph(nodes, list(links))


def _reads_failure(name: str, written: str) -> bool:
    """Whether a node reads how another one failed: then a failure is an output like any other."""
    own, fields = re.escape(json.dumps(name, ensure_ascii=False)[1:-1]), "(error|status|statusText|returnCode)"

    def member(of: str) -> str:
        return rf"""(\??\.{of}\b|(\?\.)?\[\s*\\?['"]{of}\\?['"]\s*\])"""

    return re.search(rf"\${member(own)}{member(fields)}", written) is not None


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


def content_of(node: Node, item: Mapping[str, Any]) -> Any:
    """The content that a state_write node writes for an item."""
    if "content" not in node.data:
        raise NodeError(f"node {node.name!r}: field 'content' is missing")
    return filled(msgspec.structs.replace(node, data={"content": node.data["content"]}), item)["content"]


def as_content(value: Any) -> Any:
    """A node's result as the content of a state: the obvious field of an object, or all of it as JSON."""
    if isinstance(value, Mapping):
        for field in ("content", "result", "response", "stdout", "body"):
            if field in value:
                return value[field]
    return value
