"""The reducer of a dag run: from ticks to state and commands. Pure.

The cost of a node's end depends only on its dependents: every node counts how many of its dependencies have not ended,
and the end of a node updates only its dependents. Only the start and the end of a run visit the whole dag.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from tidemill.core.codec import decode, encode
from tidemill.core.errors import PayloadError
from tidemill.core.expressions.paths import RefError
from tidemill.core.expressions.refs import RefResolver, Refs
from tidemill.core.ticks import (
    CancelAsked,
    Command,
    Completed,
    DropTimer,
    Elapsed,
    EndRun,
    Publish,
    Received,
    RunWork,
    SetTimer,
    Started,
    StopWork,
    Tick,
)
from tidemill.dags.definition.model import UNSET, Dag, InputNode
from tidemill.dags.definition.plan import ROOT, DagPlan, PlannedNode, task_of
from tidemill.dags.reducer.events import (
    DONE,
    FINAL,
    InputRefused,
    InputTaken,
    InputWanted,
    NodeCancel,
    NodeEnded,
    NodeFailure,
    RunFailure,
    Submission,
)
from tidemill.dags.reducer.inputs import AnswerCheck, check_submission
from tidemill.dags.reducer.map_items import begin_items, item_ended, stop_items
from tidemill.dags.reducer.reduction import RESULT_LIMIT, DagLimits, Reduction, too_large
from tidemill.dags.reducer.ref_scope import RefScope, read_object, read_skip
from tidemill.dags.reducer.state import Answered, DagState, NodeState, decode_state, encode_state

INPUT_TIMER = "input:"


class DagProgram:
    """A dag as a program for the control loop.

    `result_limit` is the maximum size in bytes, as JSON, of a node's result; `join_limit` that of all results of a map
    together. With `narrate`, every change of a node is published.
    """

    def __init__(
        self,
        dag: Dag,
        *,
        refs: RefResolver | None = None,
        result_limit: int = RESULT_LIMIT,
        join_limit: int = 64 * RESULT_LIMIT,
        narrate: bool = True,
    ) -> None:
        self.dag = dag
        self.refs: RefResolver = refs or Refs()
        self.plan = DagPlan(dag, self.refs)
        self.limits = DagLimits(result_limit, join_limit)
        self._narrate = narrate

    @property
    def version(self) -> str:
        return self.plan.version

    def begin(self) -> DagState:
        nodes = {name: NodeState(len(step.deps)) for name, step in self.plan.steps.items()}
        return DagState(self.version, len(nodes), nodes=nodes)

    def snapshot(self, state: DagState) -> bytes:
        return encode_state(state)

    def restore(self, data: bytes) -> DagState:
        state = decode_state(data)
        if state.version != self.version:
            raise PayloadError(
                f"the run belongs to version {state.version} of dag {self.dag.name!r}, but this is {self.version}; "
                "run it with the definition that it was started with"
            )
        return state

    def step_of(self, state: DagState, work: int) -> PlannedNode | None:
        """Return the step of a piece of work; its spec has the task, queue, priority, budget and retry policy."""
        name = state.works.get(work)
        return None if name is None else self.plan.steps[name]

    def item_of(self, state: DagState, work: int) -> int | None:
        """Return the index of the item that a piece of work is for; None if it is not for an item of a map."""
        name = state.works.get(work)
        items = None if name is None else state.nodes[name].items
        return None if items is None else items.working.get(work)

    def reduce(self, state: DagState, tick: Tick) -> list[Command]:
        """Apply one tick to the state and return the resulting commands."""
        if state.status != "running":
            return self._too_late(state, tick)
        turn = Reduction(self.plan, self.refs, self.limits, state, tick.at, deque(), [], self._narrate)
        kind = type(tick)
        if kind is Completed:
            self._completed(turn, tick)  # pyright: ignore[reportArgumentType]
        elif kind is Received:
            self._received(turn, tick)  # pyright: ignore[reportArgumentType]
        elif kind is Started:
            self._started(turn, tick)  # pyright: ignore[reportArgumentType]
        elif kind is Elapsed:
            self._elapsed(turn, tick)  # pyright: ignore[reportArgumentType]
        elif kind is CancelAsked:
            self._cancel(turn, tick)  # pyright: ignore[reportArgumentType]
        # Resumed changes nothing: the work in progress is jobs, which do not depend on the owner of the run.
        self._spread(turn)
        return turn.out

    # -- ticks ------------------------------------------------------------------------------------

    def _started(self, turn: Reduction, tick: Started) -> None:
        state = turn.state
        if state.started is not None:
            return
        state.started = tick.at
        if tick.input is not None or not state.repeats:
            given = {} if tick.input is None else tick.input
            if not isinstance(given, dict):
                failure = RunFailure("bad_input", "the arguments of a run must be an object")
                self._end(turn, "failed", error=failure)
                return
            state.run = given
        for name, step in self.plan.steps.items():
            node = state.nodes[name]
            if node.status == "pending" and node.left == 0:
                self._start(turn, step)

    def _completed(self, turn: Reduction, tick: Completed) -> None:
        name = turn.state.works.pop(tick.work, None)
        if name is None:
            return  # The node has already ended or was stopped: ignore the outcome.
        step, node, ended = self.plan.steps[name], turn.state.nodes[name], tick.outcome
        result, error = _read_outcome(ended, turn.limits.result)
        if node.items is not None:
            size = len(ended.result) if ended.result is not None else 4
            item_ended(turn, step, node, tick.work, result, error, size)
            return
        node.job = ended.job
        if error is None:
            turn.finish(name, "succeeded", result=result, note=ended.note)
        else:
            status = "cancelled" if ended.state == "cancelled" else "failed"
            turn.finish(name, status, error=error, note=ended.note)

    def _received(self, turn: Reduction, tick: Received) -> None:
        if isinstance(tick.event, NodeCancel):
            self._cancel_node(turn, tick.event)
            return
        given: Submission = tick.event
        verdict = check_submission(self, turn.state, given)
        if verdict.repeated:
            return
        if not verdict.accepted:
            turn.out.append(_refusal(given, tick.at, verdict))
            return
        node = turn.state.nodes[given.node]
        node.answered = Answered(given.by, tick.at, given.key)
        turn.out.append(Publish(InputTaken(given.node, given.value, given.by, tick.at, given.key)))
        if node.due is not None:
            turn.out.append(DropTimer(INPUT_TIMER + given.node))
        turn.finish(given.node, "succeeded", result=given.value, note=f"answered by {given.by}" if given.by else "")

    def _elapsed(self, turn: Reduction, tick: Elapsed) -> None:
        name = tick.timer.removeprefix(INPUT_TIMER)
        step, node = self.plan.steps.get(name), turn.state.nodes.get(name)
        if step is None or node is None or node.status != "waiting" or not isinstance(step.spec, InputNode):
            return
        if step.spec.default is not UNSET:
            turn.finish(name, "succeeded", result=step.spec.default, note="the input timed out: the default is used")
            return
        turn.finish(name, "failed", error=NodeFailure("input_timeout", "the input timed out, and there is no default"))

    def _cancel(self, turn: Reduction, tick: CancelAsked) -> None:
        reason = tick.reason or "no reason was given"
        self._end(turn, "cancelled", error=RunFailure("cancelled", reason), note=f"the run was cancelled: {reason}")

    def _cancel_node(self, turn: Reduction, asked: NodeCancel) -> None:
        """Cancel a node and all that follows from it. The rest of the run goes on: `on_failure` does not apply."""
        state = turn.state
        if asked.node not in self.plan.steps or state.nodes[asked.node].status in FINAL:
            return
        by = f" by {asked.by}" if asked.by else ""
        why = f": {asked.reason}" if asked.reason else ""
        for name in self.cancelled_with(state, asked.node):
            follows = "" if name == asked.node else f"it follows from {asked.node!r}, which was "
            self._drop(turn, name, f"{follows}cancelled{by}{why}")
        state.cancelled.append(asked.node)

    def cancelled_with(self, state: DagState, node: str) -> list[str]:
        """Return the nodes that end with a node that is cancelled: itself, its own nodes, and all that follow."""
        inside = self.plan.within(f"{node}/") if self.plan.steps[node].kind == "leave" else ()
        found = self.plan.beyond([node, *inside])
        return [name for name in self.plan.order if name in found and state.nodes[name].status not in FINAL]

    def _too_late(self, state: DagState, tick: Tick) -> list[Command]:
        if isinstance(tick, Received) and isinstance(tick.event, Submission):
            verdict = check_submission(self, state, tick.event)
            return [] if verdict.repeated else [_refusal(tick.event, tick.at, verdict)]
        return []

    # -- propagation ------------------------------------------------------------------------------

    def _spread(self, turn: Reduction) -> None:
        """Update the dependents of every node that has ended, until no more nodes end."""
        state = turn.state
        while turn.settled and state.status == "running":
            name = turn.settled.popleft()
            step, status = self.plan.steps[name], state.nodes[name].status
            if status in ("failed", "cancelled"):
                state.failed.append(name)
                self._judge_failure(turn, step)
                if state.status != "running":
                    return
            for follower in step.followers:
                self._dependency_ended(turn, follower, name, status)
        if state.status == "running" and state.open == 0:
            self._finish_run(turn)

    def _dependency_ended(self, turn: Reduction, name: str, dep: str, status: str) -> None:
        node = turn.state.nodes[name]
        node.left -= 1
        if status == "skipped":
            node.skipped += 1
        elif status not in DONE and node.failed_dependency is None:
            node.failed_dependency = dep
        if node.status != "pending":
            return
        step = self.plan.steps[name]
        if node.failed_dependency is not None and step.kind != "leave":
            turn.finish(name, "blocked", note=f"it depends on {node.failed_dependency!r}, which did not succeed")
        elif node.left == 0:
            self._start(turn, step)

    def _start(self, turn: Reduction, step: PlannedNode) -> None:
        """Start or skip a node whose dependencies have all ended."""
        try:
            if (why := self._why_skipped(turn, step)) is not None:
                turn.finish(step.name, "skipped", note=why)
                return
            turn.state.nodes[step.name].began = turn.at
            if step.kind == "task":
                self._start_task(turn, step)
            elif step.kind == "map":
                begin_items(turn, step)
            elif step.kind == "input":
                self._ask(turn, step)
            elif step.kind == "enter":
                args = self._args(turn, step)
                turn.finish(step.name, "succeeded", result=args)
            else:
                self._leave(turn, step)
        except RefError as error:
            turn.finish(step.name, "failed", error=NodeFailure("bad_ref", str(error)))

    def _why_skipped(self, turn: Reduction, step: PlannedNode) -> str | None:
        nodes, enter = turn.state.nodes, self.plan.scopes[step.scope].enter
        if enter is not None and nodes[enter].status == "skipped":
            return "its sub-dag was skipped"
        if step.kind == "leave":
            return None
        skipped, of = nodes[step.name].skipped, len(step.deps)
        if skipped and step.spec.skip_with == "any":
            return "one of its dependencies was skipped"
        if skipped and skipped == of and step.spec.skip_with == "all":
            return "all its dependencies were skipped"
        if step.condition is None and step.spec.skip_if is None:
            return None
        if read_skip(step, RefScope(self.plan, turn.state, step.scope), self.refs):
            condition = step.spec.skip_if if isinstance(step.spec.skip_if, str) else encode(step.spec.skip_if).decode()
            return f"its skip_if is true: {condition}"
        return None

    def _args(self, turn: Reduction, step: PlannedNode) -> dict[str, Any]:
        edited = turn.state.nodes[step.name].edited
        given = step.spec.args if edited is UNSET else edited  # pyright: ignore[reportAttributeAccessIssue]
        return read_object(given, RefScope(self.plan, turn.state, step.scope), self.refs) if given != {} else {}

    def _start_task(self, turn: Reduction, step: PlannedNode) -> None:
        args = self._args(turn, step)
        node = turn.state.nodes[step.name]
        node.work = turn.new_work(step.name)
        node.status = "running"
        turn.out.append(RunWork(node.work, step.name, args, queue=task_of(step).queue))
        turn.publish(step.name, node)

    def _ask(self, turn: Reduction, step: PlannedNode) -> None:
        node, spec = turn.state.nodes[step.name], step.spec
        assert isinstance(spec, InputNode) and step.prompt is not None  # noqa: S101, PT018 - only input nodes come here
        if node.edited is not UNSET:
            turn.finish(step.name, "succeeded", result=node.edited, note="answered when the rerun was started")
            return
        node.prompt = step.prompt.render(RefScope(self.plan, turn.state, step.scope))
        node.status = "waiting"
        if spec.timeout is not None:
            node.due = turn.at + spec.timeout
            turn.out.append(SetTimer(INPUT_TIMER + step.name, node.due))
        turn.out.append(Publish(InputWanted(step.name, node.prompt, turn.at, spec.schema, node.due)))
        turn.publish(step.name, node)

    def _leave(self, turn: Reduction, step: PlannedNode) -> None:
        """End a sub-dag whose nodes have all ended."""
        node, enter = turn.state.nodes[step.name], turn.state.nodes[self.plan.scopes[step.scope].enter or ""]
        if enter.status == "blocked":  # The sub-dag has not started: the failure was outside it.
            node.failed_dependency = enter.failed_dependency
            turn.finish(step.name, "blocked", note=enter.note)
            return
        if node.failed_dependency is not None:
            blamed = [name for name in turn.state.failed if name.startswith(step.scope)]
            turn.finish(step.name, "failed", error=NodeFailure("nodes_failed", _describe_failures(turn.state, blamed)))
            return
        turn.finish(step.name, "succeeded", result=self._result(turn.state, step.scope))

    # -- ends -------------------------------------------------------------------------------------

    def _judge_failure(self, turn: Reduction, step: PlannedNode) -> None:
        """Apply the failure policy of a node, then that of its sub-dag, to the rest of the run."""
        if step.spec.on_failure == "continue":
            return
        scope = step.home
        while scope != ROOT:
            found = self.plan.scopes[scope]
            if found.keeps_going:
                self._stop_scope(turn, scope, step.name)
                return
            scope = found.parent or ROOT
        failure = RunFailure("node_failed", _describe_failures(turn.state, [step.name]), tuple(turn.state.failed))
        self._end(turn, "failed", error=failure, note=f"the run ended because {step.name!r} failed")

    def _stop_scope(self, turn: Reduction, scope: str, blamed: str) -> None:
        """End a sub-dag after a failure, but not the run."""
        leave = self.plan.scopes[scope].leave or ""
        for name in self.plan.within(scope):
            self._drop(turn, name, f"the sub-dag {leave!r} ended because {blamed!r} failed")
        error = NodeFailure("node_failed", _describe_failures(turn.state, [blamed]))
        turn.finish(leave, "failed", error=error)

    def _drop(self, turn: Reduction, name: str, note: str) -> None:
        """Cancel a node in any state; its dependents are not updated, because they are dropped too."""
        node = turn.state.nodes[name]
        if node.status in FINAL:
            return
        if node.items is not None:
            stop_items(turn, node)
        elif node.work is not None and turn.state.works.pop(node.work, None) is not None:
            turn.out.append(StopWork(node.work))
        elif node.status == "waiting" and node.due is not None:
            turn.out.append(DropTimer(INPUT_TIMER + name))
        turn.close(name, "cancelled", note=note)

    def _finish_run(self, turn: Reduction) -> None:
        state = turn.state
        if state.failed:
            failure = RunFailure("nodes_failed", _describe_failures(state, state.failed), tuple(state.failed))
            self._end(turn, "failed", error=failure)
            return
        if state.cancelled:
            failure = RunFailure("nodes_cancelled", _describe_failures(state, state.cancelled), tuple(state.cancelled))
            self._end(turn, "cancelled", error=failure)
            return
        try:
            result = self._result(state, ROOT)
        except RefError as error:
            self._end(turn, "failed", error=RunFailure("bad_ref", str(error)))
            return
        self._end(turn, "succeeded", result=result)

    def _end(
        self, turn: Reduction, status: Any, *, result: Any = None, error: RunFailure | None = None, note: str = ""
    ) -> None:
        state = turn.state
        if state.open:
            for name in self.plan.order:
                self._drop(turn, name, note)
        turn.settled.clear()
        state.status, state.result, state.error, state.ended = status, result, error, turn.at
        turn.out.append(EndRun(status, result, error))

    def _result(self, state: DagState, scope: str) -> Any:
        found = self.plan.scopes[scope]
        if found.result is not None:
            return self.refs.resolve(found.result, RefScope(self.plan, state, scope), ("result",))
        results = {name: state.nodes[scope + name].result for name in found.sinks}
        return {name: result for name, result in results.items() if result is not UNSET}


def _read_outcome(ended: NodeEnded, limit: int) -> tuple[Any, NodeFailure | None]:
    """Return the result of a job as plain data, or its failure."""
    if ended.state == "succeeded":
        if ended.result is None:
            return None, None
        if len(ended.result) > limit:
            return None, too_large("the result", len(ended.result), limit)
        try:
            return decode(bytes(ended.result)), None
        except PayloadError as error:
            return None, NodeFailure("bad_result", f"the result is not JSON: {error}")
    if ended.error is not None:
        return None, ended.error
    reasons = {
        "failed": "the job failed",
        "cancelled": "the job was cancelled",
        "expired": "the job expired before it ran",
    }
    return None, NodeFailure(ended.state, ended.note or reasons[ended.state])


def _refusal(given: Submission, at: float, verdict: AnswerCheck) -> Publish:
    return Publish(InputRefused(given.node, given.by, at, verdict.reason, given.key))


def _describe_failures(state: DagState, names: list[str]) -> str:
    """Describe failed nodes: `node 'load' failed: ValueError: no rows`, or the first few and how many more."""
    shown: list[str] = []
    for name in names[:5]:
        node = state.nodes[name]
        if node.note.startswith("cancelled"):
            shown.append(f"node {name!r} was {node.note}")
            continue
        why = f": {node.error.kind}: {node.error.message}" if node.error else f": {node.note}" if node.note else ""
        shown.append(f"node {name!r} {'was cancelled' if node.status == 'cancelled' else 'failed'}{why}")
    more = f"; and {len(names) - 5} more" if len(names) > 5 else ""
    return "; ".join(shown) + more
