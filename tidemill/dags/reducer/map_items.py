"""The items of a map: one piece of work each, a limited number at a time, and the list of their results."""

from __future__ import annotations

from typing import Any

from tidemill.core.expressions.paths import RefError
from tidemill.core.ticks import RunWork, StopWork
from tidemill.dags.definition.model import MOST_ITEMS
from tidemill.dags.definition.plan import PlannedNode, task_of
from tidemill.dags.reducer.events import NodeFailure
from tidemill.dags.reducer.reduction import Reduction, too_large
from tidemill.dags.reducer.ref_scope import RefScope, item_scope, read_list, read_object
from tidemill.dags.reducer.state import UNSET, Items, NodeState


def begin_items(turn: Reduction, step: PlannedNode) -> None:
    """Read the list and start its items; results that were carried over from another run are kept."""
    node, spec = turn.state.nodes[step.name], task_of(step)
    if node.items is None:
        values = read_list(spec.map, RefScope(turn.plan, turn.state, step.scope), turn.refs, MOST_ITEMS)
        node.items = Items(values, len(values), list(range(len(values) - 1, -1, -1)))
    node.status = "running"
    turn.publish(step.name, node)
    start_items(turn, step, node)


def start_items(turn: Reduction, step: PlannedNode, node: NodeState) -> None:
    """Start as many items as may run at the same time; end the node when no item is left."""
    items, spec = node.items, task_of(step)
    assert items is not None  # noqa: S101 - only maps have items
    most = spec.max_concurrency or MOST_ITEMS
    declared = spec.args if node.edited is UNSET else node.edited
    while items.todo and len(items.working) < most:
        index = items.todo.pop()
        try:
            args = read_object(declared, item_scope(turn.plan, turn.state, step, index, items.values[index]), turn.refs)
        except RefError as error:
            if not _fail_item(turn, step, node, index, NodeFailure("bad_ref", str(error))):
                return
            continue
        work = turn.new_work(step.name)
        items.working[work] = index
        turn.out.append(RunWork(work, step.name, args, queue=spec.queue))
    if not items.working and not items.todo:
        _join(turn, step, node, items)


def item_ended(
    turn: Reduction, step: PlannedNode, node: NodeState, work: int, result: Any, error: NodeFailure | None, size: int
) -> None:
    """Record the outcome of an item and start the next one."""
    items = node.items
    assert items is not None  # noqa: S101 - only maps have items
    index = items.working.pop(work)
    before = items.done * 100 // items.total
    if error is not None:
        if not _fail_item(turn, step, node, index, error):
            return
    else:
        items.size += size
        if items.size > turn.limits.join:
            stop_items(turn, node)
            what = f"the list of results, with {items.done} of {items.total} items done,"
            turn.finish(step.name, "failed", error=too_large(what, items.size, turn.limits.join))
            return
        items.results[index] = result
    if items.done < items.total and items.done * 100 // items.total > before:
        turn.publish(step.name, node)
    start_items(turn, step, node)


def stop_items(turn: Reduction, node: NodeState) -> None:
    """Stop all items of a map that are running."""
    items = node.items
    assert items is not None  # noqa: S101 - only maps have items
    for work in items.working:
        if turn.state.works.pop(work, None) is not None:
            turn.out.append(StopWork(work))
    items.working = {}


def _fail_item(turn: Reduction, step: PlannedNode, node: NodeState, index: int, error: NodeFailure) -> bool:
    """Record a failed item; returns whether the map tolerates it, and fails the node if not."""
    items, spec = node.items, task_of(step)
    assert items is not None  # noqa: S101 - only maps have items
    items.failed[index] = f"{error.kind}: {error.message}"
    if len(items.failed) <= spec.tolerate:
        return True
    stop_items(turn, node)
    many = (
        f"{len(items.failed)} of {items.total} items failed, and at most {spec.tolerate} may fail; "
        if spec.tolerate
        else ""
    )
    failure = NodeFailure(error.kind, f"{many}item {index}: {error.message}", error.traceback)
    turn.finish(step.name, "failed", error=failure)
    return False


def _join(turn: Reduction, step: PlannedNode, node: NodeState, items: Items) -> None:
    result = [items.results.get(index) for index in range(items.total)]
    note = f"{len(items.failed)} of {items.total} items failed, which is tolerated" if items.failed else ""
    items.values, items.results = [], dict.fromkeys(items.results)  # The node's result holds them now.
    turn.finish(step.name, "succeeded", result=result, note=note)
