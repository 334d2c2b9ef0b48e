"""Every state of a job is explained in sentences."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tidemill.engine.explain import explain_job, explain_origin

NOON = datetime(2030, 1, 31, 12, tzinfo=UTC)


def job(state: str, **changes: Any) -> dict[str, Any]:
    """A job as the database shows it, with nothing in its way."""
    live = {
        "id": 7, "state": state, "queue": "mail", "task": "send", "attempt": 0, "losses": 0, "note": None,
        "origin": {"by": "ann@desk"}, "due_in": -1.0, "ahead": 0, "serving": 1, "knowing": 1, "held": [], "rate": None,
        "slots": None, "concurrency_key": None, "deadline": None, "cancel_reason": None, "progress": None,
        "worker_host": None, "worker_pid": None, "worker_id": None, "started_at": None, "running_for": None,
    }  # fmt: skip
    return {**live, **changes}


def why(state: str, **changes: Any) -> list[str]:
    return explain_job(job(state, **changes))[1:]


@pytest.mark.parametrize(
    ("origin", "said"),
    [
        (None, "Its origin is not recorded."),
        ({"by": "ann@desk", "host": "desk", "pid": 3}, "Enqueued by ann@desk."),
        ({"by": "app shop", "host": "web1", "pid": 3}, "Enqueued by app shop on web1 (pid 3)."),
        ({"by": "job 4 (split)", "host": "w", "pid": 3, "parent": 4}, "Enqueued by job 4 (split) on w (pid 3)."),
        (
            {"by": "scheduler", "schedule": "nightly", "fire": NOON.timestamp()},
            "Enqueued by schedule nightly, for 2030-01-31 12:00:00 UTC.",
        ),
        ({"by": "ann@desk", "schedule": "nightly"}, "Enqueued by ann@desk, who ran schedule nightly by hand."),
        ({"by": "ann@desk", "retry_of": 3, "schedule": "nightly"}, "Enqueued by ann@desk, to repeat job 3."),
    ],
)
def test_the_origin_says_who_asked_and_because_of_what(origin: dict[str, Any] | None, said: str) -> None:
    assert explain_origin(job("ready", origin=origin)) == said


def test_the_next_job_could_be_taken_at_any_moment() -> None:
    assert why("ready") == ["It is next in queue mail.", "1 worker can claim it."]
    assert why("ready", knowing=2, serving=2, knowing_and_full=1)[-1] == "2 workers can claim it."
    for workers, said in ((1, "The worker that can claim it runs"), (2, "All 2 workers that can claim it run")):
        full = why("ready", knowing=workers, serving=workers, knowing_and_full=workers)
        assert full[-1].startswith(f"{said} as many jobs as ")


def test_jobs_ahead_are_counted() -> None:
    assert why("ready", ahead=1) == ["Waits behind 1 job of queue mail."]
    assert why("ready", ahead=1200) == ["Waits behind 1,200 jobs of queue mail."]


def test_a_delayed_job_waits_for_its_time() -> None:
    assert why("ready", due_in=90.0) == ["Scheduled for later: it is due in 1m 30s."]


def test_a_retried_job_says_what_went_wrong_before() -> None:
    note = "ValueError: no: attempt 1 of 3 failed; trying again in 4s"
    assert why("ready", due_in=3.0, note=note, attempt=1)[0] == f"{note}."


def test_a_queue_that_nobody_serves_is_named_with_what_to_do() -> None:
    assert why("ready", serving=0, knowing=0)[-1] == (
        "No worker serves queue mail: start one with `tidemill worker APP --queue mail`."
    )


def test_a_task_that_no_worker_knows_is_named() -> None:
    how = "start one whose application declares it, on a machine that has what it needs"
    said = f"The only worker of queue mail cannot run task send: {how}."
    assert why("ready", knowing=0)[-1] == said
    assert why("no_worker", serving=2, knowing=0, note="worker w#1 does not know task send") == [
        "Worker w#1 does not know task send.",
        f"None of the 2 workers of queue mail can run task send: {how}.",
    ]


def test_a_held_queue_says_by_whom() -> None:
    held = ['{"mode":"pause","by":"ann@desk","host":"*","queue":"mail"}']
    assert why("ready", held=held)[-1] == (
        "An operator has paused queue mail: pause by ann@desk on every host. "
        "Resume: `tidemill workers resume '*' mail`."
    )


def test_a_rate_limit_is_given_in_words() -> None:
    assert why("ready", rate=5.0)[-1] == "Queue mail starts no more than 5 jobs a second."
    assert why("ready", rate=1 / 60)[-1] == "Queue mail starts no more than one job every 1m."


def test_a_deadline_is_given() -> None:
    assert why("ready", deadline=NOON)[-1] == "It expires if it has not started by 2030-01-31 12:00:00 UTC."


def test_a_throttled_job_that_is_not_due_waits_for_its_time_and_not_for_its_key() -> None:
    said = why("throttled", concurrency_key="user-7", slots=2, due_in=90.0, note="attempt 1 failed: tries again")
    assert said == [
        "Attempt 1 failed: tries again.",
        "Scheduled for later: it is due in 1m 30s.",
        "Then it needs a slot of concurrency key user-7: no more than 2 of its jobs may run at once.",
    ]
    assert why("throttled", concurrency_key="k", due_in=60.0, note="waits for a slot of concurrency key k")[0] == (
        "Scheduled for later: it is due in 1m."
    )


def test_a_gated_job_names_its_key_and_limit() -> None:
    assert why("throttled", concurrency_key="user-7", slots=2) == [
        "Waits for a slot of concurrency key user-7: no more than 2 of its jobs may run at once."
    ]
    held = why("throttled", concurrency_key="user-7", slots=2, holders=["3", "5 (no_worker)"])[0]
    assert held.endswith("no more than 2 of its jobs may run at once, now jobs 3, 5 (no_worker).")
    many = why("throttled", concurrency_key="user-7", slots=9, holders=list("123456"))[0]
    assert many.endswith("may run at once, now jobs 1, 2, 3, 4, 5 and others.")


def test_a_running_job_says_where_how_far_and_whether_it_is_to_stop() -> None:
    running = {"worker_host": "web1", "worker_pid": 3, "running_for": 61.0, "attempt": 2, "progress": 0.4}
    assert why("running", **running, note="chunk 4", cancel_reason="cancelled by ann@desk") == [
        "Running for 1m 1s on web1 (pid 3): attempt 2.",
        "It is 40% done.",
        "Chunk 4.",
        "It has been asked to stop: cancelled by ann@desk.",
    ]


def test_an_ended_job_says_how_it_ended() -> None:
    ended = {"started_at": NOON, "finished_at": NOON + timedelta(seconds=2), "attempt": 3, "losses": 1}
    assert why("failed", **ended, note="ValueError: no: all 3 attempts failed") == [
        "Failed at attempt 3, after 2s.",
        "Its worker was lost 1 time.",
        "ValueError: no: all 3 attempts failed.",
    ]


def test_a_job_that_never_ran_says_so() -> None:
    assert why("expired", note="its deadline had passed before it could start") == [
        "Expired without having run.",
        "Its deadline had passed before it could start.",
    ]
