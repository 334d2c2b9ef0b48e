"""A dry run of a pipeline file for one entity: what would be built and why, from which inputs, and its content.

Nothing is built, written or stored. Files are read to fill in expressions; if that is disabled, or a file does not
exist yet, the expressions say what they wait for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from tidemill.core.errors import ConfigError, TidemillError
from tidemill.core.expressions.dry_run import Field
from tidemill.pipelines.definition.entity import Entity
from tidemill.pipelines.definition.pattern import PatternError, derive, entity_id
from tidemill.pipelines.definition.pipeline import Input, Pipeline, Stage, check_order
from tidemill.pipelines.reducer.facts import PipelineFacts, entities_of
from tidemill.pipelines.reducer.plan import BuildStep, make_plan
from tidemill.pipelines.runner.build import File, HeldOutput, StageCaller
from tidemill.pipelines.stores.base import StateStoreError
from tidemill.pipelines.view.pipeline_view import PipelineView
from tidemill.pipelines.workflows.graph import Graph, as_content, read_graph
from tidemill.pipelines.workflows.node_graph import Wiring, wire
from tidemill.pipelines.workflows.nodes import TRANSFORMS, Node
from tidemill.pipelines.workflows.stage_list import read_stages, stage_node, then_node
from tidemill.pipelines.workflows.trials.graph_dry_run import DryRunNode, GraphDryRun, Unknown, dry_run_node, fill_field
from tidemill.store.database import Database

MOST_READ = 256 * 1024
MOST_ENTITIES = 200


class Taken(msgspec.Struct, frozen=True):
    """An input of a stage, and its paths for the entity."""

    name: str
    pattern: str
    paths: list[str]
    missing: list[str]
    """The paths that do not exist yet."""


Verdict = Literal["build", "wait", "fresh", "unknown", "none"]


class StageRun(msgspec.Struct, frozen=True):
    """What would happen to one state."""

    stage: str
    node: str
    entity: str | None
    verdict: Verdict
    why: str
    inputs: list[Taken]
    output: str | None
    nodes: list[DryRunNode]
    content: str | None = None
    error: str | None = None
    """Why its nodes failed, if they were run."""


class DryRun(msgspec.Struct, frozen=True):
    """What would happen to an entity, stage by stage, and some of the existing entities."""

    pipeline: str
    entity: str | None
    entities: list[str]
    looked: bool
    """Whether files were read."""
    stages: list[StageRun]
    problems: list[str]


def read_pipeline(data: Mapping[str, Any], name: str) -> tuple[Pipeline, Wiring | None]:
    """The pipeline in a file, with its wiring if it is a graph."""
    called = str(data.get("name") or name)
    if "stages" in data:
        return read_stages(data, called), None
    wiring = wire(data, read_graph(data, is_pipeline=True), called, [])
    return wiring.pipeline, wiring


async def dry_run(
    data: Mapping[str, Any],
    name: str,
    entity: str | None,
    *,
    database: Database | None,
    is_real: bool = False,
    until: str | None = None,
) -> DryRun:
    """Run a pipeline dry for an entity; without a database, no files are read.

    With `is_real`, the nodes of each stage do their work, up to the first stage that has the node `until`; the states
    are not written.
    """
    pipeline, wiring = read_pipeline(data, name)
    walk = _DryRun(data, pipeline, wiring, None if database is None else PipelineView(database, pipeline), is_real)
    await walk.decide(entity)
    order = walk.order[: walk.index_of(until) + 1] if until is not None else walk.order
    stages = [await walk.stage(stage) for stage in order] if entity is not None else []
    return DryRun(pipeline.name, entity, walk.entities, database is not None, stages, walk.problems)


class _DryRun:
    """One entity on its way through the stages."""

    def __init__(
        self,
        data: Mapping[str, Any],
        pipeline: Pipeline,
        wiring: Wiring | None,
        pipeline_view: PipelineView | None,
        is_real: bool,
    ) -> None:
        self.order = check_order(pipeline.stages.values())
        self.entities: list[str] = []
        self.problems: list[str] = []
        self._is_real = is_real
        self._data = data
        self._wiring = wiring
        self._pipeline_view = pipeline_view
        self._world = PipelineFacts() if pipeline_view is None else pipeline_view.world
        self._steps: dict[str, BuildStep] = {}
        self._about: dict[str, Entity] = {}
        self._made: dict[str, Any] = {}  # by path, what earlier stages would write: contents or Unknown

    async def decide(self, entity: str | None) -> None:
        """Read the current facts, and decide what would be built."""
        if entity is not None:
            self._find_entities(entity)
        pipeline_view = self._pipeline_view
        if pipeline_view is None:
            return
        await pipeline_view.read_all()
        self.problems += pipeline_view.problems[:5]
        self.entities = self._list_entities()
        if entity is None:
            return
        paths = {
            path
            for stage in self.order
            if stage.name in self._about
            for path in (self._output(stage), *(each for _, found in self._inputs(stage) for each in found))
            if path is not None and path in pipeline_view.world.files
        }
        pipeline_view.unknown = paths
        await pipeline_view.read_unknown(store=False)
        only: dict[str, set[str] | None] = {name: {about.full_id} for name, about in self._about.items()}
        plan = make_plan(self.order, pipeline_view.world, pipeline_view.now(), only=only)
        self._steps = {step.stage.name: step for step in plan.steps}
        self.problems += plan.problems[:5]

    def _find_entities(self, wanted: str) -> None:
        """The entity's id in each stage: a month is the entity of a stage that collects its days."""
        known: dict[str, str] = {}
        for stage in self.order:
            try:
                about = stage.entity(wanted)
                if not stage.scatter:
                    stage.output_path(about.variables)  # A person names it: it may be no part of a path.
                known |= about.variables
            except (ConfigError, PatternError):
                values = [derive(each, known) for each in stage.variables]
                if None in values:
                    continue
                about = stage.entity(entity_id([str(each) for each in values]))
            self._about[stage.name] = about
        if not self._about:
            needed = ", ".join(self.order[0].variables) or "no variables"
            raise ConfigError(f"{wanted!r} is not an entity of this pipeline: one has {needed}")

    def _list_entities(self) -> list[str]:
        first = self.order[0]
        found: list[str] = []
        for id, _ in entities_of(
            first, {one.pattern: self._world.matched.get(one.pattern, {}) for one in first.inputs}
        ):
            found.append(id)
            if len(found) >= 20 * MOST_ENTITIES:
                break
        return sorted(found)[-MOST_ENTITIES:]

    def index_of(self, node: str) -> int:
        """The first stage that has this node, or all nodes before it, counted from 0."""
        for at, stage in enumerate(self.order):
            if node == stage.name:
                return at
            if self._wiring is not None and any(
                each.name == node for each in self._wiring.graph.above(self._node_id(stage))
            ):
                return at
        raise ConfigError(f"no stage of this pipeline has the node {node!r}")

    async def stage(self, stage: Stage) -> StageRun:
        """What would happen to the entity in one stage."""
        node = self._node_id(stage)
        about = self._about.get(stage.name)
        if about is None:
            message = f"this stage is about other entities: {', '.join(stage.variables)}"
            return StageRun(stage.name, node, None, "none", message, [], None, [])
        taken = self._inputs(stage)
        verdict, why = self._verdict(stage, about, taken)
        output = self._output(stage)
        values = {one.name: await self._value(one, paths) for one, paths in taken}
        error = None
        if self._is_real:
            nodes: list[DryRunNode] = []
            content, error = await self._run_nodes(stage, about, taken, values)
        else:
            nodes, content = self._dry_run_nodes(stage, about, values)
        if output is not None and (self._is_real or verdict != "fresh"):
            self._made[output] = content
        shown = [
            Taken(one.name, one.pattern.text, paths, [path for path in paths if path not in self._world.files])
            for one, paths in taken
        ]
        text = content if isinstance(content, str) else None
        return StageRun(stage.name, node, about.full_id, verdict, why, shown, output, nodes, text, error)

    async def _run_nodes(
        self, stage: Stage, about: Entity, taken: list[tuple[Input, list[str]]], values: Mapping[str, Any]
    ) -> tuple[Any, str | None]:
        """Call the stage's function for the entity; returns its content, and why it failed."""
        for value in values.values():
            if isinstance(value, Unknown):
                return value, value.why
        held = HeldOutput({path: str(await self._content(path)).encode() for _, paths in taken for path in paths})
        result = await StageCaller(stage).run_async(about, [[File(path, held) for path in paths] for _, paths in taken])
        if result.error is not None:
            return Unknown(f"stage {stage.name} failed"), result.error
        contents = [each if isinstance(each, bytes) else b"".join(each) for each in result.outputs.values()]
        if not contents:
            return Unknown(f"stage {stage.name} writes nothing for this entity"), None
        return "\n".join(each.decode("utf-8", "replace") for each in contents), None

    def _verdict(self, stage: Stage, about: Entity, taken: list[tuple[Input, list[str]]]) -> tuple[Verdict, str]:
        if self._pipeline_view is None:
            return "unknown", "no files were read"
        step = self._steps.get(stage.name)
        if step is not None:
            return ("build" if step.is_build else "wait"), str(step.reason)
        missing = [one.pattern.text for one, paths in taken if not any(path in self._world.files for path in paths)]
        if missing:
            return "none", f"there is nothing to make it from: {', '.join(missing)} has no file for {about.full_id}"
        if stage.filter is not None and about.full_id not in self._world.records[stage.name]:
            return "none", f"the filter {stage.options.filter!r} leaves it out"
        return "fresh", "it is up to date"

    def _output(self, stage: Stage) -> str | None:
        if stage.scatter:
            return None
        try:
            return stage.quick_path(self._about[stage.name].full_id)
        except PatternError:
            return None

    def _inputs(self, stage: Stage) -> list[tuple[Input, list[str]]]:
        """The entity's paths of each input: existing ones, and those that would be built."""
        about = self._about[stage.name]
        return [(one, self._paths(stage, one, about)) for one in stage.inputs]

    def _paths(self, stage: Stage, one: Input, about: Entity) -> list[str]:
        if not one.is_many:
            try:
                return [one.pattern.format({name: about.variables[name] for name in one.pattern.variables})]
            except (KeyError, PatternError):
                return []
        found = []
        for path in [*self._world.matched.get(one.pattern, {}), *self._made]:
            variables = one.pattern.match(path)
            if variables is None or (one.pattern.has_glob and stage.output.values(path) is not None):
                continue
            if all(derive(key, variables) == about.variables.get(key) for key in one.key):
                found.append(path)
        return sorted(set(found))

    async def _value(self, one: Input, paths: list[str]) -> Any:
        """The value that a stage would get for an input."""
        if not one.is_many:
            return await self._content(paths[0]) if paths else Unknown(f"{one.pattern.text} has no file")
        files: list[File] = []
        for path in paths:
            content = await self._content(path)
            if isinstance(content, Unknown):
                return content
            files.append(File(path, HeldOutput({path: str(content).encode()})))
        if not files and self._pipeline_view is None:
            return Unknown(f"the files of {one.pattern.text} were not read")
        return files

    async def _content(self, path: str) -> Any:
        if path in self._made:
            return self._made[path]
        if self._pipeline_view is None:
            return Unknown(f"{path} was not read")
        if path not in self._world.files:
            return Unknown(f"{path} does not exist")
        data = bytearray()
        try:
            async for chunk in self._pipeline_view.states.stream(path):
                data += chunk
                if len(data) > MOST_READ:
                    return Unknown(f"{path} has more than {MOST_READ:,} bytes: a dry run does not read it")
        except (OSError, StateStoreError) as error:
            return Unknown(f"{path} cannot be read: {error}")
        return data.decode("utf-8", "replace")

    # -- contents ---------------------------------------------------------------------------------

    def _node_id(self, stage: Stage) -> str:
        if self._wiring is None:
            return stage.name
        return next(node.id for node in self._wiring.graph.nodes.values() if node.name == stage.name)

    def _dry_run_nodes(self, stage: Stage, about: Entity, values: Mapping[str, Any]) -> tuple[list[DryRunNode], Any]:
        try:
            if self._wiring is None:
                return self._staged(stage, about, values)
            node = next(node for node in self._wiring.graph.nodes.values() if node.name == stage.name)
            if node.type == "state_transform":
                return _by_name(node, str(node.data.get("transform")), stage), _not_built(node.name)
            return self._written(self._wiring, self._wiring.graph, node, about, values)
        except TidemillError as error:
            return [], Unknown(str(error))

    def _staged(self, stage: Stage, about: Entity, values: Mapping[str, Any]) -> tuple[list[DryRunNode], Any]:
        entry = next(each for each in self._data["stages"] if str(each["id"]) == stage.name)
        node = stage_node(entry)
        if node.type in TRANSFORMS:
            return _by_name(node, node.type, stage), _not_built(node.name)
        item: dict[str, Any] = {"entity": _entity_fields(about)}
        for one in stage.inputs:
            value = values[one.name]
            content = value if isinstance(value, str | Unknown) else "\n".join(file.text() for file in value)
            item[one.name] = {"content": content, "path": "" if one.is_many else self._paths(stage, one, about)[0]}
        shown, outputs = dry_run_node(node, [item])
        if node.type == "if" and outputs and len(outputs) == 1:
            following = then_node(entry)
            if outputs[0][1] is False:
                return [shown], Unknown("the condition does not hold: nothing is written")
            if following is None:
                return [shown], _text(item[str(entry["input"])]["content"])
            then, outputs = dry_run_node(following, [item])
            return [shown, then], _text(as_content(outputs[0][1]) if outputs else _not_built(node.name))
        return [shown], _text(as_content(outputs[0][1]) if outputs else _not_built(node.name))

    def _written(
        self, wiring: Wiring, graph: Graph, node: Node, about: Entity, values: Mapping[str, Any]
    ) -> tuple[list[DryRunNode], Any]:
        seeds: dict[str, Any] = {}
        for name, value in values.items():
            unknown = isinstance(value, Unknown)
            seeds[name] = wiring.seed(name, about, None if unknown else value)
            if unknown:
                seeds[name]["content"] = seeds[name]["files"] = value
        for each in graph.above(node.id)[:-1]:
            if each.name in wiring.patterns:
                seeds.setdefault(each.name, wiring.seed(each.name, about, None))
        graph_run = GraphDryRun(graph, {"entity": _entity_fields(about)}, seeds)
        for each in graph.above(node.id)[:-1]:
            graph_run.take(each)
        items = graph_run.arriving(node)
        if not items:
            return graph_run.done, Unknown(f"nothing reaches {node.name}")
        fields = [fill_field(node, name, items[0]) for name in ("content",) if name in node.data]
        own = DryRunNode(node.id, node.name, node.type, fields, len(items), False)
        if len(items) != 1:
            return [*graph_run.done, own], Unknown(f"{len(items)} items reach {node.name}, and a state has one content")
        if fields:
            content = Unknown(fields[0].waits or fields[0].wrong or "") if _is_open(fields[0]) else fields[0].value
        else:
            content = items[0].get(graph.nodes[graph.into(node.id)[-1].source].name)
        return [*graph_run.done, own], _text(as_content(content))


def _is_open(field: Field) -> bool:
    return field.waits is not None or field.wrong is not None


def _by_name(node: Node, wanted: str, stage: Stage) -> list[DryRunNode]:
    """The result for a function of the application, which is not called."""
    known = "not run in a dry run" if wanted in TRANSFORMS else f"the application declares no @transform({wanted!r})"
    about = [Field(name, value) for name, value in node.data.items() if name not in ("input", "output")]
    patterns = [Field("input", stage.inputs[0].pattern.text), Field("output", stage.output.text)]
    return [DryRunNode(node.id, node.name, node.type, [*patterns, *about], 1, False, note=known)]


def _not_built(name: str) -> Unknown:
    return Unknown(f"what {name} makes is not known before it runs")


def _entity_fields(about: Entity) -> dict[str, Any]:
    return {**about.variables, "id": about.full_id, "path": about.output_path}


def _text(value: Any) -> Any:
    """What would be written, as text."""
    if isinstance(value, str | Unknown):
        return value
    return json.dumps(value, ensure_ascii=False, default=repr)
