"""Pipelines as graphs of nodes: the state-pipelines document's own form, and the node graphs of its product.

Every node that writes a state becomes a stage. Its inputs are the patterns of the state nodes before it; the nodes in
between run for each entity.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tidemill.core.errors import ConfigError
from tidemill.pipelines.definition.entity import Entity
from tidemill.pipelines.definition.pattern import Pattern
from tidemill.pipelines.definition.pipeline import Pipeline
from tidemill.pipelines.runner.build import SKIP, BuildError, File
from tidemill.pipelines.stores.database import DatabaseStates
from tidemill.pipelines.workflows.expressions.javascript import is_true
from tidemill.pipelines.workflows.expressions.names import credential_names, masked, with_names
from tidemill.pipelines.workflows.graph import Graph, as_content, concurrency_limit, content_of, read_groups
from tidemill.pipelines.workflows.nodes import NODE_TYPES, TRANSFORMS, Node, NodeError, find_type

_HOLE = re.compile(r"\{\{\s*\$(?:\.([\w-]+)|\[\s*['\"]([^'\"]+)['\"]\s*\])\.([\w.]+)\s*\}\}")
_VARIABLE = re.compile(r"\{(?!\{)([A-Za-z_][\w.]*)(?::[a-z]+)?\}(?!\})")
_SCANS = ("state_scan", "state_trigger", "state_list")
_KEYS = ("state_check", "state_gate")
_UNSAFE = re.compile(r"[^\w.-]")


def read_wired(data: Mapping[str, Any], graph: Graph, name: str, notes: list[str]) -> Pipeline:
    """The pipeline that a graph describes."""
    return wire(data, graph, name, notes).pipeline


def wire(data: Mapping[str, Any], graph: Graph, name: str, notes: list[str]) -> Wiring:
    """The same, with the pattern of each node."""
    settings = data.get("settings") or {}
    triggers = [node for node in graph.nodes.values() if node.type in _SCANS]
    root = data.get("stateRoot") or settings.get("dataDirectory")
    for node in triggers:
        own = node.data.get("state_root")
        if own and Path(str(own)) != Path(str(root := root or own)):
            raise NodeError(
                f"node {node.name!r}, field 'state_root': all states of a file are in one folder, and this is {root!r}"
            )
    intervals = [node.data["scan_interval"] for node in triggers if node.data.get("scan_interval")]
    interval = data.get("scanInterval") or min(intervals, key=float, default=60)
    root = check_root(root or ".")
    pipeline = Pipeline(name, root=root, scan_interval=interval, store=read_store(data, root))
    wiring = Wiring(graph, pipeline, notes, read_groups(data))
    wiring.declare()
    if not pipeline.stages:
        raise ConfigError("no node of this pipeline writes a state: it needs a state_transform or a state_write")
    return wiring


def check_root(root: Any) -> str:
    """The folder of a file's states; refused where it is an expression, which nothing would fill in."""
    if "{{" in str(root):
        raise ConfigError(f"the folder of the states, {root!r}, cannot be an expression: write its path")
    return str(root)


def read_store(data: Mapping[str, Any], root: str | None = None) -> DatabaseStates | None:
    """The state store that a file requests, if not files."""
    store = data.get("stateStore") or "filesystem"
    if store not in ("filesystem", "database"):
        raise ConfigError(f"stateStore {store!r} is neither filesystem nor database")
    return DatabaseStates(root or str(data.get("stateRoot") or ".")) if store == "database" else None


