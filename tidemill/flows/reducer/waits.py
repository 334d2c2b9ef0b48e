"""Waits of steps for events: opened, answered, withdrawn, and the continuation of the step. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from tidemill.core.ticks import Answer, Command, SetTimer
from tidemill.flows.definition.events import ChildEnded
from tidemill.flows.reducer.attempts import begin_attempt, leave_queue, occupy, reply, run_work, stop_waiting
from tidemill.flows.reducer.mailbox import meets
from tidemill.flows.reducer.state.flow_state import FlowState, Wait, Work

if TYPE_CHECKING:
    from tidemill.flows.reducer.reducer import FlowProgram


def answer_waits(program: FlowProgram, state: FlowState, event: Any, out: list[Command]) -> bool:
    """Deliver an event to every step that waits for it; returns False if none does."""
    kind = type(event)
    answered = False
    for each in kind.__mro__:
        waits = state.waits.get(each)
        for (_, question), work in list(waits.items()) if waits else ():
            wait = work.waiting[question]
            if (each is kind or wait.subclasses) and meets(event, wait.requirements):
                work.answers[question] = event
                continue_step(program, state, work, question, out)
                answered = True
    return answered


def answer_now(work: Work, question: str, event: Any, out: list[Command]) -> None:
    """Answer a step that has only just asked. A step on a queue has ended its job, so a new job is started."""
    out.append(Answer(work.id, question, event))
    if work.queue is not None:
        out.append(run_work(work))


def withdraw(state: FlowState, work: Work, question: str, out: list[Command]) -> None:
    """Stop a wait that the step has given up. An answer that was on its way is the first in the mailbox."""
    if question in work.waiting:
        stop_waiting(state, work, question, out)
        occupy(state, work)
    elif state.rules > 1 and question in work.answers:
        state.mailbox.appendleft(work.answers.pop(question))
        if work.replies == (question,):
            leave_queue(state, work)
            occupy(state, work)
        elif question in work.replies:
            work.replies = tuple(each for each in work.replies if each != question)
    work.withdrawn |= {question}


def open_wait(state: FlowState, work: Work, wait: Wait, out: list[Command]) -> None:
    """Wait for an event, with a timer if the wait has an end."""
    work.waiting[wait.question] = wait
    state.waits.setdefault(wait.kind, {})[work.id, wait.question] = work
    if wait.due is not None:
        out.append(SetTimer(f"wait:{work.id}:{wait.question}", wait.due))


def continue_step(program: FlowProgram, state: FlowState, work: Work, question: str, out: list[Command]) -> None:
    """Continue a step whose wait is over: at once, or as the next when it has no free worker."""
    stop_waiting(state, work, question, out)
    work.suspended = False
    work.replies += (question,)
    if work.slot >= 0:
        reply(work, out)
    elif len(work.replies) == 1:
        step = state.steps[work.step]
        if state.rules == 1 or len(step.slots) < program.topology.steps[work.step].num_workers:
            step.woken += 1
            begin_attempt(program, state, step, work, out)
        else:
            step.queue.insert(step.woken, work)
            step.woken += 1


def restart_copied(state: FlowState, work: Work, out: list[Command]) -> None:
    """Let work of a copied run start again, with children of its own: those that have not ended report to the other."""
    children = [question for question, wait in work.waiting.items() if wait.kind is ChildEnded]
    for question in children:
        stop_waiting(state, work, question, out)
    if children:
        occupy(state, work)
    is_over = {*work.answers, *work.given_up}
    work.record = tuple(
        each for each in work.record if each.kind != "child" or each.result in is_over or each.error is not None
    )
    work.restarted = work.slot >= 0


def number_waits(state: FlowState, work: Work, out: list[Command]) -> None:
    """Give each wait of an older version its number: one that had timed out twice before is the third."""
    for base, times in list(work.lapsed.items()):
        del work.lapsed[base]
        work.lapsed |= {numbered(base, number + 1): 1 for number in range(times)}
        question = numbered(base, times + 1)
        if base == work.counted_to:
            work.counted_to = question
        if base in work.answers:
            work.answers[question] = work.answers.pop(base)
        if base in work.waiting:
            wait = work.waiting[base]
            stop_waiting(state, work, base, out)
            open_wait(state, work, msgspec.structs.replace(wait, question=question), out)


def once_question(name: str) -> str:
    """Return the name under which a step waits for the commit of a side effect."""
    return f"once {name}"


def numbered(base: str, number: int) -> str:
    """Return the question of the wait with this number among those that ask the same."""
    return base if number == 1 else f"{base} #{number}"
