"""The answer of an engine for a message: its failures as data, its outbox, the result of a live request."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from tidemill.core.codec import encode, storable
from tidemill.core.errors import PayloadError, words_of
from tidemill.core.retry import Discard, RetryAfter, Snooze, error_lineage
from tidemill.core.user_traceback import user_traceback
from tidemill.streams.definition.message import EngineAnswer, MessageFailure, OutboxItem
from tidemill.streams.engine.context import Context
from tidemill.streams.engine.plan_runner import RunningPlan

MOST_TRACEBACK = 8000


def answer_of(
    ticket: int,
    plans: Sequence[RunningPlan],
    contexts: Sequence[Context],
    failures: Sequence[MessageFailure | None],
    *,
    gone: tuple[MessageFailure, ...],
    live: bool,
) -> EngineAnswer:
    """The answer for a message. The outbox of a failed plan is dropped."""
    expired = any(failure is not None and failure.verdict == "expired" for failure in failures)
    failed = (*(each for each in failures if each is not None and each.verdict != "expired"), *gone)
    outbox: list[OutboxItem] = []
    for ctx, failure in zip(contexts, failures, strict=True):
        if failure is None:
            outbox += ctx.outbox
    result = None
    if live:
        found = {
            plan.name: ctx.results for plan, ctx, failure in zip(plans, contexts, failures, strict=True) if not failure
        }
        try:
            result = encode(found)
        except PayloadError as error:  # A task returned something that has no JSON form.
            failed = (*failed, MessageFailure("", type(error).__name__, describe(error)))
    if expired and not failed and not outbox:
        return EngineAnswer(ticket, "expired")
    return EngineAnswer(ticket, "failed" if failed else "ok", failed, tuple(outbox), result)


def attempt_of(ctx: Context, plan: str, error: BaseException, began: float) -> MessageFailure:
    """The failure of a plan with what helps to find its cause: the traceback, and what the plan logged."""
    failure = failure_of(plan, error)
    if failure.verdict == "snooze":
        return failure
    written = storable(user_traceback(error)[-MOST_TRACEBACK:])
    took = time.perf_counter() - began
    return msgspec.structs.replace(failure, traceback=written, lines=ctx.lines_json(), seconds=took)


def failure_of(plan: str, error: BaseException) -> MessageFailure:
    """An exception as data: its class, its text, and the retry that it asks for."""
    kind, lineage = type(error).__name__, error_lineage(type(error))
    if isinstance(error, Snooze):
        return MessageFailure(plan, kind, describe(error), lineage, error.seconds, "snooze")
    if isinstance(error, RetryAfter):
        return MessageFailure(plan, kind, describe(error), lineage, error.seconds)
    if isinstance(error, Discard):
        return MessageFailure(plan, kind, describe(error), lineage, None, "discard")
    return MessageFailure(plan, kind, describe(error), lineage)


def describe(error: BaseException) -> str:
    """The text of an error and of its causes, in a form that can be sent and stored."""
    words = words_of(error) or type(error).__name__
    seen: set[int] = {id(error)}
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        message = words_of(cause) or type(cause).__name__
        if message not in words:
            words += f" (because of {type(cause).__name__}: {message})"
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return storable(words)
