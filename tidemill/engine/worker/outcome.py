"""What follows from the end of an attempt: pure decisions from an exception or result to a row's next state."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from tidemill.core.blame import suspected_again
from tidemill.core.codec import decode, encode, storable
from tidemill.core.duration import format_duration
from tidemill.core.errors import PayloadError, words_of
from tidemill.core.jobs.job import AttemptError, ClaimedJob, Finish, JobOptions, Requeue
from tidemill.core.retry import (
    Discard,
    GiveUp,
    RetryAfter,
    RetryPolicy,
    Snooze,
    decide,
    decide_after_loss,
    error_lineage,
)
from tidemill.core.user_traceback import user_traceback
from tidemill.engine.containment.exit_status import EXIT_BUDGET, EXIT_CANCEL, EXIT_STALL
from tidemill.engine.worker.context import RunningJob
from tidemill.engine.worker.isolation import TaskError

MOST_TRACEBACK = 20_000
MOST_MESSAGE = 4_000
NO_OPTIONS = JobOptions()
ONE_ATTEMPT = RetryPolicy()


class UnknownArgument(Exception):
    """A job has an argument that its task does not have in the code of this worker."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@lru_cache(maxsize=1024)
def read_options(data: bytes | None) -> JobOptions:
    """A job's options; cached, because jobs of one task share theirs."""
    return NO_OPTIONS if data is None else decode(data, JobOptions)


def policy_of(job: ClaimedJob) -> RetryPolicy:
    """The retry policy stored with the job; a single attempt if there is none or it cannot be decoded."""
    try:
        return read_options(job.options).retry or ONE_ATTEMPT
    except PayloadError:
        return ONE_ATTEMPT


def model_of(job: ClaimedJob) -> str | None:
    """The model that the job requires, if the options can be decoded."""
    try:
        return read_options(job.options).required_model
    except PayloadError:
        return None


def is_isolated(job: ClaimedJob) -> bool:
    """Whether the job runs in a process of its own."""
    try:
        return read_options(job.options).isolation == "process"
    except PayloadError:
        return False


def after_error(job: ClaimedJob, error: BaseException, *, at: float, worker: str) -> Finish | Requeue:
    """After a failed attempt: a retry or a final failure, as the job's stored policy decides."""
    if isinstance(error, Snooze):
        return Requeue(job.id, job.attempt, error.seconds, message_of(error), suspicions=0)
    report = describe_error(job, error, at=at, worker=worker)
    if isinstance(error, Discard):
        return Finish(
            job.id, job.attempt, "failed", note=f"discarded: {message_of(error)}", error=report, keyed=job.keyed
        )
    if isinstance(error, PayloadError):
        note = f"{message_of(error)}; bad payloads are not retried"
        return Finish(job.id, job.attempt, "failed", note=note, error=report, keyed=job.keyed)
    return after_failure(
        job,
        _lineage(error),
        report,
        what=_headline(error),
        retry_after=error.seconds if isinstance(error, RetryAfter) else None,
    )


def after_success(job: ClaimedJob, result: bytes | None, note: str | None, *, calls_back: bool) -> Finish:
    """After the task has returned."""
    ended = Finish(job.id, job.attempt, "succeeded", result, note, keyed=job.keyed, calls_back=calls_back)
    ended.hands_over = job.hands_over
    return ended


def after_cancel(job: ClaimedJob, reason: str, report: bytes | None = None) -> Finish:
    """After a cancel request: the job is cancelled."""
    return Finish(job.id, job.attempt, "cancelled", note=reason, error=report, keyed=job.keyed)


def after_failure(
    job: ClaimedJob, lineage: tuple[str, ...], report: bytes, *, what: str, retry_after: float | None = None
) -> Finish | Requeue:
    """Apply the stored policy to a failure of the task's code."""
    decision = decide(
        policy_of(job),
        failures=job.failures + 1,
        losses=job.losses,
        error=lineage,
        retry_after=retry_after,
        seed=job.id,
    )
    note = f"{what}: {decision.reason}"
    if isinstance(decision, GiveUp):
        return Finish(job.id, job.attempt, "failed", note=note, error=report, keyed=job.keyed)
    return Requeue(job.id, job.attempt, decision.delay, note, failed=True, error=report, suspicions=0)


