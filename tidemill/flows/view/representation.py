"""A workflow as a graph of steps, events and resources: for drawing, for tools, for the console.

graph = get_workflow_representation(Article)
graph.nodes, graph.edges                # pydantic models: model_dump() is JSON
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Collection
from typing import Any, Literal

from pydantic import BaseModel, Field
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError

from tidemill.flows.definition.decorators import steps_of
from tidemill.flows.definition.events import Event, HumanResponseEvent, InputRequiredEvent, StopEvent
from tidemill.flows.definition.resource import ConfigResource, ResourceDefinition
from tidemill.flows.definition.signature import EventClass, StepSpec
from tidemill.flows.errors import ResourceFileError

EXTERNAL = "external_step"


class WorkflowNodeBase(BaseModel):
    """The common fields of all nodes."""

    id: str
    label: str
    node_type: str

    def truncated_label(self, max_length: int) -> str:
        """Return the label, shortened to `max_length` with a `*` at its end if it is longer."""
        return self.label if len(self.label) <= max_length else f"{self.label[: max_length - 1]}*"


class WorkflowStepNode(WorkflowNodeBase):
    """A step, or an error handler."""

    node_type: Literal["step"] = "step"  # pyright: ignore[reportIncompatibleVariableOverride]
    description: str | None = None


class WorkflowEventNode(WorkflowNodeBase):
    """An event class: its own name first in `event_types`, then the event classes that it derives from."""

    node_type: Literal["event"] = "event"  # pyright: ignore[reportIncompatibleVariableOverride]
    event_type: str
    event_types: list[str] = Field(default_factory=list)
    event_schema: dict[str, Any] | None = None
    produced_by: list[str] = Field(default_factory=list)

    def is_subclass_of(self, class_name: str) -> bool:
        return class_name in self.event_types


class WorkflowExternalNode(WorkflowNodeBase):
    """The outside of the workflow, which answers requests for input."""

    node_type: Literal["external"] = "external"  # pyright: ignore[reportIncompatibleVariableOverride]


class WorkflowResourceNode(WorkflowNodeBase):
    """A resource that a function creates."""

    node_type: Literal["resource"] = "resource"  # pyright: ignore[reportIncompatibleVariableOverride]
    type_name: str | None = None
    getter_name: str | None = None
    source_file: str | None = None
    source_line: int | None = None
    description: str | None = None


class WorkflowResourceConfigNode(WorkflowNodeBase):
    """A resource that is read from a file."""

    node_type: Literal["resource_config"] = "resource_config"  # pyright: ignore[reportIncompatibleVariableOverride]
    type_name: str | None = None
    config_file: str | None = None
    path_selector: str | None = None
    config_schema: dict[str, Any] | None = None
    config_value: dict[str, Any] | None = None
    description: str | None = None


class WorkflowGenericNode(WorkflowNodeBase):
    """Any other node, such as one that a tool adds."""

    event_type: str | None = None
    event_types: list[str] | None = None

    def is_subclass_of(self, class_name: str) -> bool:
        return class_name in (self.event_types or ())


WorkflowGraphNode = (
    WorkflowStepNode
    | WorkflowEventNode
    | WorkflowExternalNode
    | WorkflowResourceNode
    | WorkflowResourceConfigNode
    | WorkflowGenericNode
)


class WorkflowGraphEdge(BaseModel):
    """An edge: a step to an event it returns, an event to a step that takes it, or a step to a resource it needs."""

    source: str
    target: str
    label: str | None = None


class WorkflowGraph(BaseModel):
    """The whole graph."""

    name: str
    nodes: list[WorkflowGraphNode] = Field(default_factory=list)
    edges: list[WorkflowGraphEdge] = Field(default_factory=list)
    description: str | None = None

    def filter_by_node_type(self, *node_types: str) -> WorkflowGraph:
        """Return the graph without the nodes of these types; edges through them connect their neighbours.

        An edge that goes through removed nodes has the label of the first of them.
        """
        gone = {node.id: node.label for node in self.nodes if node.node_type in node_types}
        behind: dict[str, list[WorkflowGraphEdge]] = {}
        for edge in self.edges:
            behind.setdefault(edge.source, []).append(edge)
        edges: dict[tuple[str, str], WorkflowGraphEdge] = {}
        for edge in self.edges:
            if edge.source not in gone:
                label = gone.get(edge.target, edge.label)
                for target in _targets(edge, gone, behind):
                    edges.setdefault(
                        (edge.source, target), WorkflowGraphEdge(source=edge.source, target=target, label=label)
                    )
        nodes = [node for node in self.nodes if node.id not in gone]
        return WorkflowGraph(name=self.name, nodes=nodes, edges=list(edges.values()), description=self.description)


def get_workflow_representation(workflow: Any) -> WorkflowGraph:
    """Return the graph of a workflow class or instance."""
    cls = workflow if isinstance(workflow, type) else type(workflow)
    steps = steps_of(cls)
    nodes: dict[str, Any] = {}
    edges: list[WorkflowGraphEdge] = []
    kinds = dict.fromkeys(kind for spec in steps.values() for kind in (*spec.accepted_events, *spec.return_types))
    for spec in steps.values():
        nodes[spec.name] = WorkflowStepNode(id=spec.name, label=spec.name, description=inspect.getdoc(spec.function))
        for kind in spec.accepted_events:
            nodes.setdefault(kind.__name__, _event_node(kind, steps.values()))
        for kind in kinds:
            if kind in spec.accepted_events or (spec.accepts(kind) and not issubclass(kind, StopEvent)):
                edges.append(WorkflowGraphEdge(source=kind.__name__, target=spec.name))
        for kind in spec.return_types:
            nodes.setdefault(kind.__name__, _event_node(kind, steps.values()))
            edges.append(WorkflowGraphEdge(source=spec.name, target=kind.__name__))
        for definition in spec.resources:
            _add_resource(definition, spec.name, nodes, edges)
    _add_outside(steps.values(), nodes, edges)
    own_words = cls.__doc__ and inspect.cleandoc(cls.__doc__)
    return WorkflowGraph(name=cls.__name__, nodes=list(nodes.values()), edges=edges, description=own_words or None)


def _targets(
    edge: WorkflowGraphEdge, gone: Collection[str], behind: dict[str, list[WorkflowGraphEdge]]
) -> dict[str, None]:
    found: dict[str, None] = {}
    seen: set[str] = set()
    waiting = [edge.target]
    while waiting:
        target = waiting.pop(0)
        if target not in gone:
            found[target] = None
        elif target not in seen:
            seen.add(target)
            waiting.extend(one.target for one in behind.get(target, ()))
    return found


def _event_node(kind: EventClass, steps: Collection[StepSpec]) -> WorkflowEventNode:
    bases = [base.__name__ for base in kind.__mro__ if issubclass(base, Event) and base is not Event]
    return WorkflowEventNode(
        id=kind.__name__,
        label=kind.__name__,
        event_type=kind.__name__,
        event_types=bases or [kind.__name__],
        event_schema=_schema(kind),
        produced_by=sorted(spec.name for spec in steps if kind in spec.return_types),
    )


def _schema(kind: type[BaseModel]) -> dict[str, Any] | None:
    """Return the JSON Schema of a model; None if a field has none."""
    try:
        return kind.model_json_schema()
    except (PydanticInvalidForJsonSchema, PydanticSchemaGenerationError):
        return None


def _add_resource(
    definition: ResourceDefinition, needed_by: str, nodes: dict[str, Any], edges: list[WorkflowGraphEdge]
) -> None:
    """Add a resource and its dependencies to the graph."""
    resource = definition.resource
    kind = getattr(definition.type_annotation, "__name__", str(definition.type_annotation))
    number = f"resource_{hashlib.sha256(repr((resource.name, kind)).encode()).hexdigest()[:12]}"
    edges.append(WorkflowGraphEdge(source=needed_by, target=number, label=definition.name))
    if number in nodes:
        return
    if isinstance(resource, ConfigResource):
        nodes[number] = _config_node(number, kind, resource)
    else:
        nodes[number] = _factory_node(number, kind, resource.factory)
    for inner in resource.dependencies():
        _add_resource(inner, number, nodes, edges)


def _factory_node(number: str, kind: str, factory: Callable[..., Any]) -> WorkflowResourceNode:
    code = getattr(inspect.unwrap(factory), "__code__", None)
    return WorkflowResourceNode(
        id=number,
        label=kind,
        type_name=kind,
        getter_name=getattr(factory, "__name__", None),
        source_file=code.co_filename if code else None,
        source_line=code.co_firstlineno if code else None,
        description=inspect.getdoc(factory),
    )


def _config_node(number: str, kind: str, resource: ConfigResource) -> WorkflowResourceConfigNode:
    try:
        value = resource.load().model_dump(mode="json")
    except (ResourceFileError, ValueError):
        value = None  # The workflow can be drawn even if the file does not exist yet.
    return WorkflowResourceConfigNode(
        id=number,
        label=resource.label or kind,
        type_name=kind,
        config_file=resource.config_file,
        path_selector=resource.path_selector,
        config_schema=_schema(resource.model) if hasattr(resource.model, "model_json_schema") else None,
        config_value=value,
        description=resource.description,
    )


def _add_outside(steps: Collection[StepSpec], nodes: dict[str, Any], edges: list[WorkflowGraphEdge]) -> None:
    """Add the outside, which receives requests for input and sends answers."""
    asked = {kind for spec in steps for kind in spec.return_types if issubclass(kind, InputRequiredEvent)}
    answers = {kind for spec in steps for kind in spec.accepted_events if issubclass(kind, HumanResponseEvent)}
    if not asked and not answers:
        return
    nodes[EXTERNAL] = WorkflowExternalNode(id=EXTERNAL, label=EXTERNAL)
    names = sorted(kind.__name__ for kind in asked)
    edges.extend(WorkflowGraphEdge(source=name, target=EXTERNAL) for name in names)
    names = sorted(kind.__name__ for kind in answers)
    edges.extend(WorkflowGraphEdge(source=EXTERNAL, target=name) for name in names)
