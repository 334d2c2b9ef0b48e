"""Pictures of a workflow and of one run of it, as Mermaid text; of a workflow also as SVG.

print(draw_workflow(Article))
events = [event async for event in handler.stream_events(expose_internal=True)]
print(draw_run(events))
Path("article.svg").write_text(draw_workflow_svg(Article))
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tidemill.core.picture import Box, quoted, svg
from tidemill.flows.events import StepState, StepStateChanged, StopEvent
from tidemill.flows.representation import WorkflowGraph, get_workflow_representation

_SHAPES = {
    "step": ("[", "]"),
    "event": ("([", "])"),
    "external": ("{{", "}}"),
    "resource": ("[(", ")]"),
    "resource_config": ("[(", ")]"),
}

_FILLS = {"step": "#dbeafe", "event": "#fef3c7", "external": "#fee2e2"}


def draw_workflow(workflow: Any) -> str:
    """All ways that events can take through a workflow, as a Mermaid flowchart."""
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
    """The same as an SVG picture: a row for each distance from where a run begins."""
    graph = get_workflow_representation(workflow)
    boxes = {
        node.id: Box(
            node.id,
            node.truncated_label(24),
            _FILLS.get(node.node_type, "#dcfce7"),
            pill=node.node_type != "step",
        )
        for node in graph.nodes
    }
    rows = [[boxes[name] for name in row] for row in _rows(graph)]
    return svg(rows, ((edge.source, edge.target) for edge in graph.edges))


def draw_run(events: Iterable[Any]) -> str:
    """What happened in one run, from its stream with internal events: each attempt at a step, and what led to it."""
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
    """The nodes by their distance from those that nothing leads to; what only loops lead to comes last."""
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


def _class_name(told: str) -> str:
    """`Draft`, from `<class 'shop.Draft'>`."""
    return told.removeprefix("<class '").removesuffix("'>").rpartition(".")[2]
