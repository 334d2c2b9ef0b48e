"""What follows a node for certain: its job is stored by the statement that finishes the job of the node before it.

That is known while a run does one piece of work and nothing else can happen: the node that follows has no condition,
all else that it depends on has succeeded, and its arguments are known. Then the number of its piece of work is known
too: the reducer, which decides as always when the end of the first arrives, starts the node with the job that is there.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidemill.core.errors import TidemillError
from tidemill.core.expressions.paths import RefError
from tidemill.core.ticks import RunWork
from tidemill.dags.definition.plan import PlannedNode, task_of
from tidemill.dags.reducer.reducer import DagProgram
from tidemill.dags.reducer.ref_scope import RefScope, read_object
from tidemill.dags.reducer.state import UNSET, DagState

MOST_AHEAD = 8


def following_works(program: DagProgram, state: DagState) -> Iterator[RunWork]:
    """The works that follow the only one in progress, each for certain if the one before it succeeds."""
    ((_, name),) = state.works.items()
    if program.plan.steps[name].kind != "task":
        return  # The end of an item is not the end of its node.
    unended = {name}
    for work in range(state.sequence + 1, state.sequence + 1 + MOST_AHEAD):
        followers = program.plan.steps[name].followers
        step = program.plan.steps[followers[0]] if len(followers) == 1 else None
        if step is None or not _is_certain(program, state, step, unended):
            return
        try:
            scope = RefScope(program.plan, state, step.scope)
            args = read_object(task_of(step).args, scope, program.refs) if task_of(step).args != {} else {}
        except (RefError, TidemillError):
            return  # The reducer says what is wrong with it.
        yield RunWork(work, step.name, args, queue=task_of(step).queue)
        name = step.name
        unended.add(name)


def _is_certain(program: DagProgram, state: DagState, step: PlannedNode, unended: set[str]) -> bool:
    node = state.nodes[step.name]
    if step.kind != "task" or step.condition is not None or step.spec.skip_if is not None:
        return False
    if node.status != "pending" or node.left != 1 or node.skipped or node.failed_dependency or node.edited is not UNSET:
        return False
    read = {f"{step.scope}{source.path[0]}" for source in program.refs.sources(task_of(step).args, ("args",))}
    return unended.isdisjoint(read)
