"""Rerun a dag run: results of the old run are carried over, and only the remaining nodes run again.

    state = rerun_failed(program, old)                              the nodes that did not succeed, and their dependents
    state = rerun_from(program, old, "load", edited={"rows": 3})    this node with other arguments, and its dependents

Each returns the initial state of the new run, before its `Started`; the old run does not change. With an input of
None the new run keeps the arguments of the old one.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tidemill.core.codec import decode, encode
from tidemill.core.errors import ConfigError
from tidemill.core.expressions.paths import RefError, format_path
from tidemill.core.expressions.refs import ITEM
from tidemill.dags.definition.check import INDEX
from tidemill.dags.definition.model import RUN, UNSET, plain
from tidemill.dags.definition.plan import PlannedNode
from tidemill.dags.errors import no_node
from tidemill.dags.reducer.events import DONE
from tidemill.dags.reducer.reducer import DagProgram
from tidemill.dags.reducer.state import DagState, Items, NodeState, encode_state
from tidemill.dags.runner.runner import DagInput


def rerun_failed(program: DagProgram, old: DagState) -> DagState:
    """Rerun the nodes that did not succeed; for a map, only the items that did not."""
    _check(program, old)
    again = _not_done(program, old)
    if not again:
        raise ConfigError("every node of this run succeeded or was skipped: there is nothing to rerun")
    state = _carried(program, old, again)
    for name in again:
        items = old.nodes[name].items
        if items is not None and items.values and not again.intersection(program.plan.steps[name].deps):
            state.nodes[name].items = _rest_of(items)
    return state


def rerun_from(program: DagProgram, old: DagState, node: str, *, edited: Any = UNSET) -> DagState:
    """Rerun a node and its dependents, and also the nodes that did not succeed.

    `edited` replaces the node's arguments, in which refs are resolved as usual, or is the answer to an input node.
    """
    _check(program, old)
    step = program.plan.steps.get(node)
    if step is not None and step.kind == "leave":
        step = program.plan.steps[f"{node}/{RUN}"]
    if step is None:
        raise ConfigError(no_node(program.dag.name, node, program.plan.steps))
    again = program.plan.beyond([step.name, *_not_done(program, old)])
    state = _carried(program, old, again)
    if edited is not UNSET:
        state.nodes[step.name].edited = _checked(program, step, edited)
    return state


def rerun_input(stored: bytes, program: DagProgram, old: DagState, *, start: str | None, edited: Any) -> bytes:
    """The input of a run that repeats another, whose stored input, program and state are given."""
    if start is None and edited is not UNSET:
        raise ConfigError("name the node that the edited input is for: start=")
    state = rerun_failed(program, old) if start is None else rerun_from(program, old, start, edited=edited)
    given = decode(stored, DagInput)
    return encode(DagInput(given.dag, given.args, msgspec.Raw(encode_state(state))))


def _check(program: DagProgram, old: DagState) -> None:
    if old.version != program.version:
        raise ConfigError(
            f"dag {program.dag.name!r} has changed since this run (version {old.version}, now {program.version}): "
            "its results cannot be carried over; start a new run"
        )
    if old.status == "running":
        raise ConfigError("this run has not ended yet; cancel it or let it end first")


def _not_done(program: DagProgram, old: DagState) -> set[str]:
    return program.plan.beyond(name for name, node in old.nodes.items() if node.status not in DONE)


def _carried(program: DagProgram, old: DagState, again: set[str]) -> DagState:
    state = DagState(program.version, len(again), run=old.run, repeats=True)
    for name, step in program.plan.steps.items():
        before = old.nodes[name]
        if name in again:
            left = sum(dep in again for dep in step.deps)
            skipped = sum(dep not in again and old.nodes[dep].status == "skipped" for dep in step.deps)
            state.nodes[name] = NodeState(left, skipped=skipped)
        else:
            state.nodes[name] = NodeState(
                0,
                status=before.status,
                began=before.began,
                ended=before.ended,
                job=before.job,
                result=before.result,
                note=before.note,
                prompt=before.prompt,
                answered=before.answered,
                carried=True,
            )
    return state


def _rest_of(items: Items) -> Items:
    todo = [index for index in range(items.total - 1, -1, -1) if index not in items.results]
    return Items(items.values, items.total, todo, results=dict(items.results), size=items.size)


def _checked(program: DagProgram, step: PlannedNode, edited: Any) -> Any:
    edited = plain(edited, f"node {step.name!r}: the edited input")
    if step.kind == "input":
        problem = None if step.schema is None else step.schema.problem(edited)
        if problem is not None:
            raise ConfigError(f"node {step.name!r}: the answer does not fit the schema: {problem}")
        return edited
    if not isinstance(edited, dict):
        raise ConfigError(f"node {step.name!r}: arguments must be an object")
    known = {name.removeprefix(step.scope) for name in program.plan.before(step.name)}
    known |= {RUN, ITEM, INDEX} if step.kind == "map" else {RUN}
    try:
        for source in program.refs.sources(edited, ("args",)):
            if source.path[0] not in known:
                problem = f"{format_path(source.path)!r} does not always end before it"
                raise RefError(source.place, problem)
    except RefError as error:
        raise ConfigError(f"node {step.name!r}: {error}") from error
    return edited
