"""Attempts of steps: queued, started when their step has a free worker, and ended. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemill.core.ticks import Answer, Command, DropTimer, Publish, RunWork
from tidemill.flows.definition.signature import StepSpec
from tidemill.flows.reducer.state.flow_state import FlowState, StepProgress, Work
from tidemill.flows.reducer.step_ticks import Narrated

if TYPE_CHECKING:
    from tidemill.flows.reducer.reducer import FlowProgram


def enqueue(
    program: FlowProgram,
    state: FlowState,
    spec: StepSpec,
    given: Any,
    lineage: tuple[int, ...],
    recovered: tuple[tuple[str, int], ...],
    cause: type,
    at: float,
    out: list[Command],
) -> None:
    """Create a piece of work for a step: it starts at once, or waits for a free worker."""
    state.sequence += 1
    work = Work(state.sequence, spec.name, given, lineage, recovered, cause, at, queue=spec.queue)
    state.works[work.id] = work
    for batch in lineage:
        state.batches[batch].tokens += 1
    step = state.steps[spec.name]
    if not step.queue and len(step.slots) < spec.num_workers:
        begin_attempt(program, state, step, work, out)
        return
    step.queue.append(work)
    start_queued(program, state, spec.name, out)
    if work.slot < 0:
        narrate(program, out, work, "preparing", None)


def start_queued(program: FlowProgram, state: FlowState, name: str, out: list[Command]) -> None:
    """Start the queued work of a step while it has free workers."""
    step = state.steps[name]
    if step.queue:
        most = program.topology.steps[name].num_workers
        while step.queue and len(step.slots) < most:
            begin_attempt(program, state, step, step.queue.popleft(), out)


def begin_attempt(program: FlowProgram, state: FlowState, step: StepProgress, work: Work, out: list[Command]) -> None:
    """Give work a worker and start it, or continue it if it has waited."""
    _take_slot(state, step, work)
    if program.narrates:
        narrate(program, out, work, "running", None)
    if not work.replies:
        work.since = state.at
        out.append(run_work(work))
        return
    step.woken -= 1
    reply(work, out)


def reply(work: Work, out: list[Command]) -> None:
    """Deliver what a step has waited for. A step that is no longer in any process is started again instead."""
    if not work.asleep:
        out += [Answer(work.id, question, work.answers.get(question)) for question in work.replies]
    if work.asleep or work.queue is not None:
        out.append(run_work(work))
    work.asleep, work.replies = False, ()


def run_work(work: Work) -> RunWork:
    """Return the command that runs a piece of work, with the answers that it has."""
    known = None
    if work.answers or work.lapsed or work.given_up:
        known = (dict(work.answers), dict(work.lapsed), work.given_up)
    return RunWork(work.id, work.step, work.input, work.attempt, work.queue, known)


def run_again(work: Work, out: list[Command]) -> None:
    """Run a step on a queue again, with the present state: another step has changed what it has edited."""
    work.outdated = False
    out.append(run_work(work))


def leave(program: FlowProgram, state: FlowState, work: Work, out: list[Command]) -> None:
    """End an attempt and free its worker."""
    if work.waiting:
        for question in list(work.waiting):
            stop_waiting(state, work, question, out)
    if work.slot >= 0:
        free_slot(state, work)
    elif work.replies:
        leave_queue(state, work)
    work.suspended = False
    if work.record and deadline_of(program, work) is not None:
        out.append(DropTimer(f"step:{work.id}"))


def leave_queue(state: FlowState, work: Work) -> None:
    """Remove a step that was to continue from the queue for a free worker."""
    step = state.steps[work.step]
    step.queue.remove(work)
    step.woken -= 1
    work.replies = ()


def stop_waiting(state: FlowState, work: Work, question: str, out: list[Command]) -> None:
    """Close a wait and drop its timer."""
    wait = work.waiting.pop(question)
    waits = state.waits[wait.kind]
    waits.pop((work.id, question), None)
    if not waits:
        del state.waits[wait.kind]
    if wait.due is not None:
        out.append(DropTimer(f"wait:{work.id}:{question}"))


def free_slot(state: FlowState, work: Work) -> None:
    """Free the worker of a piece of work."""
    state.steps[work.step].slots.discard(work.slot)
    work.slot = -1
    state.running -= 1
    if work.queue is not None:
        state.on_queue -= 1


def occupy(state: FlowState, work: Work) -> None:
    """Give a worker to a step that no longer waits."""
    work.suspended = False
    if work.slot < 0 and not work.replies:
        _take_slot(state, state.steps[work.step], work)


def _take_slot(state: FlowState, step: StepProgress, work: Work) -> None:
    """Take the first free worker; a step that runs again or gives up its wait may exceed their number."""
    slot = 0
    while slot in step.slots:
        slot += 1
    work.slot = slot
    step.slots.add(slot)
    state.running += 1
    if work.queue is not None:
        state.on_queue += 1


def deadline_of(program: FlowProgram, work: Work) -> float | None:
    """Return when the present attempt of a step in a durable run times out; a step on a queue counts per job."""
    timeout = program.topology.steps[work.step].timeout
    return work.since + timeout if program.durable and timeout is not None and work.queue is None else None


def narrate(program: FlowProgram, out: list[Command], work: Work, status: str, output: type | None) -> None:
    """Publish the progress of a piece of work, if the program publishes it."""
    if not program.narrates or (work.slot < 0 and status == "not_running"):
        return  # For a waiting step it was published when the wait started.
    out.append(Publish(Narrated(work.step, status, work.slot, work.cause, output)))
