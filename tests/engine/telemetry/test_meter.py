"""Counting in memory: what is handed over is what was counted, in the right bucket."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from tidemill.core.errors import ConfigError
from tidemill.core.jobs.job import ClaimedJob, Finish, Requeue
from tidemill.core.web.address import read_address
from tidemill.engine.telemetry.meter import MOST_UNSORTED, Meter, spread
from tidemill.store.telemetry.history import BOUNDS


def job(number: int = 1, *, waited: float | None = None, queue: str = "mail") -> ClaimedJob:
    due = None if waited is None else datetime.fromtimestamp(time.time() - waited, UTC)
    return ClaimedJob(number, 1, queue, "send", b"{}", None, 0, 0, False, False, due_at=due)


def test_times_fall_into_the_bucket_that_ends_at_or_above_them() -> None:
    assert spread([0.001, 0.0011, 0.9, 1.0, 100_000.0]) == [("0.001", 1), ("0.0025", 1), ("1.0", 2), ("+Inf", 1)]
    assert spread([]) == []


def test_bounds_grow() -> None:
    assert list(BOUNDS) == sorted(set(BOUNDS))


def test_every_attempt_is_counted_by_how_it_ended() -> None:
    meter = Meter()
    now = time.monotonic()
    meter.ended(job(), Finish(1, 1, "succeeded"), now - 12)
    meter.ended(job(), Finish(2, 1, "succeeded"), now - 12)
    meter.ended(job(), Finish(3, 1, "failed"), now - 70)
    meter.ended(job(), Requeue(4, 1, 0.0, "again", failed=True), now)
    meter.ended(job(), Requeue(5, 1, 9.0, "later"), now)
    counts = meter.take()
    ended = {labels[2]: value for (name, labels), value in counts.items() if name == "ended"}
    assert ended == {"succeeded": 2, "failed": 1, "retried": 1, "snoozed": 1}
    assert counts["run", ("mail", "send", "30.0")] == 2
    assert counts["run", ("mail", "send", "300.0")] == 1
    assert counts["run_sum", ("mail", "send")] == pytest.approx(94, abs=30)


def test_waiting_is_counted_from_when_a_job_was_due() -> None:
    meter = Meter()
    meter.claimed([job(1, waited=12.0), job(2, waited=40.0), job(3, waited=-60.0), job(4)])
    counts = meter.take()
    waits = {labels[1]: value for (name, labels), value in counts.items() if name == "wait"}
    assert waits == {"30.0": 1, "60.0": 1, "0.001": 1}, "a clock that is ahead of ours counts as no wait"


def test_of_a_large_batch_some_jobs_speak_for_their_neighbours() -> None:
    meter = Meter()
    meter.claimed(
        [job(number, waited=40.0) for number in range(300)] + [job(number, waited=12.0) for number in range(33)]
    )
    counts = meter.take()
    waits = {labels[1]: value for (name, labels), value in counts.items() if name == "wait"}
    assert sum(waits.values()) == 333
    assert waits["60.0"] == pytest.approx(300, abs=12)
    assert waits["30.0"] == pytest.approx(33, abs=12)


def test_queues_that_take_turns_in_a_large_batch_each_count_their_own() -> None:
    meter = Meter()
    meter.claimed([job(waited=12.0, queue=f"queue {number % 3}") for number in range(300)])
    waits = {labels[0]: value for (name, labels), value in meter.take().items() if name == "wait"}
    assert waits == {"queue 0": 100, "queue 1": 100, "queue 2": 100}


def test_what_is_taken_is_taken_once_and_can_be_given_back() -> None:
    meter = Meter()
    meter.count("watchdog_trips", "budget")
    counts = meter.take()
    assert counts == {("watchdog_trips", ("budget",)): 1}
    assert meter.take() == {}
    meter.count("watchdog_trips", "budget")
    meter.give_back(counts)
    assert meter.take() == {("watchdog_trips", ("budget",)): 2}


def test_a_meter_that_nobody_reads_does_not_grow() -> None:
    meter = Meter()
    done = Finish(1, 1, "succeeded")
    for _ in range(0, MOST_UNSORTED * 2, 100):
        meter.claimed([job(waited=0.0)] * 100)
        for _ in range(100):
            meter.ended(job(), done, 0.0)
    kept = [*meter._ran.values(), *meter._waited.values()]
    assert sum(len(times) for times in kept) <= MOST_UNSORTED * 2
    assert meter.take()["ended", ("mail", "send", "succeeded")] == MOST_UNSORTED * 2


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9464", ("127.0.0.1", 9464)),
        ("9464", ("127.0.0.1", 9464)),
        (":9464", ("127.0.0.1", 9464)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
        ("[::1]:9464", ("::1", 9464)),
        ("mill.example:1", ("mill.example", 1)),
    ],
)
def test_an_address_is_read_as_people_write_it(text: str, address: tuple[str, int]) -> None:
    assert read_address(text) == address


@pytest.mark.parametrize("text", ["", "localhost", "127.0.0.1:0", "127.0.0.1:70000", "a b:1", "http://x:1", "::1:9464"])
def test_a_wrong_address_is_explained(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is not an address: write host:port"):
        read_address(text)