class Wiring:
    """Resolves the pattern of each node."""

    def __init__(self, graph: Graph, pipeline: Pipeline, notes: list[str], groups: Mapping[str, int]) -> None:
        self.graph = graph
        self.groups = groups  # how many builds of each group may run at once
        self.pipeline = pipeline
        self.notes = notes
        self.patterns: dict[str, str] = {}  # by the node's name

    def declare(self) -> None:
        """Turn every node that writes a state into a stage."""
        order = self.graph.order()
        for node in order:
            if node.type in _SCANS:
                self.patterns[node.name] = self._scanned(node)
        for node in order:
            if node.type in ("state_read", *_KEYS):
                self.patterns[node.name] = self._pattern(node, "pattern", "path", "input", "stateType")
            elif node.type == "state_transform":
                self._transform(node)
            elif node.type == "state_write":
                self._write(node)
            elif node.type == "state_clear_failure":
                self.notes.append(f"node {node.name!r}: failures are forgotten when a state is built; it does nothing")
            elif node.type not in _SCANS:
                find_type(node)
        self._declare_actions(order)

    def _scanned(self, node: Node) -> str:
        if "pattern" in node.data:
            return _checked(node, "pattern", str(node.data["pattern"]))
        kind = node.data.get("stateType")
        if kind is None:
            raise NodeError(f"node {node.name!r}: a {node.type} has a pattern or a stateType")
        condition = node.data.get("filter")
        if condition and not is_true(str(condition), {"codeHash": "now"}, currentCodeHash="now"):
            raise NodeError(f"node {node.name!r}, field 'filter': {condition!r} is not understood")
        return self.patterns.get(str(kind)) or f"{kind}/{{id}}"

    def _root(self, node: Node) -> str:
        """The scan that a node's entity comes from."""
        above = [each for each in self.graph.above(node.id) if each.type in _SCANS]
        if not above:
            raise NodeError(f"node {node.name!r}: no state_scan or state_trigger leads to it, so it has no entity")
        return above[0].name

    def _pattern(self, node: Node, *fields: str) -> str:
        """A field as a pattern: `{{$.dates.path}}` and `{{$.dates.id}}` are resolved."""
        field = next((each for each in fields if node.data.get(each)), None)
        if field is None:
            raise NodeError(f"node {node.name!r}: field {fields[0]!r} is missing")
        text = str(node.data[field])
        if field == "stateType":
            return f"{text}/{self._hole(self._root(node), 'id', node, field)}"
        resolved = _HOLE.sub(lambda hole: self._resolved(node, field, hole[1] or hole[2], hole[3]), text)
        if "{{" in resolved:
            raise NodeError(
                f"node {node.name!r}, field {field!r}: {text!r} is not understood; "
                "a path is written with {{$.node.path}}, {{$.node.id}} and {{$.entity.id}}"
            )
        if node.data.get("entity_id") is not None:
            resolved = self._renamed(node, resolved)
        return _checked(node, field, resolved)

    def _resolved(self, node: Node, field: str, name: str, part: str) -> str:
        source = self._root(node) if name == "entity" else name
        if source not in self.patterns:
            raise NodeError(f"node {node.name!r}, field {field!r}: there is no state {name!r} before it")
        if part == "path":
            return self.patterns[source].rstrip("/")
        return self._hole(source, part, node, field)

    def _hole(self, source: str, part: str, node: Node, field: str) -> str:
        found = {match[1]: match[0] for match in _VARIABLE.finditer(self.patterns[source])}
        if part in found:
            return found[part]
        if part in ("id", "entity_id") and len(found) == 1:
            return next(iter(found.values()))
        known = ", ".join(found) or "none"
        raise NodeError(f"node {node.name!r}, field {field!r}: {source} has no variable {part!r}; it has {known}")

    def _renamed(self, node: Node, pattern: str) -> str:
        """A pattern whose entity is given in `entity_id`: its variable is that of the trigger."""
        text = str(node.data["entity_id"])
        hole = _HOLE.fullmatch(text.strip())
        if hole is None:
            raise NodeError(
                f"node {node.name!r}, field 'entity_id': {text!r} is not understood; write {{{{$.trigger.entity_id}}}}"
            )
        source = self._root(node) if hole[1] == "entity" else hole[1] or hole[2]
        wanted = self._hole(source, hole[3], node, "entity_id")
        own = list(_VARIABLE.finditer(pattern))
        if len(own) != 1:
            raise NodeError(f"node {node.name!r}, field 'pattern': {pattern!r} must have one variable, for its entity")
        return pattern[: own[0].start()] + wanted + pattern[own[0].end() :]

    def _inputs(self, node: Node) -> dict[str, str]:
        """The patterns of all state nodes before a node, by their names."""
        found: dict[str, str] = {}
        for each in self.graph.above(node.id)[:-1]:
            if each.type == "state_scan" and self.patterns[each.name].endswith("/"):
                continue  # a directory is not a state
            if each.name in self.patterns and each.type not in ("state_transform", "state_write"):
                found[each.name] = self.patterns[each.name]
        return found

    def _queue(self, node: Node) -> str | None:
        """The queue of its builds: the node's first tag."""
        if len(node.tags) > 1:
            self.notes.append(f"node {node.name!r}: of its tags only the first counts, as the queue of its builds")
        return node.tags[0] if node.tags else None

    def _filter(self, node: Node) -> str | None:
        for each in self.graph.above(node.id):
            if each.type == "state_scan" and each.data.get("filter"):
                return str(each.data["filter"])
        return None

    def _transform(self, node: Node) -> None:
        """Declare a stage that calls a transform by name."""
        wanted = node.data.get("transform")
        if not wanted:
            raise NodeError(f"node {node.name!r}: field 'transform' is missing")
        source, target = self._pattern(node, "input"), self._pattern(node, "output")
        gates = {name: text for name, text in self._inputs(node).items() if self._type(name) in _KEYS}
        extra = {
            key: value
            for key, value in node.data.items()
            if key not in ("input", "output", "transform", "minSize", "min_size")
        }
        function = TRANSFORMS.get(str(wanted))

        async def run(entity: Entity, **inputs: Any) -> Any:
            known = TRANSFORMS.get(str(wanted))
            if known is None:
                raise BuildError(f"there is no transform {wanted!r}: declare it with @transform({wanted!r})")
            given = inputs["source"]
            made = known(entity, given, **extra)
            return as_content(await made if hasattr(made, "__await__") else made)

        self._stage(
            node,
            run,
            input={"source": source, **gates},
            output=target,
            queue=self._queue(node),
            **concurrency_limit([node], self.groups, self.notes),
            min_size=_min_size(node),
            filter=self._filter(node),
            params={"transform": str(wanted), **extra},
            code_of=function or (),
        )
        self.patterns[node.name] = target

    def _write(self, node: Node) -> None:
        """Declare a stage that runs a part of the graph."""
        inputs = self._inputs(node)
        if not inputs:
            raise NodeError(f"node {node.name!r}: no state leads to it")
        target = self._pattern(node, "pattern", "output", "path", "stateType")
        between = [each for each in self.graph.above(node.id)[:-1] if each.name not in self.patterns]
        graph, id = self.graph, node.id
        root = None if self.pipeline.store is not None else self.pipeline.root
        secrets = credential_names(between)

        async def run(entity: Entity, **given: Any) -> Any:
            seeds = {name: self.seed(name, entity, value) for name, value in given.items()}
            for each in graph.above(id)[:-1]:
                if each.name in self.patterns:  # States that it does not read still exist.
                    seeds.setdefault(each.name, self.seed(each.name, entity, None))
            about = {**entity.variables, "id": entity.full_id, "path": entity.output_path}
            async with with_names(secrets, state_root=root) as held:
                items = await graph.run(id, seeds, {"entity": about})
                if not items:  # An `if` passed nothing on: there is nothing to write.
                    note_conditions(entity, between)
                    return SKIP
                return masked(written(items), held)

        def written(items: list[dict[str, Any]]) -> Any:
            if len(items) > 1:
                raise BuildError(f"{len(items)} items reach node {node.name!r}, and a state has one content")
            if "content" in node.data:
                return as_content(content_of(node, items[0]))
            last = graph.into(id)[-1].source
            return as_content(items[0][graph.nodes[last].name])

        functions = tuple(NODE_TYPES[each.type].run for each in between if each.type in NODE_TYPES)
        self._stage(
            node,
            run,
            input=inputs,
            output=target,
            queue=self._queue(node),
            **concurrency_limit([*between, node], self.groups, self.notes),
            min_size=_min_size(node),
            filter=self._filter(node),
            params={each.name: json.dumps([each.type, each.data], sort_keys=True) for each in [*between, node]},
            code_of=functions,
        )
        self.patterns[node.name] = target

    def _declare_actions(self, order: list[Node]) -> None:
        """Declare a stage for the nodes that no state is made of: they run once for each state, and when it changes.

        What they returned is a state of the stage: `actions/NODE/ENTITY.json`.
        """
        sources = {link.source for link in self.graph.links}
        ends = [node for node in order if node.id not in sources and node.name not in self.patterns]
        by_scan: dict[str, list[Node]] = {}
        for node in ends:
            if node.type in NODE_TYPES:
                by_scan.setdefault(self._root(node), []).append(node)
        for scan, last in by_scan.items():
            self._act(scan, last)

    def _act(self, scan: str, last: list[Node]) -> None:
        # What made a state is not run again for an action that follows it.
        states = {node.id for node in self.graph.nodes.values() if node.type in ("state_write", "state_transform")}
        graph = Graph(self.graph.nodes, [link for link in self.graph.links if link.target not in states])
        nodes = list({each.id: each for node in last for each in graph.above(node.id)}.values())
        inputs = {each.name: self.patterns[each.name] for each in nodes if each.name in self.patterns}
        inputs = {name: f"{pattern}*" if pattern.endswith("/") else pattern for name, pattern in inputs.items()}
        root = None if self.pipeline.store is not None else self.pipeline.root
        secrets = credential_names(nodes)
        name = last[0].name
        variables = "/".join(found[0] for found in _VARIABLE.finditer(self.patterns[scan])) or "all"

        async def run(entity: Entity, **given: Any) -> Any:
            seeds = {name: self.seed(name, entity, value) for name, value in given.items()}
            base = {"entity": {**entity.variables, "id": entity.full_id, "path": entity.output_path}, **seeds}
            async with with_names(secrets, state_root=root) as held:
                results = await graph.run_all(nodes, seeds, base)
                done = {each.name: results[each.name] for each in last if results[each.name]}
                if not done:
                    note_conditions(entity, nodes)
                return masked(done, held) if done else SKIP

        self._stage(
            last[0],
            run,
            input=inputs,
            output=f"actions/{_UNSAFE.sub('_', name)}/{variables}.json",
            queue=self._queue(last[0]),
            **concurrency_limit(nodes, self.groups, self.notes),
            filter=self._filter(last[0]),
            code_of=(),
        )

    def _stage(self, node: Node, run: Callable[..., Any], **options: Any) -> None:
        """Declare the stage of a node; an error names the node."""
        try:
            self.pipeline.stage(name=node.name, **options)(run)
        except ConfigError as error:
            raise NodeError(f"node {node.name!r}: {error}") from error

    def seed(self, name: str, entity: Entity, value: Any) -> dict[str, Any]:
        """The output of a state node for the nodes after it."""
        item: dict[str, Any] = {**entity.variables, "id": entity.full_id, "entity_id": entity.full_id}
        pattern = Pattern(self.patterns[name].rstrip("/"))
        if not pattern.has_glob and all(variable in entity.variables for variable in pattern.variables):
            item["path"] = pattern.format(entity.variables)
        if isinstance(value, str):
            item["content"] = value
        elif isinstance(value, list):
            item["files"] = [
                {"path": file.path, "name": file.name, "content": file.text()}
                for file in value
                if isinstance(file, File)
            ]
            item["content"] = "\n".join(file["content"] for file in item["files"])
        return item

    def _type(self, name: str) -> str:
        return next((node.type for node in self.graph.nodes.values() if node.name == name), "")


def _checked(node: Node, field: str, pattern: str) -> str:
    """A pattern; an error names the node and the field."""
    try:
        Pattern(pattern.rstrip("/"))
    except ConfigError as error:
        raise NodeError(f"node {node.name!r}, field {field!r}: {error}") from error
    return pattern


def note_conditions(entity: Entity, nodes: Iterable[Node]) -> None:
    """Say in the log of a build that makes nothing which conditions have let nothing through."""
    conditions = [f"{each.name} ({each.data.get('condition')})" for each in nodes if each.type == "if"]
    if conditions:
        entity.note(f"nothing has passed {' and '.join(conditions)}")


def _min_size(node: Node) -> int:
    """The least size of a node's result; an empty one is a failure unless it is 0."""
    given = node.data.get("minSize", node.data.get("min_size"))
    return 1 if given is None else int(given)
