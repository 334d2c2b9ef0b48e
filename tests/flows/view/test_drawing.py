"""A workflow as a graph, as a picture, and under test."""

from __future__ import annotations

import sys
from io import BytesIO
from typing import Annotated, Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, strategies as st
from PIL import Image

from tidemill.core.drawing.layout import lay_out
from tidemill.core.errors import ConfigError
from tidemill.flows import Context, Workflow, step
from tidemill.flows.definition.events import (
    Event,
    HumanResponseEvent,
    InputRequiredEvent,
    StartEvent,
    StepState,
    StepStateChanged,
    StopEvent,
)
from tidemill.flows.definition.resource import Resource
from tidemill.flows.testing import WorkflowTestRunner
from tidemill.flows.view.drawing import (
    MOST_ATTEMPTS,
    draw_run,
    draw_run_png,
    draw_run_svg,
    draw_workflow,
    draw_workflow_png,
    draw_workflow_svg,
)
from tidemill.flows.view.representation import get_workflow_representation


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


def read_png(data: bytes) -> Any:
    image = Image.open(BytesIO(data))
    assert image.format == "PNG"
    return image.convert("RGB")


def test_a_workflow_can_be_drawn_as_png() -> None:
    image = read_png(draw_workflow_png(Writing))
    picture = ElementTree.fromstring(draw_workflow_svg(Writing))
    assert image.width == pytest.approx(2 * int(picture.attrib["width"]), abs=2)
    colours = {colour for _, colour in image.getcolors(maxcolors=1 << 24)}
    assert {(219, 234, 254), (254, 243, 199), (254, 226, 226)} <= colours, "steps, events, the outside"
    assert read_png(draw_workflow_png(Writing, scale=1.0)).width == pytest.approx(image.width / 2, abs=1)


async def test_a_run_can_be_drawn_as_svg_and_png() -> None:
    handler = Writing().run()
    events = [event async for event in handler.stream_events(expose_internal=True)]
    texts = [element.text for element in ElementTree.fromstring(draw_run_svg(events)).iter() if element.text]
    assert sorted(text for text in texts if text.strip()) == [
        *("Draft", "StartEvent", "StopEvent", "review #0", "write #0")
    ]
    assert read_png(draw_run_png(events)).height > 400


def test_a_long_run_is_drawn_up_to_a_point() -> None:
    events = [
        StepStateChanged(name="work", step_state=state, worker_id="0", input_event_name="Draft")
        for _ in range(MOST_ATTEMPTS + 7)
        for state in (StepState.RUNNING, StepState.NOT_RUNNING)
    ]
    assert "and 7 more attempts" in draw_run_svg(events)


def test_without_its_library_a_png_is_refused_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ConfigError, match=r"pip install 'tidemill\[png\]'"):
        draw_workflow_png(Writing)


names = st.sampled_from("abcdefgh")


@given(st.lists(st.tuples(names, names), max_size=20))
def test_boxes_never_overlap_and_arrows_are_attached(arrows: list[tuple[str, str]]) -> None:
    widths = {name: 84.0 + 20 * index for index, name in enumerate("abcdefgh")}
    layout = lay_out(widths, arrows)
    places = list(layout.places.values())
    for index, one in enumerate(places):
        assert one.width / 2 <= one.x <= layout.width - one.width / 2
        for other in places[index + 1 :]:
            assert abs(one.y - other.y) >= one.height or abs(one.x - other.x) >= (one.width + other.width) / 2
    for (source, target), way in zip(arrows, layout.ways, strict=True):
        for name, (x, y) in ((source, way[0]), (target, way[-1])):
            place = layout.places[name]
            assert abs(x - place.x) <= place.width / 2 + 0.01
            assert abs(y - place.y) <= place.height / 2 + 0.01


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
