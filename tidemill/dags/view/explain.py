"""Explain the state of a node in a sentence, and show a run as rows of a tree."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec

from tidemill.core.errors import NotFoundError
from tidemill.dags.definition.model import RUN, SubDag
from tidemill.dags.definition.plan import ROOT, PlannedNode
from tidemill.dags.errors import no_node
from tidemill.dags.reducer.events import FINAL, NodeStatus
from tidemill.dags.reducer.reducer import DagProgram
from tidemill.dags.reducer.state import DagState, NodeState


class TreeRow(msgspec.Struct, frozen=True):
    """A node in the tree of a run; `branch` is the text of its tree lines."""

    node: str
    label: str
    branch: str
    status: NodeStatus
    note: str = ""
    done: int | None = None
    total: int | None = None
    began: float | None = None
    ended: float | None = None


def explain(program: DagProgram, state: DagState, name: str) -> str:
    """Explain why a node waits, was skipped, failed or is blocked."""
    step, node = program.plan.steps.get(name), state.nodes.get(name)
    if step is None or node is None:
        raise NotFoundError(no_node(program.dag.name, name, program.plan.steps))
    sentence = _EXPLAIN[node.status](program, state, step, node)
    return f"{sentence} (carried over from the run that this one reruns)" if node.carried else sentence


def _pending(program: DagProgram, state: DagState, step: PlannedNode, node: NodeState) -> str:
    if state.started is None:
        return f"{step.name!r} waits for the run to start"
    if step.kind == "leave":
        enter = program.plan.scopes[step.scope].enter or ""
        if state.nodes[enter].status == "pending":
            return f"{step.name!r} waits for {_listed(state, _awaited(program, state, enter))}"
        inside = [name for name in _nodes_within(program, step.scope) if state.nodes[name].status not in FINAL]
        return f"{step.name!r} waits for its own nodes: {_listed(state, inside)}"
    return f"{step.name!r} waits for {_listed(state, _awaited(program, state, step.name))}"


def _awaited(program: DagProgram, state: DagState, name: str) -> list[str]:
    """Return the nodes that a node waits for; in a sub-dag that has not started, those that the sub-dag waits for."""
    found: list[str] = []
    for dep in program.plan.steps[name].deps:
        if state.nodes[dep].status not in FINAL:
            found += _awaited(program, state, dep) if program.plan.steps[dep].kind == "enter" else [dep]
    return found


def _nodes_within(program: DagProgram, scope: str) -> list[str]:
    """Return the nodes of a sub-dag and of its nested sub-dags, in the order of declaration."""
    return [name for name in program.plan.within(scope) if program.plan.steps[name].kind != "enter"]


def _running(program: DagProgram, state: DagState, step: PlannedNode, node: NodeState) -> str:
    items = node.items
    if items is None:
        return f"{step.name!r} has a job that waits in its queue or runs (work {node.work})"
    failed = f", {len(items.failed)} failed" if items.failed else ""
    return (
        f"{step.name!r} is running: {items.done} of {items.total} items done{failed}, "
        f"{len(items.working)} running, {len(items.todo)} not started"
    )


def _waiting(program: DagProgram, state: DagState, step: PlannedNode, node: NodeState) -> str:
    until = f", until {datetime.fromtimestamp(node.due, UTC):%Y-%m-%d %H:%M:%S} UTC" if node.due is not None else ""
    return f"{step.name!r} waits for an answer{until}: {node.prompt}"


def _ended(program: DagProgram, state: DagState, step: PlannedNode, node: NodeState) -> str:
    if node.status == "cancelled" and node.note.startswith("cancelled"):
        return f"{step.name!r} was {node.note}"
    why = f": {node.note}" if node.note else ""
    return f"{step.name!r} {_WORDS[node.status]}{why}"


def _failed(program: DagProgram, state: DagState, step: PlannedNode, node: NodeState) -> str:
    error = node.error
    why = f": {error.kind}: {error.message}" if error is not None else f": {node.note}" if node.note else ""
    more = f" ({node.note})" if error is not None and node.note else ""
    after = "the other nodes continue" if step.spec.on_failure == "continue" else "which ends the run"
    if step.spec.on_failure != "continue" and _keeps_going(program, step):
        after = "which ends its sub-dag"
    return f"{step.name!r} {_WORDS[node.status]}{why}{more}; {after}"


def _blocked(program: DagProgram, state: DagState, step: PlannedNode, node: NodeState) -> str:
    root, blamed = node, step.name
    hops: list[str] = []
    while root.failed_dependency is not None and root.status == "blocked":
        blamed, root = root.failed_dependency, state.nodes[root.failed_dependency]
        if program.plan.steps[blamed].kind != "enter" or root.status != "blocked":
            hops.append(blamed)
    way = "" if len(hops) == 1 else f" (through {hops[0]!r})"
    return f"{step.name!r} never runs: it depends on {blamed!r}{way}, and {_failed_in_short(root, blamed)}"


def _failed_in_short(node: NodeState, name: str) -> str:
    why = f": {node.error.kind}: {node.error.message}" if node.error is not None else ""
    return f"{name!r} {_WORDS[node.status]}{why}"


def _keeps_going(program: DagProgram, step: PlannedNode) -> bool:
    scope = step.home
    while scope != ROOT:
        found = program.plan.scopes[scope]
        if found.keeps_going:
            return True
        scope = found.parent or ROOT
    return False


def _listed(state: DagState, names: Iterable[str]) -> str:
    listed = [f"{name!r} ({_DOING[state.nodes[name].status]})" for name in names]
    return ", ".join(listed[:5]) + (f" and {len(listed) - 5} more" if len(listed) > 5 else "")


_WORDS: dict[str, str] = {
    "succeeded": "is done",
    "skipped": "was skipped",
    "failed": "failed",
    "cancelled": "was cancelled",
    "blocked": "is blocked",
}
_DOING: dict[str, str] = {
    "pending": "waiting for other nodes",
    "running": "running",
    "waiting": "waiting for an answer",
}
_EXPLAIN = {
    "pending": _pending,
    "running": _running,
    "waiting": _waiting,
    "succeeded": _ended,
    "skipped": _ended,
    "failed": _failed,
    "cancelled": lambda *given: (_failed if given[3].error is not None else _ended)(*given),
    "blocked": _blocked,
}


def tree(program: DagProgram, state: DagState) -> list[TreeRow]:
    """Return all nodes as rows, the nodes of a sub-dag below it; `done` of `total` counts its items or nodes."""
    rows: list[TreeRow] = []
    _grow(program, state, ROOT, "", rows)
    return rows


def _grow(program: DagProgram, state: DagState, scope: str, lines: str, rows: list[TreeRow]) -> None:
    specs = _specs(program, scope)
    for index, spec in enumerate(specs):
        last = index == len(specs) - 1
        name = scope + spec.name
        node = state.nodes[name]
        status, done, total = node.status, None, None
        if isinstance(spec, SubDag):
            inside = _nodes_within(program, f"{name}/")
            done, total = sum(state.nodes[each].status in FINAL for each in inside), len(inside)
            if status == "pending" and state.nodes[f"{name}/{RUN}"].status != "pending":
                status = "running"
        elif node.items is not None:
            done, total = node.items.done, node.items.total
        note = (
            node.note
            or (node.error.message if node.error else "")
            or (node.prompt or "" if status == "waiting" else "")
        )
        began = state.nodes[f"{name}/{RUN}"].began if isinstance(spec, SubDag) else node.began
        branch = lines + ("└─ " if last else "├─ ")
        rows.append(TreeRow(name, spec.name, branch, status, note, done, total, began, node.ended))
        if isinstance(spec, SubDag):
            _grow(program, state, f"{name}/", lines + ("   " if last else "│  "), rows)


def _specs(program: DagProgram, scope: str) -> list:
    dag = program.dag
    for part in scope.split("/")[:-1]:
        dag = next(node.dag for node in dag.nodes if isinstance(node, SubDag) and node.name == part)
    return list(dag.nodes)
