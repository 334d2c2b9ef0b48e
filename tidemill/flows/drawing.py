"""Pictures of a workflow and of one run of it, as Mermaid text; of a workflow also as SVG.

print(draw_workflow(Article))
events = [event async for event in handler.stream_events(expose_internal=True)]
print(draw_run(events))
Path("article.svg").write_text(draw_workflow_svg(Article))
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from xml.sax.saxutils import escape

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
_WIDTH, _HEIGHT, _ACROSS, _DOWN = 180, 36, 210, 80


def draw_workflow(workflow: Any) -> str:
    """All ways that events can take through a workflow, as a Mermaid flowchart."""
    graph = get_workflow_representation(workflow)
    numbers = {node.id: f"n{index}" for index, node in enumerate(graph.nodes)}
    lines = ["flowchart TD"]
    for node in graph.nodes:
        left, right = _SHAPES.get(node.node_type, ("[", "]"))
        lines.append(f"    {numbers[node.id]}{left}{_quoted(node.label)}{right}")
    for edge in graph.edges:
        arrow = f"-.->|{_quoted(edge.label)}|" if edge.label else "-->"
        lines.append(f"    {numbers[edge.source]} {arrow} {numbers[edge.target]}")
    return "\n".join(lines)


def draw_workflow_svg(workflow: Any) -> str:
    """The same as an SVG picture: a row for each distance from where a run begins."""
    graph = get_workflow_representation(workflow)
    rows = _rows(graph)
    places = {name: (x * _ACROSS + 20, y * _DOWN + 20) for y, row in enumerate(rows) for x, name in enumerate(row)}
    width, height = max(map(len, rows), default=0) * _ACROSS + 20, len(rows) * _DOWN + 20
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        'font-size="13"><defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
        'orient="auto"><path d="M0 0 8 4 0 8z" fill="#64748b"/></marker></defs>'
    ]
    for edge in graph.edges:
        (x1, y1), (x2, y2) = places[edge.source], places[edge.target]
        out, into = (y1 + _HEIGHT, y2) if y2 > y1 else (y1, y2 + _HEIGHT)
        drawn.append(
            f'<line x1="{x1 + _WIDTH // 2}" y1="{out}" x2="{x2 + _WIDTH // 2}" y2="{into}" stroke="#64748b" '
            'marker-end="url(#tip)"/>'
        )
    for node in graph.nodes:
        x, y = places[node.id]
        corner = 4 if node.node_type == "step" else _HEIGHT // 2
        fill = _FILLS.get(node.node_type, "#dcfce7")
        drawn.append(
            f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="{corner}" fill="{fill}" stroke="#64748b"/>'
            f'<text x="{x + _WIDTH // 2}" y="{y + _HEIGHT // 2 + 5}" text-anchor="middle">'
            f"{escape(node.truncated_label(24))}</text>"
        )
    return "\n".join([*drawn, "</svg>"])


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
                lines.append(f"    {number}[{_quoted(f'{event.name} #{event.worker_id}')}]")
                cause = event.input_event_name
                if cause not in made_by:
                    made_by[cause] = f"n{count}"
                    count += 1
                    lines.append(f"    {made_by[cause]}([{_quoted(cause)}])")
                arrows.append(f"    {made_by[cause]} -->|{_quoted(cause)}| {number}")
            elif event.step_state is StepState.NOT_RUNNING and key in at_work:
                number = at_work.pop(key)
                if event.output_event_name is not None:
                    made_by[_class_name(event.output_event_name)] = number
        elif isinstance(event, StopEvent):
            name = type(event).__name__
            lines.append(f"    n{count}([{_quoted(name)}])")
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


def _quoted(text: str) -> str:
    return '"' + text.replace('"', "#quot;") + '"'
