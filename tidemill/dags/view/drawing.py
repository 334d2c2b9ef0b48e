"""Draw a dag as Mermaid text and as SVG; with the nodes of a run, they are coloured by their state.

print(draw_dag(nightly))
print(draw_dag(nightly, nodes_of(view)))
Path("nightly.svg").write_text(draw_dag_svg(nightly, nodes_of(view)))
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.core.drawing.render import Box, quoted, svg
from tidemill.core.expressions.refs import RefResolver, Refs
from tidemill.dags.definition.model import RUN, Dag, InputNode, SubDag, TaskNode
from tidemill.dags.definition.plan import ROOT, DagPlan, PlannedNode
from tidemill.dags.view.view import NodeView

FILLS = {
    "pending": "#f1f5f9",
    "running": "#bfdbfe",
    "waiting": "#fde68a",
    "succeeded": "#bbf7d0",
    "skipped": "#e2e8f0",
    "failed": "#fecaca",
    "blocked": "#fed7aa",
    "cancelled": "#d6d3d1",
}

Known = dict[str, NodeView]

_SHAPES = {"task": ("[", "]"), "map": ("[[", "]]"), "input": ("{{", "}}")}
_KIND_FILLS = {"task": "#dbeafe", "map": "#e0e7ff", "input": "#fee2e2", "leave": "#dcfce7"}


def draw_dag(dag: Dag, nodes: Sequence[NodeView] = (), *, refs: RefResolver | None = None) -> str:
    """Draw a dag as a Mermaid flowchart, with sub-dags as boxes around their nodes."""
    plan = DagPlan(dag, refs or Refs(strict=False))
    numbers = {name: f"n{index}" for index, name in enumerate(plan.order)}
    known = {node.node: node for node in nodes}
    lines = ["flowchart TD"]
    _draw_nodes(plan, dag, ROOT, known, numbers, "    ", lines)
    for step in plan.steps.values():
        if step.kind == "leave":
            continue
        end = numbers[step.name.removesuffix(f"/{RUN}")] if step.kind == "enter" else numbers[step.name]
        for dep in step.deps:
            if plan.steps[dep].kind != "enter":
                lines.append(f"    {numbers[dep]} --> {end}")
    if known:
        lines += [f"    classDef {status} fill:{fill},stroke:#64748b,color:#0f172a" for status, fill in FILLS.items()]
        for step in plan.steps.values():
            if step.kind != "enter":
                lines.append(f"    class {numbers[step.name]} {known[step.name].state}")
    return "\n".join(lines)


def draw_dag_svg(dag: Dag, nodes: Sequence[NodeView] = (), *, refs: RefResolver | None = None) -> str:
    """Draw a dag as SVG, with every node below its dependencies."""
    plan = DagPlan(dag, refs or Refs(strict=False))
    known = {node.node: node for node in nodes}
    rows: dict[int, list[Box]] = {}
    depths = _depths(plan)
    for step in plan.steps.values():
        if step.kind != "enter":
            fill = FILLS[known[step.name].state] if known else _KIND_FILLS[step.kind]
            box = Box(step.name, _shortened(_label(step, known), 24), fill, pill=step.kind != "task")
            rows.setdefault(depths[step.name], []).append(box)
    arrows = [(dep, step.name) for step in plan.steps.values() if step.kind != "enter" for dep in _deps(plan, step)]
    return svg([rows[depth] for depth in sorted(rows)], arrows)


def _draw_nodes(
    plan: DagPlan,
    dag: Dag,
    scope: str,
    known: Known,
    numbers: dict[str, str],
    indent: str,
    lines: list[str],
) -> None:
    for node in dag.nodes:
        step = plan.steps[scope + node.name]
        label = quoted(_label(step, known, node.name))
        if isinstance(node, SubDag):
            lines.append(f"{indent}subgraph {numbers[step.name]}[{label}]")
            _draw_nodes(plan, node.dag, f"{step.name}/", known, numbers, indent + "    ", lines)
            lines.append(f"{indent}end")
        else:
            left, right = _SHAPES[step.kind]
            lines.append(f"{indent}{numbers[step.name]}{left}{label}{right}")


def _label(step: PlannedNode, known: Known, name: str | None = None) -> str:
    text, node = name or step.name, known.get(step.name)
    if node is not None and node.total is not None and isinstance(step.spec, TaskNode):
        return f"{text} {node.done}/{node.total}"
    if isinstance(step.spec, InputNode):
        return f"{text} ?"
    return f"{text} *" if isinstance(step.spec, TaskNode) and step.spec.map is not None else text


def _deps(plan: DagPlan, step: PlannedNode) -> list[str]:
    """Return the dependencies of a step, with the first step of a sub-dag replaced by its own dependencies."""
    if step.kind == "leave":
        return [step.scope + sink for sink in plan.scopes[step.scope].sinks]
    found: list[str] = []
    for dep in step.deps:
        found += _deps(plan, plan.steps[dep]) if plan.steps[dep].kind == "enter" else [dep]
    return found


def _depths(plan: DagPlan) -> dict[str, int]:
    left = {name: len(step.deps) for name, step in plan.steps.items()}
    order = [name for name, count in left.items() if count == 0]
    depths = dict.fromkeys(order, 0)
    for name in order:
        below = depths[name] + (plan.steps[name].kind != "enter")
        for follower in plan.steps[name].followers:
            depths[follower] = max(depths.get(follower, 0), below)
            left[follower] -= 1
            if left[follower] == 0:
                order.append(follower)
    return depths


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
