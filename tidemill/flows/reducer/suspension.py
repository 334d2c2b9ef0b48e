"""Suspend a step that waits: its record is kept, and its worker is free. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.core.ticks import Command, Publish, SetTimer
from tidemill.flows.encoding.record import resolve
from tidemill.flows.reducer.attempts import deadline_of, free_slot, narrate, start_queued
from tidemill.flows.reducer.mailbox import send_event_of, take_fitting, take_spare
from tidemill.flows.reducer.record import RecordedOperation
from tidemill.flows.reducer.routing import deliver
from tidemill.flows.reducer.state.flow_state import NONE, FlowState, QueuedEvent, Wait, Work
from tidemill.flows.reducer.step_ticks import WaitAsked
from tidemill.flows.reducer.waits import answer_now, open_wait

if TYPE_CHECKING:
    from tidemill.flows.reducer.reducer import FlowProgram


def ask(program: FlowProgram, state: FlowState, work: Work, note: WaitAsked, at: float, out: list[Command]) -> None:
    """Answer a step that asks for an event from what has arrived, or let it wait."""
    rests_on = note.rests_on
    if note.operations is None:  # An older version: other steps have seen its writes and events, so they are kept.
        work.counted_to, work.wrote, work.shown = note.question, len(work.undo), max(work.shown, note.shown)
        rests_on = (note.question,)
    else:
        keep_record(program, state, work, note.operations, at, out)
    question = note.question
    if question in work.answers or note.lapses < work.lapsed.get(question, 0):
        answer_now(work, question, work.answers.get(question), out)
        return
    asked = work.waiting.get(question)
    if asked is None:
        fitting = take_fitting(state, note.kind, note.requirements, subclasses=note.subclasses)
        if fitting is not None:
            work.answers[question] = fitting
            answer_now(work, question, fitting, out)
            return
        asked = Wait(question, note.kind, note.requirements, None, note.timeout, note.subclasses)
    if asked.due is None and note.timeout is not None:
        asked.due = at + note.timeout
    work.waiting[question] = asked
    if all(each in work.waiting for each in rests_on) and rests_on:
        suspend(program, state, work, out)
    if question not in work.asked and note.show is not None:
        out.append(Publish(note.show))
    work.asked |= {question}
    open_wait(state, work, asked, out)


def keep_record(
    program: FlowProgram,
    state: FlowState,
    work: Work,
    operations: tuple[RecordedOperation, ...],
    at: float,
    out: list[Command],
) -> None:
    """Record what a step did since its last suspension: from here on it is kept, and its events leave."""
    kept = resolve(operations, state.store)
    for operation in kept:
        if operation.kind == "send":
            sent = send_event_of(operation)
            if operation.leaves:
                deliver(program, state, QueuedEvent(sent[0]), at, out, target=sent[1])
            else:
                spare = list(work.spare)
                take_spare(spare, sent)
                work.spare = tuple(spare)
    work.record += kept
    work.wrote, work.gathered_before, work.taken_before = len(work.undo), len(work.gathered), len(work.taken)
    work.given_up |= work.withdrawn
    work.withdrawn = NONE
    work.counted_to = None


def suspend(program: FlowProgram, state: FlowState, work: Work, out: list[Command]) -> None:
    """Free the worker of a step that waits with all its parts."""
    work.suspended = work.counted_to is None
    if (deadline := deadline_of(program, work)) is not None:
        out.append(SetTimer(f"step:{work.id}", deadline))
    if work.slot >= 0:
        narrate(program, out, work, "not_running", None)
        free_slot(state, work)
        start_queued(program, state, work.step, out)
