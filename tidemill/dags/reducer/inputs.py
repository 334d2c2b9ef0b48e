"""Decide whether an answer to an input node is accepted.

verdict = check_submission(program, state, Submission("approve", {"answer": "yes"}, by="ann", key="42"))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tidemill.core.codec import encode
from tidemill.core.errors import PayloadError
from tidemill.core.expressions.refs import same
from tidemill.dags.errors import no_node
from tidemill.dags.reducer.events import Submission
from tidemill.dags.reducer.reduction import too_large
from tidemill.dags.reducer.state import DagState, NodeState

if TYPE_CHECKING:
    from tidemill.dags.reducer.reducer import DagProgram


class AnswerCheck(msgspec.Struct, frozen=True):
    """Whether a submission is accepted; `repeated` if the same submission was accepted before."""

    accepted: bool
    reason: str = ""
    repeated: bool = False


def check_submission(program: DagProgram, state: DagState, given: Submission) -> AnswerCheck:
    """Decide whether a submission would be accepted now. Only the first valid answer is accepted."""
    step, node = program.plan.steps.get(given.node), state.nodes.get(given.node)
    if step is None or node is None:
        return AnswerCheck(
            False,
            no_node(program.dag.name, given.node, program.plan.steps),
        )
    if step.kind != "input":
        return AnswerCheck(False, f"node {given.node!r} is not an input node")
    if node.status != "waiting":
        return _too_late(state, node, given)
    try:
        size = len(encode(given.value))
    except PayloadError as error:
        return AnswerCheck(False, str(error))
    if size > program.limits.result:
        return AnswerCheck(False, too_large("the answer", size, program.limits.result).message)
    problem = None if step.schema is None else step.schema.problem(given.value)
    if problem is not None:
        return AnswerCheck(False, f"the answer does not fit the schema: {problem}")
    return AnswerCheck(True)


def _too_late(state: DagState, node: NodeState, given: Submission) -> AnswerCheck:
    answered = node.answered
    if answered is not None:
        if given.key is not None and answered.key == given.key:
            if same(node.result, given.value):
                return AnswerCheck(True, repeated=True)
            return AnswerCheck(False, f"the key {given.key!r} was used before with another answer, which was accepted")
        return AnswerCheck(
            False, f"node {given.node!r} was answered already{f' by {answered.by}' if answered.by else ''}"
        )
    if node.status == "pending":
        if state.status != "running":
            return AnswerCheck(False, f"the run has ended: {state.status}")
        return AnswerCheck(False, f"node {given.node!r} is not waiting for an answer yet: it waits for other nodes")
    why = f": {node.note}" if node.note else ""
    return AnswerCheck(False, f"node {given.node!r} is no longer waiting for an answer: it {_PAST[node.status]}{why}")


_PAST = {
    "succeeded": "has its answer",
    "failed": "failed",
    "skipped": "was skipped",
    "blocked": "is blocked",
    "cancelled": "was cancelled",
}
