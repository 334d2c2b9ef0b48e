"""The retry algebra: conditions, waits, stops and what they make together."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tidemill.flows import StartEvent, StopEvent, Workflow, step
from tidemill.flows.definition.retry_policy import (
    ConstantDelayRetryPolicy,
    ExponentialBackoffRetryPolicy,
    WaitStrategy,
    next_delay,
    retry_all,
    retry_always,
    retry_any,
    retry_if_exception,
    retry_if_exception_cause_type,
    retry_if_exception_message,
    retry_if_exception_type,
    retry_if_not_exception_message,
    retry_if_not_exception_type,
    retry_never,
    retry_policy,
    retry_unless_exception_type,
    stop_after_attempt,
    stop_after_delay,
    stop_all,
    stop_any,
    stop_before_delay,
    stop_never,
    wait_chain,
    wait_combine,
    wait_exponential,
    wait_exponential_jitter,
    wait_fixed,
    wait_full_jitter,
    wait_incrementing,
    wait_none,
    wait_random,
    wait_random_exponential,
)
from tidemill.flows.errors import WorkflowValidationError


def first_waits(wait: WaitStrategy, count: int = 6) -> list[float]:
    return [wait(n) for n in range(count)]


def caused() -> ValueError:
    try:
        raise ValueError("outer") from KeyError("inner")
    except ValueError as error:
        return error


def test_waits_grow_as_their_names_say() -> None:
    assert first_waits(wait_fixed(timedelta(seconds=3)), 2) == [3.0, 3.0]
    assert first_waits(wait_none(), 2) == [0.0, 0.0]
    assert first_waits(wait_exponential()) == [1, 2, 4, 8, 16, 32]
    assert first_waits(wait_exponential(multiplier=2, exp_base=3, max=20, min=5)) == [5, 6, 18, 20, 20, 20]
    assert first_waits(wait_incrementing(), 3) == [0, 100, 200]
    assert first_waits(wait_incrementing(5, -2)) == [5, 3, 1, 0, 0, 0]
    assert first_waits(wait_incrementing(1, 2, max=6)) == [1, 3, 5, 6, 6, 6]
    assert first_waits(wait_chain(wait_fixed(1), wait_fixed(2)), 4) == [1, 2, 2, 2]


def test_waits_add_up() -> None:
    assert first_waits(wait_fixed(1) + wait_fixed(2), 1) == [3]
    assert first_waits(sum([wait_fixed(1), wait_fixed(2), wait_fixed(3)], start=wait_none()), 1) == [6]
    assert sum([wait_fixed(1), wait_fixed(2)])(0) == 3  # type: ignore[operator, arg-type]
    assert wait_combine()(0) == 0


def test_a_chain_needs_a_wait() -> None:
    with pytest.raises(ValueError, match="at least one"):
        wait_chain()


def test_a_very_late_retry_waits_no_longer_than_the_maximum() -> None:
    assert wait_exponential(max=60)(100_000) == 60
    assert wait_exponential_jitter(max=60)(100_000) == 60


@pytest.mark.parametrize(
    ("make", "low", "high"),
    [
        (lambda: wait_random(1, 2), lambda n: 1, lambda n: 2),
        (lambda: wait_exponential_jitter(jitter=0.5), lambda n: min(2**n, 60), lambda n: min(2**n + 0.5, 60)),
        (lambda: wait_random_exponential(min=0.5), lambda n: 0.5, lambda n: min(2**n, 60)),
        (lambda: wait_full_jitter(), lambda n: 0, lambda n: min(2**n, 60)),
        (lambda: wait_random(0, 1) + wait_random(0, 1), lambda n: 0, lambda n: 2),
    ],
)
@given(seed=st.integers(0, 2**32 - 1), attempt=st.integers(0, 20))
def test_a_seeded_wait_is_always_the_same_and_within_its_bounds(
    make: Callable[[], WaitStrategy],
    low: Callable[[int], float],
    high: Callable[[int], float],
    seed: int,
    attempt: int,
) -> None:
    wait = make()(attempt, seed=seed)
    assert wait == make()(attempt, seed=seed)
    assert low(attempt) <= wait <= high(attempt)


def test_seeds_spread_the_waits() -> None:
    assert len({wait_random()(0, seed=seed) for seed in range(100)}) == 100
    assert 0 <= wait_random()(0) <= 1


def test_two_chances_in_one_sum_are_not_the_same_chance() -> None:
    one = wait_random(0, 1)
    assert (one + one)(0, seed=7) != 2 * one(0, seed=7)


def test_stops_count_attempts_and_time() -> None:
    assert [stop_after_attempt(3)(n, 0) for n in (2, 3, 4)] == [False, True, True]
    assert [stop_after_delay(2)(1, elapsed) for elapsed in (1, 2, 3)] == [False, True, True]
    assert [stop_before_delay(2)(1, 1, upcoming_sleep=wait) for wait in (0.5, 1, 2)] == [False, True, True]
    assert stop_never()(10**6, 10**6) is False


def test_stops_combine() -> None:
    few, late = stop_after_attempt(3), stop_after_delay(1)
    assert (few | late)(1, 5)
    assert not (few & late)(1, 5)
    assert (few & late)(3, 5)
    assert isinstance(few | late, stop_any)
    assert isinstance(few & late, stop_all)
    assert not stop_any()(1, 1)
    assert stop_all()(1, 1)


def test_conditions_look_at_the_exception() -> None:
    assert retry_if_exception(lambda error: "x" in str(error))(ValueError("x"))
    assert retry_if_exception_type((KeyError, ValueError))(ValueError())
    assert not retry_if_exception_type()(KeyboardInterrupt())
    assert not retry_if_not_exception_type(ValueError)(ValueError())
    assert retry_unless_exception_type(ValueError)(KeyError())
    assert retry_if_exception_message("busy")(ValueError("busy"))
    assert not retry_if_exception_message("busy")(ValueError("so busy"))
    assert retry_if_exception_message(match="bus.")(ValueError("so busy"))
    assert retry_if_exception_message(match=re.compile("BUSY", re.IGNORECASE))(ValueError("busy"))
    assert not retry_if_not_exception_message(match="busy")(ValueError("so busy"))
    assert retry_if_exception_cause_type(KeyError)(caused())
    assert not retry_if_exception_cause_type(ValueError)(caused())


@pytest.mark.parametrize("arguments", [{}, {"message": "a", "match": "b"}])
def test_a_message_condition_takes_either_a_message_or_a_pattern(arguments: dict[str, str]) -> None:
    with pytest.raises(TypeError, match="message= and match="):
        retry_if_exception_message(**arguments)


def test_conditions_combine_with_each_other_and_with_plain_functions() -> None:
    assert (retry_never() | (lambda error: True))(ValueError())
    assert ((lambda error: True) | retry_never())(ValueError())
    assert not (retry_always() & (lambda error: False))(ValueError())
    assert isinstance(retry_never() | retry_always(), retry_any)
    assert isinstance((lambda error: True) & retry_always(), retry_all)


def test_a_policy_retries_everything_twice_after_five_seconds_by_default() -> None:
    assert [retry_policy().next(0, failures, ValueError()) for failures in (1, 2, 3, 4)] == [5, 5, None, None]


def test_a_policy_asks_its_condition_then_its_wait_then_its_stop() -> None:
    policy = retry_policy(retry=retry_if_exception_type(KeyError), wait=wait_exponential(), stop=stop_before_delay(5))
    assert policy.next(0, 1, ValueError()) is None
    assert [policy.next(0, failures, KeyError()) for failures in range(1, 6)] == [1, 2, 4, None, None]


def test_the_older_policies_still_work_and_point_to_the_newer_ones() -> None:
    with pytest.warns(DeprecationWarning, match="wait_fixed"):
        constant = ConstantDelayRetryPolicy(maximum_attempts=2, delay=1)
    with pytest.warns(DeprecationWarning, match="wait_random_exponential"):
        exponential = ExponentialBackoffRetryPolicy(maximum_attempts=4, jitter=False)
    assert [constant.next(0, n, ValueError()) for n in (1, 2)] == [1, None]
    assert [exponential.next(0, n, ValueError()) for n in (1, 2, 3, 4)] == [1, 2, 4, None]


def test_a_policy_of_the_users_own_need_not_know_seeds() -> None:
    class Patient:
        def next(self, elapsed_time: float, attempts: int, error: Exception) -> float | None:
            return elapsed_time + attempts

    class Seeded:
        def next(self, elapsed_time: float, attempts: int, error: Exception, *, seed: int | None = None) -> float:
            return float(seed or 0)

    error = ValueError()
    assert next_delay(Patient(), elapsed=1, attempts=2, error=error, seed=9) == 3  # type: ignore[arg-type]
    assert next_delay(Seeded(), elapsed=1, attempts=2, error=error, seed=9) == 9
    assert next_delay(retry_policy(), elapsed=0, attempts=1, error=error, seed=9) == 5


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"retry": wait_fixed(1), "wait": stop_after_attempt(3)}, r"retry=wait_fixed belongs to another .*wait="),
        ({"wait": stop_after_attempt(3)}, r"wait=stop_after_attempt belongs to another .*stop="),
        ({"stop": 3}, "stop=3 cannot be called"),
        ({"wait": 1.5}, "wait=1.5 cannot be called"),
        ({"wait": None}, "wait=None cannot be called"),
        ({"retry": ValueError}, "retry=type cannot be called"),
        ({"wait": lambda attempts: 1.0}, "wait=function cannot be called"),
    ],
)
def test_parts_in_the_wrong_place_are_refused_when_the_policy_is_made(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkflowValidationError, match=message):
        retry_policy(**parts)


def test_a_policy_whose_next_takes_other_arguments_is_refused_when_the_step_is_declared() -> None:
    class Policy:
        def next(self) -> float:
            return 1.0

    with pytest.raises(WorkflowValidationError, match=r"`next` that does not take \(elapsed_time, attempts, error\)"):

        class Refused(Workflow):
            @step(retry_policy=Policy())  # type: ignore[arg-type]
            async def act(self, ev: StartEvent) -> StopEvent:
                return StopEvent()
