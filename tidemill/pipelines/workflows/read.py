"""What a decoded workflow document declares: pipelines, and workflows that run once for each event.

A document has `stages`, or `nodes` and `connections`. Nodes about states (`state_scan`, `state_transform`, ...) make
it a pipeline: every node that writes a state becomes a stage, with all its predecessors. `load` checks documents first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from tidemill.core.did_you_mean import did_you_mean
from tidemill.core.errors import ConfigError
from tidemill.core.schedule import Schedule, parse_schedule
from tidemill.core.web.webhook_signature import WebhookSignature, read_signature
from tidemill.pipelines.definition.pipeline import Pipeline
from tidemill.pipelines.workflows.expressions.names import credential_names, masked, with_names
from tidemill.pipelines.workflows.graph import Graph, concurrency_limit, read_graph, read_groups
from tidemill.pipelines.workflows.node_graph import read_wired
from tidemill.pipelines.workflows.nodes import NODE_TYPES, Node, NodeError, find_type
from tidemill.pipelines.workflows.questions import AnswerAtOnce, AskLater, Progress
from tidemill.pipelines.workflows.stage_list import read_stages

_STARTS = ("start", "scheduled", "webhook")


class TriggerWorkflow(msgspec.Struct):
    """A workflow that runs once for each event."""

    name: str
    graph: Graph
    schedules: list[Schedule] = []
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
        nodes = self.graph.nodes.values()
        return [node.name for node in nodes if node.type in NODE_TYPES and NODE_TYPES[node.type].role == "admin"]

    async def run(
        self, payload: Any = None, *, until: str | None = None, answer: AnswerAtOnce | None = None
    ) -> dict[str, Any]:
        """Run it once, or only what leads to the node `until`; returns the results of each node by name.

        A result is a list with an entry for each item. `answer` answers the questions of its nodes; without it, a node
        that asks a person fails.
        """
        progress = Progress()
        while True:
            results, _ = await self._advance(payload, until, None if answer is None else progress)
            if answer is None or not progress.asked:
                return results
            progress.take_answers(await answer(progress.questions))

    async def run_until_asked(
        self, payload: Any, until: str | None, resumed: Mapping[str, Any] | None, *, ask: AskLater, task: str, key: str
    ) -> dict[str, Any]:
        """Run it, or go on with what `ask` was given, until it is done or asks people; then a job of `task` goes on."""
        progress = Progress()
        if resumed is not None:
            progress = msgspec.convert(resumed["progress"], Progress)
            progress.take_answers(resumed["answers"])
        results, stored = await self._advance(payload, until, progress)
        if not progress.asked:
            return results
        args = {"payload": payload, "until": until}
        run = await ask(self.name, progress.questions, task, args, stored, key)
        asking = {self.graph.nodes[id].name: [{"asked": f"r{run}"}] * len(each) for id, each in progress.asked.items()}
        return {**results, **asking}

    async def _advance(self, payload: Any, until: str | None, progress: Progress | None) -> tuple[dict[str, Any], Any]:
        """Run the nodes whose inputs are known; returns their results and the progress as JSON, without secrets."""
        nodes = self.graph.order() if until is None else self.graph.above(self._id_of(until))
        async with with_names(credential_names(self.graph.nodes.values())) as held:
            results = await self.graph.run_all(nodes, {}, {"payload": payload}, progress=progress)
            return masked(results, held), masked(msgspec.to_builtins(progress), held)

    def _id_of(self, name: str) -> str:
        known = {node.name: id for id, node in self.graph.nodes.items()}
        if name not in known:
            raise ConfigError(f"workflow {self.name} has no node {name!r}{did_you_mean(name, known)}")
        return known[name]


class Loaded(msgspec.Struct):
    """The declarations of a file."""

    pipelines: list[Pipeline] = []
    triggers: list[TriggerWorkflow] = []
    notes: list[str] = []


def merge_loaded(loaded: Iterable[Loaded]) -> Loaded:
    """The declarations of several files."""
    every = list(loaded)
    return Loaded(
        [pipeline for one in every for pipeline in one.pipelines],
        [trigger for one in every for trigger in one.triggers],
        [note for one in every for note in one.notes],
    )


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


def read_workflow(data: Any, name: str, *, allow_unknown: bool) -> Loaded:
    """The declarations of a document; `name` is the default name. With `allow_unknown`, unknown nodes fail when run."""
    if not isinstance(data, Mapping):
        raise ConfigError("a workflow is an object with nodes, or with stages")
    notes: list[str] = []
    called = str(data.get("name") or name)
    mode = data.get("mode") or ("pipeline" if "stages" in data or has_states(data) else "trigger")
    if mode not in ("pipeline", "trigger"):
        raise ConfigError(f"mode {mode!r} is neither pipeline nor trigger")
    if "stages" in data:
        return Loaded([read_stages(data, called)], [], notes)
    graph = read_graph(data, is_pipeline=mode == "pipeline")
    if not graph.nodes:
        raise ConfigError("a workflow has nodes, or stages; this has neither")
    if mode == "pipeline":
        return Loaded([read_wired(data, graph, called, notes)], [], notes)
    for node in graph.nodes.values():
        if not allow_unknown:
            find_type(node)
        if node.tags:
            notes.append(f"node {node.name!r}: its tags have no effect: they choose the queue of a pipeline's builds")
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


_UNITS = {"seconds": "s", "minutes": "m", "hours": "h", "days": "d"}


def _schedules(graph: Graph) -> list[Schedule]:
    return [_schedule(node) for node in graph.nodes.values() if node.type == "scheduled"]


def _schedule(node: Node) -> Schedule:
    data = node.data
    cron, every = data.get("cron"), data.get("interval")
    every = data.get("every") if every in (None, "") else every
    by_cron = data.get("mode") == "cron" if data.get("mode") else bool(cron) and every in (None, "")
    try:
        if by_cron:
            if not cron:
                raise ConfigError("the mode is cron, and there is no cron")
            return parse_schedule(cron=str(cron), timezone=str(data.get("timezone") or "UTC"))
        every = "5" if every in (None, "") else str(every).strip()
        is_bare = every.replace(".", "", 1).isdigit()
        return parse_schedule(every=f"{every}{_UNITS[str(data.get('unit') or 'minutes')]}" if is_bare else every)
    except (ConfigError, KeyError) as error:
        raise NodeError(f"node {node.name!r}: {error}") from error
