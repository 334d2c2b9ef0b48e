"""The failure of an attempt: retried, handled by a `catch_error` step, or the end of the run. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tidemill.core.ticks import Command, SetTimer
from tidemill.flows.definition.events import ChildEnded, CollectionReleaseEvent, StepFailedEvent, WorkflowFailedEvent
from tidemill.flows.encoding.exceptions import exception_of
from tidemill.flows.errors import WorkflowRuntimeError
from tidemill.flows.reducer.attempts import enqueue, start_queued
from tidemill.flows.reducer.event_buffer import undo_all
from tidemill.flows.reducer.joins import release_token
from tidemill.flows.reducer.mailbox import send_event_of
from tidemill.flows.reducer.run_end import compensate_next, end_run
from tidemill.flows.reducer.state.flow_state import NONE, FlowState, Work
from tidemill.flows.reducer.state.undo import drop_kept_writes
from tidemill.flows.reducer.step_ticks import Ended, StepFailure

if TYPE_CHECKING:
    from tidemill.flows.reducer.reducer import FlowProgram


def attempt_failed(
    program: FlowProgram, state: FlowState, work: Work, ended: Ended, at: float, out: list[Command]
) -> None:
    """Undo the changes of a failed attempt, then retry it, call its error handler, or end the run."""
    forget_attempt(state, work)
    work.failed_at, work.error = at, ended.error
    if ended.retry_in is not None:
        work.attempt += 1
        if ended.retry_in > 0:
            state.pending += 1
            work.retry_at = at + ended.retry_in
            out.append(SetTimer(f"retry:{work.id}", work.retry_at))
        else:
            step = state.steps[work.step]
            step.queue.insert(step.woken, work)
        start_queued(program, state, work.step, out)
        return
    drop_kept_writes(state, work)
    del state.works[work.id]
    if state.ending is not None:
        message = "the step failed" if ended.error is None else ended.error.message
        state.ending.failed.append(f"{work.step}: {message}")
        compensate_next(program, state, out)
        return
    handler = program.topology.handler_of.get(work.step)
    rescued = dict(work.recovered).get(handler.name, 0) if handler is not None else 0
    if handler is None or rescued >= handler.catch_error_max_recoveries:
        event = WorkflowFailedEvent(
            step_name=work.step,
            exception=_exception(ended.error),
            attempts=work.attempt,
            elapsed_seconds=at - work.began,
        )
        end_run(program, state, out, "failed", error=ended.error, event=event)
        return
    failed = StepFailedEvent(
        step_name=work.step,
        input_event=_as_event(work.input),
        exception=_exception(ended.error),
        attempts=work.attempt,
        elapsed_seconds=at - work.began,
        failed_at=datetime.fromtimestamp(at, UTC),
    )
    recovered = (*((n, c) for n, c in work.recovered if n != handler.name), (handler.name, rescued + 1))
    enqueue(program, state, handler, failed, work.lineage, recovered, StepFailedEvent, at, out)
    release_token(program, state, work.lineage, at, out)
    start_queued(program, state, work.step, out)


def forget_attempt(state: FlowState, work: Work) -> None:
    """Undo a failed attempt as a whole. Answers, side effects and successful children carry over to the next one."""
    undo_all(state, work)
    work.spare += tuple(send_event_of(each) for each in work.record if each.kind == "send")
    work.record, work.lapsed, work.shown, work.counted_to = (), {}, 0, None
    work.asked = work.withdrawn = work.given_up = NONE
    for key, answer in list(work.answers.items()):
        if isinstance(answer, ChildEnded) and answer.state != "succeeded":
            del work.answers[key]
            base = key.partition(" again ")[0]
            reborn = work.reborn or {}
            work.reborn = {**reborn, base: reborn.get(base, 0) + 1}


def _as_event(given: Any) -> Any:
    if isinstance(given, list):
        return CollectionReleaseEvent(events=given)
    return next(reversed(given.values())) if isinstance(given, dict) else given


def _exception(failure: StepFailure | None) -> Exception:
    if failure is None:
        return WorkflowRuntimeError("the step failed")
    if failure.exception is not None:
        return failure.exception
    return exception_of(failure.kind, failure.message)
