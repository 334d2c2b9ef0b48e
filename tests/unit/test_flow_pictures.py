"""A workflow as a graph, as a picture, and under test."""

from __future__ import annotations

from typing import Annotated
from xml.etree import ElementTree

from tidemill.flows import Context, Workflow, step
from tidemill.flows.drawing import draw_run, draw_workflow, draw_workflow_svg
from tidemill.flows.events import Event, HumanResponseEvent, InputRequiredEvent, StartEvent, StepStateChanged, StopEvent
from tidemill.flows.representation import get_workflow_representation
from tidemill.flows.resource import Resource
from tidemill.flows.testing import WorkflowTestRunner


class Draft(Event):
    """A text."""

    text: str = ""


class Question(InputRequiredEvent):
    pass


def get_client() -> int:
    """The client."""
    return 1


class Writing(Workflow):
    """Writes."""

    @step
    async def write(self, ctx: Context, ev: StartEvent, client: Annotated[int, Resource(get_client)]) -> Draft:
        """Write it."""
        ctx.write_event_to_stream(Draft(text="shown"))
        return Draft(text="tides")

    @step
    async def review(self, ev: Draft) -> Question | StopEvent:
        return StopEvent(result=ev.text)

    @step
    async def hear(self, ev: HumanResponseEvent) -> StopEvent:
        return StopEvent()


def test_a_workflow_is_a_graph_of_steps_events_and_resources() -> None:
    graph = get_workflow_representation(Writing)
    assert (graph.name, graph.description) == ("Writing", "Writes.")
    nodes = {node.id: node for node in graph.nodes}
    resource = next(node for node in graph.nodes if node.node_type == "resource")
    assert set(nodes) == {
        *("write", "review", "hear", "StartEvent", "Draft", "Question", "StopEvent", "HumanResponseEvent"),
        *("external_step", resource.id),
    }
    assert nodes["write"].model_dump() == {
        "id": "write",
        "label": "write",
        "node_type": "step",
        "description": "Write it.",
    }
    draft = nodes["Draft"].model_dump()
    assert (draft["event_types"], draft["produced_by"]) == (["Draft"], ["write"])
    assert draft["event_schema"]["properties"]["text"]["type"] == "string"
    assert nodes["Question"].model_dump()["event_types"] == ["Question", "InputRequiredEvent"]
    assert resource.model_dump()["getter_name"] == "get_client"
    edges = {(edge.source, edge.target, edge.label) for edge in graph.edges}
    assert edges == {
        ("StartEvent", "write", None),
        ("write", "Draft", None),
        ("write", resource.id, "client"),
        ("Draft", "review", None),
        ("review", "Question", None),
        ("review", "StopEvent", None),
        ("Question", "external_step", None),
        ("external_step", "HumanResponseEvent", None),
        ("HumanResponseEvent", "hear", None),
        ("hear", "StopEvent", None),
    }
    assert get_workflow_representation(Writing()) == graph


def test_a_graph_without_its_events_has_arrows_from_step_to_step() -> None:
    graph = get_workflow_representation(Writing).filter_by_node_type("event", "resource", "external")
    assert {node.id for node in graph.nodes} == {"write", "review", "hear"}
    assert {(edge.source, edge.target) for edge in graph.edges} == {("write", "review"), ("review", "hear")}


def test_a_workflow_can_be_drawn() -> None:
    text = draw_workflow(Writing)
    assert text.splitlines()[0] == "flowchart TD"
    assert '["write"]' in text
    assert '(["Draft"])' in text
    assert '-.->|"client"|' in text


def test_a_workflow_can_be_drawn_as_svg() -> None:
    picture = ElementTree.fromstring(draw_workflow_svg(Writing))
    tags = [element.tag.rpartition("}")[2] for element in picture]
    graph = get_workflow_representation(Writing)
    assert tags.count("rect") == len(graph.nodes)
    assert tags.count("path") == len(graph.edges)


async def test_a_run_can_be_drawn() -> None:
    handler = Writing().run()
    text = draw_run([event async for event in handler.stream_events(expose_internal=True)])
    assert '["write #0"]' in text
    assert 'n0 -->|"Draft"| n2' in text
    assert text.splitlines()[-1].strip() == "n2 --> n3"


async def test_the_test_runner_keeps_everything_that_was_shown() -> None:
    result = await WorkflowTestRunner(Writing()).run(StartEvent())
    assert result.result == "tides"
    assert result.event_types == {StepStateChanged: 4, Draft: 1, StopEvent: 1}
    assert isinstance(result.collected[-1], StopEvent)
    assert result.ctx is not None


async def test_the_test_runner_leaves_out_what_it_is_told_to() -> None:
    runner = WorkflowTestRunner(Writing())
    result = await runner.run(exclude_events=[Draft], expose_internal=False)
    assert result.event_types == {StopEvent: 1}
    assert [type(event) for event in result.collected] == [StopEvent]
