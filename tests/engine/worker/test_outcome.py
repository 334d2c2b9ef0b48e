"""How an attempt ends decides what becomes of its job's row."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tidemill.core.blame import ALONE
from tidemill.core.codec import decode, encode
from tidemill.core.errors import PayloadError
from tidemill.core.jobs.job import AttemptError, ClaimedJob, Finish, JobOptions, Requeue
from tidemill.core.retry import Discard, RetryAfter, RetryPolicy, Snooze, retry
from tidemill.engine.worker.context import RunningJob
from tidemill.engine.worker.isolation import ChildDied, TaskError
from tidemill.engine.worker.outcome import (
    MOST_TRACEBACK,
    OVERRUNS,
    after_error,
    after_loss,
    after_overrun,
    after_self_cancel,
    read_options,
    record,
)

NOW, WORKER = 1000.0, "host:7#1"


class AccountError(Exception): ...


class NotPaid(AccountError): ...


def claimed(policy: RetryPolicy | None = None, **changes: Any) -> ClaimedJob:
    options = None if policy is None else encode(JobOptions(retry=policy))
    fields = {"id": 5, "attempt": 3, "queue": "mail", "task": "send", "args": b"{}", "options": options,
              "failures": 0, "losses": 0, "keyed": False, "expired": False}  # fmt: skip
    return ClaimedJob(**{**fields, **changes})


def raised(error: BaseException) -> BaseException:
    """The error as it arrives: with a traceback."""
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001 - whatever it is
        return caught


def after(error: BaseException, policy: RetryPolicy | None = None, **changes: Any) -> Finish | Requeue:
    return after_error(claimed(policy, **changes), raised(error), at=NOW, worker=WORKER)


def failed(outcome: Finish | Requeue) -> Finish:
    assert isinstance(outcome, Finish)
    assert outcome.state == "failed"
    assert (outcome.id, outcome.attempt) == (5, 3)
    return outcome


def requeued(outcome: Finish | Requeue) -> Requeue:
    assert isinstance(outcome, Requeue)
    assert (outcome.id, outcome.attempt, outcome.state) == (5, 3, "ready")
    return outcome


def told(outcome: Finish | Requeue) -> AttemptError:
    assert outcome.error is not None
    return decode(outcome.error, AttemptError)


# Errors


def test_an_error_without_a_policy_fails_the_job_and_keeps_its_traceback() -> None:
    outcome = failed(after(ValueError("bad number")))
    assert outcome.note == "ValueError: bad number: its only attempt failed"
    report = told(outcome)
    assert (report.attempt, report.at, report.kind, report.message, report.worker) == (
        3, NOW, "ValueError", "bad number", WORKER,
    )  # fmt: skip
    assert "Traceback (most recent call last)" in report.traceback
    assert "in raised" in report.traceback
    assert report.traceback.endswith("ValueError: bad number\n")


def test_an_error_within_the_policy_is_tried_again_after_its_wait_and_counts_as_a_failure() -> None:
    outcome = requeued(after(OSError("down"), retry(3, backoff="10s", jitter=0)))
    assert (outcome.delay, outcome.failed, outcome.lost) == (10.0, True, False)
    assert outcome.note == "OSError: down: attempt 1 of 3 failed; trying again in 10s"
    assert told(outcome).message == "down"


def test_the_failures_so_far_decide_not_the_number_of_claims() -> None:
    policy = retry(3, backoff="1s", jitter=0)
    assert requeued(after(OSError(), policy, attempt=3, failures=1)).delay == 2.0
    assert failed(after(OSError(), policy, failures=2)).note == "OSError: all 3 attempts failed"


def test_an_error_that_is_not_worth_retrying_fails_at_once_also_by_its_base() -> None:
    policy = retry(5, no_retry=(AccountError,))
    assert "not worth retrying" in str(failed(after(NotPaid("no"), policy)).note)
    assert requeued(after(OSError(), policy)).failed
    only = retry(5, retry_on=(ConnectionError,))
    assert requeued(after(ConnectionResetError(), only)).failed
    assert "not among the errors" in str(failed(after(NotPaid(), only)).note)


def test_retry_after_waits_exactly_as_long_as_it_asks() -> None:
    outcome = requeued(after(RetryAfter("90s", "rate limited"), retry(3, backoff="1s")))
    assert (outcome.delay, outcome.failed) == (90.0, True)
    assert "rate limited" in outcome.note
    assert "as the task asked" in outcome.note
    assert "all 3 attempts failed" in str(failed(after(RetryAfter(1), retry(3), failures=2)).note)


def test_a_snooze_is_neither_a_failure_nor_an_error() -> None:
    outcome = requeued(after(Snooze("5m", "report is not ready"), None, failures=4))
    assert (outcome.delay, outcome.failed, outcome.lost, outcome.error) == (300.0, False, False, None)
    assert outcome.note == "report is not ready"


def test_a_discard_fails_now_whatever_the_policy_says() -> None:
    outcome = failed(after(Discard("order was cancelled"), retry(10)))
    assert outcome.note == "discarded: order was cancelled"
    assert told(outcome).kind.endswith("Discard")


def test_a_bad_payload_is_never_retried() -> None:
    outcome = failed(after(PayloadError("task send: bad arguments"), retry(10)))
    assert outcome.note == "task send: bad arguments; bad payloads are not retried"


def test_a_keyed_job_stays_marked_when_it_ends() -> None:
    for error in (ValueError(), Discard("x"), PayloadError("x")):
        assert failed(after(error, keyed=True)).keyed


def test_an_error_from_a_child_process_keeps_its_kind_bases_and_traceback() -> None:
    error = TaskError(
        ("shop.NotPaid", "shop.AccountError", "Exception"), "no", "Traceback of the child\nshop.NotPaid: no\n"
    )
    outcome = failed(after(error, retry(5, no_retry=("AccountError",))))
    assert told(outcome).kind == "shop.NotPaid"
    assert told(outcome).traceback == "Traceback of the child\nshop.NotPaid: no\n"
    assert str(outcome.note).startswith("NotPaid: no")


def test_a_child_that_died_is_a_failure_that_is_retried() -> None:
    assert requeued(after(ChildDied("killed by SIGSEGV"), retry(2))).failed


# Lost workers, limits, cancellation


def test_a_lost_worker_that_held_only_this_job_is_counted_apart_and_tried_again_at_once() -> None:
    outcome = requeued(after_loss(claimed(), b"{}", held=1))
    assert (outcome.delay, outcome.failed, outcome.lost, outcome.suspicions) == (0.0, False, True, ALONE)


def test_a_lost_worker_that_held_several_jobs_is_no_loss_of_any_but_makes_them_suspects() -> None:
    outcome = requeued(after_loss(claimed(retry(3, max_losses=1)), b"{}", held=2))
    assert (outcome.delay, outcome.failed, outcome.lost, outcome.suspicions) == (0.0, False, False, 1)
    assert outcome.error is None
    assert "quarantine" in outcome.note


def test_a_job_that_was_cancelled_before_its_worker_was_lost_does_not_run_again() -> None:
    job = claimed()
    job.cancel_reason = "enough"
    for held in (1, 2):
        assert isinstance(after_loss(job, b"{}", held=held), Finish)


def test_a_suspect_that_fails_by_itself_is_cleared() -> None:
    assert requeued(after(ValueError("no"), retry(2))).suspicions == 0
    assert requeued(after(Snooze(5.0), retry(2))).suspicions == 0


def test_a_job_that_keeps_losing_its_workers_is_given_up() -> None:
    outcome = failed(after_loss(claimed(retry(3, max_losses=2), losses=1), b"{}", held=1))
    assert outcome.note == "its worker died 2 times while running it"


@pytest.mark.parametrize(
    ("kind", "status", "message"),
    [("budget", 75, "ran longer than its budget of 2s"), ("stall", 76, "no sign of life for 1m")],
)
def test_an_overrun_is_a_failure_with_its_own_exit_status(kind: str, status: int, message: str) -> None:
    seen = RunningJob(5, 3, "mail", "send")
    seen.budget, seen.stall = 2.0, 60.0
    outcome = requeued(after_overrun(claimed(retry(2)), OVERRUNS[kind], seen, at=NOW, worker=WORKER))
    assert outcome.failed
    assert outcome.note.startswith(message)
    assert told(outcome).kind == OVERRUNS[kind].kind
    assert OVERRUNS[kind].exit_status == status
    assert failed(after_overrun(claimed(), OVERRUNS[kind], seen, at=NOW, worker=WORKER))


def test_a_policy_may_name_an_overrun() -> None:
    seen = RunningJob(5, 3, "mail", "send")
    policy = retry(5, no_retry=("BudgetExceeded",))
    assert failed(after_overrun(claimed(policy), OVERRUNS["budget"], seen, at=NOW, worker=WORKER))


def test_a_task_that_cancels_itself_has_failed() -> None:
    error = raised(asyncio.CancelledError())
    outcome = failed(after_self_cancel(claimed(), error, at=NOW, worker=WORKER))
    assert str(outcome.note).startswith("the task cancelled itself")
    assert requeued(after_self_cancel(claimed(retry(2)), error, at=NOW, worker=WORKER)).failed


# What is written down


def test_a_long_traceback_is_cut_in_the_middle() -> None:
    def deeper(levels: int) -> None:
        if not levels:
            raise ValueError("y" * 5)
        deeper(levels - 1)

    try:
        deeper(20)
    except ValueError as error:
        error.add_note("z" * (3 * MOST_TRACEBACK))
        outcome = after_error(claimed(), error, at=NOW, worker=WORKER)
    trace = told(outcome).traceback
    assert len(trace) < MOST_TRACEBACK + 100
    assert trace.startswith("Traceback (most recent call last)")
    assert "characters left out" in trace


def test_a_long_message_does_not_make_a_long_note() -> None:
    assert len(str(failed(after(ValueError("x" * 100_000))).note)) < 500
    assert str(failed(after(ValueError("first line\nsecond line"))).note).startswith("ValueError: first line: ")


def test_a_message_of_any_length_makes_a_bounded_record() -> None:
    error = failed(after(ValueError("x" * 1_000_000))).error
    assert error is not None
    assert len(error) < 100_000


HARD = "nul \x00 and half a pair \ud800 and \udfff"


@pytest.mark.parametrize(
    "error",
    [ValueError(HARD), RetryAfter(1, HARD), Snooze(1, HARD), Discard(HARD), PayloadError(HARD)],
    ids=lambda error: type(error).__name__,
)
def test_text_that_postgresql_cannot_store_is_made_storable(error: Exception) -> None:
    for policy in (None, retry(5)):
        outcome = after(error, policy)
        assert is_storable(str(outcome.note))
        if outcome.error is not None:
            assert b"\\u0000" not in outcome.error
            report = told(outcome)
            assert is_storable(report.message)
            assert is_storable(report.traceback)


@given(st.text(st.characters(), max_size=50), st.text(st.characters(), max_size=50))
def test_any_message_and_traceback_can_be_recorded(message: str, trace: str) -> None:
    data = record(claimed(), kind="E", message=message, at=NOW, worker=WORKER, trace=trace)
    entry = decode(data, AttemptError)
    assert is_storable(entry.message)
    assert is_storable(entry.traceback)


def is_storable(text: str) -> bool:
    text.encode()
    return "\x00" not in text


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Traced(Exception):
    """An error with attributes that only look like ours."""

    def __init__(self) -> None:
        super().__init__("x")
        self.trace = ["a", "b"]
        self.lineage = 7


@pytest.mark.parametrize("error", [Speechless(), Traced()], ids=lambda error: type(error).__name__)
def test_an_error_of_any_shape_ends_its_attempt(error: Exception) -> None:
    outcome = failed(after(error))
    assert told(outcome).kind.endswith(type(error).__name__)


# Options


def test_a_job_without_options_has_the_usual_ones() -> None:
    assert read_options(None) == JobOptions()
    assert read_options(b'{"budget": 2.0}').budget == 2.0
