"""Draw a workflow or one run of it as Mermaid text, as SVG, and as PNG with `tidemill[png]`.

print(draw_workflow(Article))
events = [event async for event in handler.stream_events(expose_internal=True)]
print(draw_run(events))
Path("article.svg").write_text(draw_workflow_svg(Article))
Path("run.png").write_bytes(draw_run_png(events))
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tidemill.core.drawing.render import Box, png, quoted, svg
from tidemill.flows.definition.events import CollectionReleaseEvent, StepState, StepStateChanged, StopEvent
from tidemill.flows.view.representation import WorkflowGraph, get_workflow_representation

_SHAPES = {
    "step": ("[", "]"),
    "event": ("([", "])"),
    "external": ("{{", "}}"),
    "resource": ("[(", ")]"),
    "resource_config": ("[(", ")]"),
}

_FILLS = {"step": "#dbeafe", "event": "#fef3c7", "external": "#fee2e2"}
_ENDS = {"WorkflowFailedEvent": "#fecaca", "WorkflowTimedOutEvent": "#fecaca", "WorkflowCancelledEvent": "#e2e8f0"}

MOST_ATTEMPTS = 200
"""The maximum number of attempts in a drawing of a run: a drawing larger than a screen is of no use."""

Picture = tuple[list[list[Box]], list[tuple[str, str]]]


def draw_workflow(workflow: Any) -> str:
    """Draw all possible paths of events through a workflow as a Mermaid flowchart."""
    graph = get_workflow_representation(workflow)
    numbers = {node.id: f"n{index}" for index, node in enumerate(graph.nodes)}
    lines = ["flowchart TD"]
    for node in graph.nodes:
        left, right = _SHAPES.get(node.node_type, ("[", "]"))
        lines.append(f"    {numbers[node.id]}{left}{quoted(node.label)}{right}")
    for edge in graph.edges:
        arrow = f"-.->|{quoted(edge.label)}|" if edge.label else "-->"
        lines.append(f"    {numbers[edge.source]} {arrow} {numbers[edge.target]}")
    return "\n".join(lines)


def draw_workflow_svg(workflow: Any) -> str:
    """Draw a workflow as SVG."""
    return svg(*_workflow_picture(workflow))


def draw_workflow_png(workflow: Any, *, scale: float = 2.0) -> bytes:
    """Draw a workflow as PNG; needs the extra `tidemill[png]`."""
    return png(*_workflow_picture(workflow), scale=scale)


def draw_run_svg(events: Iterable[Any]) -> str:
    """Draw one run as SVG, from its stream with internal events."""
    return svg(*_run_picture(events))


def draw_run_png(events: Iterable[Any], *, scale: float = 2.0) -> bytes:
    """Draw one run as PNG; needs the extra `tidemill[png]`."""
    return png(*_run_picture(events), scale=scale)


def _workflow_picture(workflow: Any) -> Picture:
    graph = get_workflow_representation(workflow)
    boxes = {
        node.id: Box(
            node.id, node.truncated_label(32), _FILLS.get(node.node_type, "#dcfce7"), pill=node.node_type != "step"
        )
        for node in graph.nodes
    }
    rows = [[boxes[name] for name in row] for row in _rows(graph)]
    return rows, [(edge.source, edge.target) for edge in graph.edges]


def _run_picture(events: Iterable[Any]) -> Picture:
    """Return every attempt as a box and every event between two attempts as a pill. Joins take untaken events."""
    boxes: list[Box] = []
    arrows: list[tuple[str, str]] = []
    made: dict[str, list[str]] = {}  # by class: the pills of events that no attempt has taken
    last: dict[str, str] = {}  # by class: the newest pill
    at_work: dict[tuple[str, str], str] = {}
    attempts = left_out = 0

    def pill(label: str, fill: str = _FILLS["event"]) -> str:
        boxes.append(Box(f"n{len(boxes)}", label, fill, pill=True))
        return boxes[-1].id

    for event in events:
        if isinstance(event, StopEvent):
            name = type(event).__name__
            end = last.get(name) or pill(name)
            boxes[int(end[1:])] = Box(end, name, _ENDS.get(name, "#dcfce7"), pill=True)
        if not isinstance(event, StepStateChanged):
            continue
        key = (event.name, event.worker_id)
        if event.step_state is StepState.RUNNING:
            attempts += 1
            if attempts > MOST_ATTEMPTS:
                left_out += 1
                continue
            boxes.append(Box(f"n{len(boxes)}", f"{event.name} #{event.worker_id}", _FILLS["step"]))
            at_work[key] = boxes[-1].id
            cause = event.input_event_name
            if cause == CollectionReleaseEvent.__name__:
                taken = [each for pills in made.values() for each in pills]
                made.clear()
            else:
                if cause not in last:
                    last[cause] = pill(cause)
                waiting = made.get(cause, [])
                taken = [waiting.pop(0)] if waiting else [last[cause]]
            arrows += [(each, at_work[key]) for each in taken]
        elif event.step_state is StepState.NOT_RUNNING and key in at_work:
            number = at_work.pop(key)
            if event.output_event_name is not None and (name := _class_name(event.output_event_name)) != "NoneType":
                last[name] = pill(name)
                made.setdefault(name, []).append(last[name])
                arrows.append((number, last[name]))
    if left_out:
        pill(f"and {left_out} more attempts", "#f1f5f9")
    return [boxes], arrows


def draw_run(events: Iterable[Any]) -> str:
    """Draw one run as a Mermaid flowchart, from its stream with internal events: each attempt and its cause."""
    lines = ["flowchart TD"]
    arrows: list[str] = []
    made_by: dict[str, str] = {}
    at_work: dict[tuple[str, str], str] = {}
    count = 0
    for event in events:
        if isinstance(event, StepStateChanged):
            key = (event.name, event.worker_id)
            if event.step_state is StepState.RUNNING:
                number = at_work[key] = f"n{count}"
                count += 1
                lines.append(f"    {number}[{quoted(f'{event.name} #{event.worker_id}')}]")
                cause = event.input_event_name
                if cause not in made_by:
                    made_by[cause] = f"n{count}"
                    count += 1
                    lines.append(f"    {made_by[cause]}([{quoted(cause)}])")
                arrows.append(f"    {made_by[cause]} -->|{quoted(cause)}| {number}")
            elif event.step_state is StepState.NOT_RUNNING and key in at_work:
                number = at_work.pop(key)
                if event.output_event_name is not None:
                    made_by[_class_name(event.output_event_name)] = number
        elif isinstance(event, StopEvent):
            name = type(event).__name__
            lines.append(f"    n{count}([{quoted(name)}])")
            if name in made_by:
                arrows.append(f"    {made_by[name]} --> n{count}")
            count += 1
    return "\n".join(lines + arrows)


def _rows(graph: WorkflowGraph) -> list[list[str]]:
    """Return the nodes by their distance from nodes without incoming edges; nodes reached only by loops come last."""
    ahead: dict[str, list[str]] = {}
    for edge in graph.edges:
        ahead.setdefault(edge.source, []).append(edge.target)
    reached = {edge.target for edge in graph.edges}
    row = [node.id for node in graph.nodes if node.id not in reached]
    seen = set(row)
    rows = [row] if row else []
    while row:
        row = list(dict.fromkeys(name for one in row for name in ahead.get(one, ()) if name not in seen))
        seen.update(row)
        if row:
            rows.append(row)
    if left := [node.id for node in graph.nodes if node.id not in seen]:
        rows.append(left)
    return rows


def _class_name(text: str) -> str:
    """`Draft`, from `<class 'shop.Draft'>`."""
    return text.removeprefix("<class '").removesuffix("'>").rpartition(".")[2]