def after_loss(job: ClaimedJob, report: bytes, *, held: int) -> Finish | Requeue:
    """After the worker died, which held so many jobs.

    If it held only this one, it is a loss, counted separately from failures of the code. Otherwise any of them may be
    the cause: they run in quarantine, and nothing is counted. A job in a process of its own is not the cause.
    """
    if job.cancel_reason is not None:
        return after_cancel(job, job.cancel_reason)
    if held > 1:
        if is_isolated(job):
            return Requeue(job.id, job.attempt, 0.0, "its worker died; it ran in a process of its own")
        suspicions = suspected_again(job.suspicions, alone=False)
        note = f"its worker died while it held {held} jobs: they run in quarantine until the cause is found"
        return Requeue(job.id, job.attempt, 0.0, note, suspicions=suspicions)
    decision = decide_after_loss(policy_of(job), losses=job.losses + 1)
    if isinstance(decision, GiveUp):
        return Finish(job.id, job.attempt, "failed", note=decision.reason, error=report, lost=True)
    suspicions = suspected_again(job.suspicions, alone=True)
    return Requeue(job.id, job.attempt, decision.delay, decision.reason, lost=True, error=report, suspicions=suspicions)


def after_lost_machine(job: ClaimedJob, error: BaseException, *, at: float, worker: str) -> Finish | Requeue:
    """After the machine was lost that ran a job for its worker: a loss, for which the job is not suspected."""
    report = describe_error(job, error, at=at, worker=worker)
    decision = decide_after_loss(policy_of(job), losses=job.losses + 1)
    note = f"{message_of(error)}: {decision.reason}"
    if isinstance(decision, GiveUp):
        return Finish(job.id, job.attempt, "failed", note=note, error=report, lost=True, keyed=job.keyed)
    return Requeue(job.id, job.attempt, decision.delay, note, lost=True, error=report)


class Overrun(msgspec.Struct, frozen=True):
    """A kind of overrun: its name, and the exit status of a worker that had to be ended because of it."""

    kind: str
    exit_status: int


OVERRUNS = {
    "budget": Overrun("BudgetExceeded", EXIT_BUDGET),
    "stall": Overrun("Stalled", EXIT_STALL),
    "cancel": Overrun("Cancelled", EXIT_CANCEL),
}


def after_overrun(job: ClaimedJob, overrun: Overrun, seen: RunningJob, *, at: float, worker: str) -> Finish | Requeue:
    """After a job exceeded its budget, stalled or ignored its cancellation: a failure like any other, or the end of the
    cancellation."""
    if seen.cancel_reason is not None:
        return after_cancel(job, seen.cancel_reason)
    if overrun.kind == "Stalled":
        message = f"no sign of life for {format_duration(seen.stall or 0)}"
    else:
        message = f"ran longer than its budget of {format_duration(seen.budget or 0)}"
    report = record(job, kind=overrun.kind, message=message, at=at, worker=worker)
    return after_failure(job, (overrun.kind,), report, what=message)


def after_blocking(job: ClaimedJob, why: str, *, at: float, worker: str) -> Finish | Requeue:
    """After a job kept the event loop of its worker from turning until the worker was ended: a failure of its code."""
    report = record(job, kind="BlockedEventLoop", message=why, at=at, worker=worker)
    return after_failure(job, ("BlockedEventLoop",), report, what=why)


def after_self_cancel(job: ClaimedJob, error: BaseException, *, at: float, worker: str) -> Finish | Requeue:
    """After the task raised CancelledError without a cancel request: a failure of its code."""
    return after_failure(
        job,
        error_lineage(type(error)),
        describe_error(job, error, at=at, worker=worker),
        what="the task cancelled itself",
    )


def describe_error(job: ClaimedJob, error: BaseException, *, at: float, worker: str) -> bytes:
    """The record of a failed attempt, with the full traceback of the task's own frames."""
    # An error from another process carries its bases and its traceback.
    text = error.trace if isinstance(error, TaskError) else user_traceback(error)
    return record(job, kind=_lineage(error)[0], message=message_of(error), at=at, worker=worker, trace=text)


def record(job: ClaimedJob, *, kind: str, message: str, at: float, worker: str, trace: str = "") -> bytes:
    """One entry of a job's error list, as JSON."""
    entry = AttemptError(
        attempt=job.attempt,
        at=at,
        kind=kind,
        message=storable(_shortened(message, MOST_MESSAGE)),
        traceback=storable(_shortened(trace, MOST_TRACEBACK)),
        worker=worker,
    )
    return encode(entry)


def _lineage(error: BaseException) -> tuple[str, ...]:
    return error.lineage if isinstance(error, TaskError) else error_lineage(type(error))


def message_of(error: BaseException) -> str:
    """The message of an exception, in a form that can be stored."""
    return storable(_shortened(words_of(error), MOST_MESSAGE))


def _shortened(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n... {len(text) - most} characters left out ...\n{text[-half:]}"


def _headline(error: BaseException) -> str:
    text = message_of(error).strip().split("\n", 1)[0][:300]
    name = _lineage(error)[0].rpartition(".")[2]
    return f"{name}: {text}" if text else name
