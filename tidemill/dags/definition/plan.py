"""The execution plan of a dag: sub-dags flattened, conditions compiled, and the dependents of each node.

A sub-dag `report` becomes its nodes `report/...` between two more steps: `report/run`, which resolves its arguments,
and `report`, which gives its result. Neither is a job.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from tidemill.core.expressions.conditions import Condition
from tidemill.core.expressions.refs import RefResolver
from tidemill.core.expressions.template import Template
from tidemill.dags.definition.check import check_dag, condition_of, deps_of, reads
from tidemill.dags.definition.model import RUN, Dag, InputNode, Node, SubDag, TaskNode
from tidemill.dags.definition.schema import Schema

Kind = Literal["task", "map", "input", "enter", "leave"]

ROOT = ""


class PlannedNode(msgspec.Struct, frozen=True):
    """A node as it is run. Its refs read names in its `scope`; its failure affects its `home`."""

    name: str
    kind: Kind
    spec: Node
    scope: str
    home: str
    deps: tuple[str, ...]
    followers: list[str]
    condition: Condition | None = None
    prompt: Template | None = None
    schema: Schema | None = None


class PlanScope(msgspec.Struct, frozen=True):
    """A dag or sub-dag: the names that its refs can read, and the nodes that give its result."""

    prefix: str
    parent: str | None
    enter: str | None
    leave: str | None
    keeps_going: bool
    """Whether the rest of the run continues after a failure inside it."""
    result: Any
    sinks: tuple[str, ...]
    span: tuple[int, int]
    """The range of its steps in the order of all steps, without its own final step."""


class DagPlan:
    """Everything that depends only on the dag; computed once."""

    def __init__(self, dag: Dag, refs: RefResolver) -> None:
        check_dag(dag, refs)
        self.dag = dag
        self.version = hashlib.sha256(dag.to_json()).hexdigest()[:16]
        self.steps: dict[str, PlannedNode] = {}
        self.scopes: dict[str, PlanScope] = {}
        self._refs = refs
        self._unfold(dag, ROOT, None, first=0, keeps_going=False)
        self.order = tuple(self.steps)
        for step in self.steps.values():
            for dep in step.deps:
                self.steps[dep].followers.append(step.name)

    def beyond(self, names: Iterable[str]) -> set[str]:
        """Return these steps and all their descendants."""
        found = set(names)
        ahead = list(found)
        while ahead:
            for follower in self.steps[ahead.pop()].followers:
                if follower not in found:
                    found.add(follower)
                    ahead.append(follower)
        return found

    def before(self, name: str) -> set[str]:
        """Return all steps that always end before this step starts."""
        found: set[str] = set()
        behind = [name]
        while behind:
            for dep in self.steps[behind.pop()].deps:
                if dep not in found:
                    found.add(dep)
                    behind.append(dep)
        return found

    def within(self, scope: str) -> tuple[str, ...]:
        """Return all steps of a sub-dag and of its nested sub-dags, without its final step."""
        first, last = self.scopes[scope].span
        return self.order[first:last]

    def _unfold(self, dag: Dag, prefix: str, parent: str | None, *, first: int, keeps_going: bool) -> None:
        names = {node.name: None for node in dag.nodes}
        deps = {node.name: deps_of(node, reads(node, self._refs, names)) for node in dag.nodes}
        needed = {dep for each in deps.values() for dep in each}
        sinks = tuple(node.name for node in dag.nodes if node.name not in needed)
        enter = None if parent is None else f"{prefix}{RUN}"
        leave = None if parent is None else prefix[:-1]
        for node in dag.nodes:
            after = tuple(prefix + dep for dep in deps[node.name]) or ((enter,) if enter else ())
            condition = condition_of(node.skip_if, names) if isinstance(node.skip_if, str) else None
            if isinstance(node, SubDag):
                self._unfold_sub_dag(node, prefix, after, condition)
            else:
                self._add(_plain_step(node, prefix, after, condition))
        span = (first, len(self.steps))
        self.scopes[prefix] = PlanScope(prefix, parent, enter, leave, keeps_going, dag.result, sinks, span)

    def _unfold_sub_dag(self, node: SubDag, prefix: str, after: tuple[str, ...], condition: Condition | None) -> None:
        name = prefix + node.name
        inner = f"{name}/"
        first = len(self.steps)
        self._add(PlannedNode(inner + RUN, "enter", node, prefix, prefix, after, [], condition))
        self._unfold(node.dag, inner, prefix, first=first, keeps_going=node.on_failure == "continue")
        # The exit waits for all nodes, not only the last ones: a last node may be blocked while others still run.
        inside = tuple(inner + each.name for each in node.dag.nodes)
        self._add(PlannedNode(name, "leave", node, inner, prefix, inside, []))

    def _add(self, step: PlannedNode) -> None:
        self.steps[step.name] = step


def _plain_step(
    node: TaskNode | InputNode, prefix: str, after: tuple[str, ...], condition: Condition | None
) -> PlannedNode:
    name = prefix + node.name
    if isinstance(node, TaskNode):
        return PlannedNode(name, "task" if node.map is None else "map", node, prefix, prefix, after, [], condition)
    schema = None if node.schema is None else Schema(node.schema)
    prompt = Template(node.prompt, ("prompt",))
    return PlannedNode(name, "input", node, prefix, prefix, after, [], condition, prompt, schema)


def task_of(step: PlannedNode) -> TaskNode:
    """Return the task node of a step that runs jobs."""
    assert isinstance(step.spec, TaskNode)  # noqa: S101 - only such steps have work
    return step.spec
