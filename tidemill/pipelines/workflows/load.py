"""Loads workflow files: the three JSON forms of pipelines, and workflows that run once.

    load_workflow("auto-blog.json").pipelines      pipelines, to be passed to `app.pipeline(...)`
    load_workflow("nightly.json").triggers         workflows that an event or a schedule runs once
    load_workflow("auto-blog.json").notes          unknown fields of the file

A file has `stages`, or `nodes` and `connections`. Nodes about states (`state_scan`, `state_transform`, ...) make it a
pipeline: every node that writes a state becomes a stage, with all its predecessors.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from tidemill.core.errors import ConfigError, TidemillError
from tidemill.core.schedule import parse_schedule
from tidemill.core.web.webhook_signature import WebhookSignature, read_signature
from tidemill.pipelines.definition.pipeline import Pipeline
from tidemill.pipelines.workflows.graph import Graph, concurrency_limit, note_unknown, read_graph, read_groups
from tidemill.pipelines.workflows.node_graph import read_wired
from tidemill.pipelines.workflows.nodes import NodeError, find_type, run_node
from tidemill.pipelines.workflows.stage_list import read_stages

_STARTS = ("start", "scheduled", "webhook")
FILE_FIELDS = {
    "mode", "stateStore", "stateRoot", "scanInterval", "nodes", "connections", "settings", "name", "stages",
    "maxConcurrentEntities", "retryPolicy", "id", "description", "version",
}  # fmt: skip


class TriggerWorkflow(msgspec.Struct):
    """A workflow that runs once for each event."""

    name: str
    graph: Graph
    schedules: list[Any] = []
    concurrency_key: str | None = None
    """Its runs share the limit of this key with builds of pipelines."""
    max_concurrency: int = 1
    signature: WebhookSignature | None = None
    """How the senders of its webhook sign; without it, only callers with a token can run it."""

    @property
    def starts(self) -> list[str]:
        return [node.id for node in self.graph.nodes.values() if node.type in _STARTS or not self.graph.into(node.id)]

    @property
    def admin_nodes(self) -> list[str]:
        """The nodes that only an admin may run: a caller needs the role of the most powerful node."""
        return [node.name for node in self.graph.nodes.values() if find_type(node).role == "admin"]

    async def run(self, payload: Any = None) -> dict[str, Any]:
        """Run it once; returns the results of each node by name: a list with an entry for each item."""
        graph, results = self.graph, {}
        outputs: dict[str, list[tuple[dict[str, Any], Any]]] = {}
        done: set[str] = set()
        for id in graph.nodes:
            for node in graph.above(id):
                if node.id in done:
                    continue
                done.add(node.id)
                items = graph.arriving(node, outputs, {"payload": payload})
                outputs[node.id] = await run_node(node, items) if items else []
                results[node.name] = [output for _, output in outputs[node.id]]
        return results


class Loaded(msgspec.Struct):
    """The declarations of a file."""

    pipelines: list[Pipeline] = []
    triggers: list[TriggerWorkflow] = []
    notes: list[str] = []


def load_workflow(path: str | Path) -> Loaded:
    """The pipelines and workflows in a file, or in all files of a folder."""
    path = Path(path)
    if path.is_dir():
        return merge_loaded(load_workflow(file) for file in sorted(path.glob("*.json")))
    return load_data(read_json(path), path)


def load_data(data: Any, path: Path) -> Loaded:
    """The same from a decoded document; errors name the file."""
    try:
        return parse_workflow(data, path.stem)
    except TidemillError as error:
        raise ConfigError(f"{path}: {error}") from error


def merge_loaded(loaded: Iterable[Loaded]) -> Loaded:
    """The declarations of several files."""
    every = list(loaded)
    return Loaded(
        [pipeline for one in every for pipeline in one.pipelines],
        [trigger for one in every for trigger in one.triggers],
        [note for one in every for note in one.notes],
    )


def read_json(path: Path) -> Any:
    """The decoded JSON of a workflow file."""
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the workflow file {path} cannot be read: {error}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error


def form_of(data: Mapping[str, Any]) -> Literal["graph", "stages"] | None:
    """The form of a workflow; None for something else, such as a dag."""
    if "stages" in data:
        return "stages"
    nodes = data.get("nodes")
    entries = [each for each in nodes if isinstance(each, Mapping)] if isinstance(nodes, list) else []
    if any("typeId" in each for each in entries):
        return "graph"
    if any(key in each for each in entries for key in ("task", "prompt", "dag")):
        return None
    return "graph" if any(key in data for key in ("connections", "mode", "stateRoot", "settings")) else None


def parse_workflow(data: Any, name: str) -> Loaded:
    """The same from a decoded document; `name` is the default name."""
    if not isinstance(data, Mapping):
        raise ConfigError("a workflow is an object with nodes, or with stages")
    notes: list[str] = []
    note_unknown(data, FILE_FIELDS, "the file", notes)
    called = str(data.get("name") or name)
    mode = data.get("mode") or ("pipeline" if "stages" in data or has_states(data) else "trigger")
    if mode not in ("pipeline", "trigger"):
        raise ConfigError(f"mode {mode!r} is neither pipeline nor trigger")
    if "stages" in data:
        return Loaded([read_stages(data, called, notes)], [], notes)
    graph = read_graph(data, notes)
    if not graph.nodes:
        raise ConfigError("a workflow has nodes, or stages; this has neither")
    if mode == "pipeline":
        return Loaded([read_wired(data, graph, called, notes)], [], notes)
    for node in graph.nodes.values():
        find_type(node)
    limit = concurrency_limit(graph.nodes.values(), read_groups(data), notes)
    return Loaded([], [TriggerWorkflow(called, graph, _schedules(graph), signature=_signature(graph), **limit)], notes)


def has_states(data: Mapping[str, Any]) -> bool:
    """Whether the nodes of a file without a mode make it a pipeline."""
    types = {str(node.get("typeId")) for node in data.get("nodes") or [] if isinstance(node, Mapping)}
    return bool(types & {"state_scan", "state_trigger", "state_transform"})


def _signature(graph: Graph) -> WebhookSignature | None:
    found = None
    for node in graph.nodes.values():
        if node.type != "webhook" or node.data.get("signature") is None:
            continue
        if found is not None:
            raise NodeError(f"node {node.name!r}, field 'signature': another node has one already")
        try:
            found = read_signature(node.data["signature"])
        except ConfigError as error:
            raise NodeError(f"node {node.name!r}, field 'signature': {error}") from error
    return found


def _schedules(graph: Graph) -> list[Any]:
    found = []
    for node in graph.nodes.values():
        if node.type != "scheduled":
            continue
        data = node.data
        cron = data.get("cron")
        every = data.get("interval") or data.get("every")
        if cron is None and every is None:
            raise NodeError(f"node {node.name!r}: a schedule has a cron or an interval")
        unit = {"seconds": "s", "minutes": "m", "hours": "h", "days": "d"}.get(str(data.get("unit") or "seconds"), "s")
        text = every if isinstance(every, str) and not every.isdigit() else None if every is None else f"{every}{unit}"
        found.append(parse_schedule(cron=cron, every=text, timezone=str(data.get("timezone") or "UTC")))
    return found
