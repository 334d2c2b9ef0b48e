from __future__ import annotations

import pickle
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from tidemill.core.errors import ConfigError
from tidemill.core.retry import (
    Discard,
    GiveUp,
    Retry,
    RetryAfter,
    RetryDecision,
    RetryPolicy,
    Snooze,
    decide,
    decide_after_loss,
    error_lineage,
    retry,
)

waits = st.floats(min_value=0, max_value=1e6)
names = st.sampled_from(["ValueError", "app.errors.NotPaid", "NotPaid", "OSError"])
policies = st.builds(
    retry,
    st.integers(1, 100),
    backoff=st.floats(0, 3600),
    factor=st.floats(1, 10),
    cap=st.floats(3600, 1e6),
    jitter=st.floats(0, 1),
    schedule=st.lists(waits, max_size=5),
    max_losses=st.integers(1, 20),
    retry_on=st.lists(names, max_size=2),
    no_retry=st.lists(names, max_size=2),
)


def delays(policy: RetryPolicy, count: int) -> list[float]:
    decisions = [decide(policy, failures=n, error="OSError", seed=1) for n in range(1, count + 1)]
    return [decision.delay for decision in decisions if isinstance(decision, Retry)]


@given(policies)
def test_a_policy_survives_being_stored_as_json(policy: RetryPolicy) -> None:
    assert msgspec.json.decode(msgspec.json.encode(policy), type=RetryPolicy) == policy


def test_a_policy_stores_only_what_differs_from_the_defaults() -> None:
    assert msgspec.json.encode(RetryPolicy()) == b"{}"
    assert msgspec.json.encode(retry(3)) == b'{"max_attempts":3}'


def test_waits_grow_by_the_factor_up_to_the_cap() -> None:
    assert delays(retry(9, backoff="10s", factor=3, cap="5m", jitter=0), 6) == [10, 30, 90, 270, 300, 300]


def test_waits_stay_at_the_cap_however_often_the_job_failed() -> None:
    policy = retry(32_767, factor=10, jitter=0)
    decision = decide(policy, failures=32_766, error="OSError", seed=1)
    assert isinstance(decision, Retry)
    assert decision.delay == 3600


def test_a_schedule_gives_its_waits_in_order_and_one_attempt_more_than_waits() -> None:
    policy = retry(schedule=("10s", "1m"), jitter=0)
    assert policy.max_attempts == 3
    assert delays(policy, 3) == [10, 60]


def test_the_last_wait_of_a_schedule_repeats_until_the_attempts_are_used_up() -> None:
    assert delays(retry(5, schedule=("10s", "1m"), jitter=0), 9) == [10, 60, 60, 60]


@given(policies, st.integers(1, 200), st.integers(-(2**63), 2**64))
def test_jitter_adds_at_most_its_fraction_and_is_the_same_each_time(
    policy: RetryPolicy, failures: int, seed: int
) -> None:
    def asked(policy: RetryPolicy) -> RetryDecision:
        return decide(policy, failures=failures, error="app.Odd", seed=seed)

    bare = asked(msgspec.structs.replace(policy, jitter=0.0))
    decision = asked(policy)
    assert decision == asked(policy)
    if isinstance(decision, Retry):
        assert isinstance(bare, Retry)
        assert bare.delay <= decision.delay <= bare.delay * (1 + policy.jitter)


def test_jobs_that_fail_together_come_back_apart() -> None:
    policy = retry(jitter=0.5)
    decisions = [decide(policy, failures=1, error="OSError", seed=seed) for seed in range(100)]
    assert len(set(decisions)) == 100


def test_reasons_are_sentences_for_people() -> None:
    policy = retry(5, backoff="2.1s", jitter=0, no_retry=(ValueError,))
    again = decide(policy, failures=2, error="OSError", seed=1)
    assert again == Retry(4.2, "attempt 2 of 5 failed; trying again in 4.2s")
    assert decide(policy, failures=5, error="OSError", seed=1) == GiveUp("all 5 attempts failed")
    refused = decide(policy, failures=1, error="ValueError", seed=1)
    assert refused == GiveUp("ValueError is declared as not worth retrying")
    lost_too = decide(policy, failures=5, losses=1, error="OSError", seed=1)
    assert lost_too == GiveUp("all 5 attempts failed; its worker also died once")
    assert decide(RetryPolicy(), failures=1, error="OSError", seed=1) == GiveUp("its only attempt failed")
    assert decide_after_loss(policy, losses=5) == GiveUp("its worker died 5 times while running it")


def test_lost_workers_do_not_use_up_attempts() -> None:
    decision = decide(retry(2), failures=1, losses=4, error="OSError", seed=1)
    assert isinstance(decision, Retry)


def test_the_first_lost_worker_is_replaced_at_once_and_later_ones_wait_longer() -> None:
    decisions = [decide_after_loss(RetryPolicy(), losses=losses) for losses in range(1, 6)]
    assert [decision.delay for decision in decisions if isinstance(decision, Retry)] == [0, 1, 2, 4]
    assert decisions[0].reason == "its worker died while running it (1 of 5); trying again now"
    assert isinstance(decisions[-1], GiveUp)


class NotPaidError(Exception):
    pass


class CardRefusedError(NotPaidError):
    pass


@pytest.mark.parametrize("named", ["NotPaidError", f"{__name__}.NotPaidError", NotPaidError])
def test_an_error_is_named_by_its_class_its_bare_name_or_its_dotted_name(named: str) -> None:
    policy = retry(no_retry=(named,))
    assert isinstance(decide(policy, failures=1, error=f"{__name__}.NotPaidError", seed=1), GiveUp)
    assert isinstance(decide(policy, failures=1, error="other.UnNotPaidError", seed=1), Retry)


@pytest.mark.parametrize("named", ["ValueError", "builtins.ValueError", ValueError])
@pytest.mark.parametrize("raised", ["ValueError", "builtins.ValueError"])
def test_builtin_errors_are_the_same_with_and_without_their_module(named: str, raised: str) -> None:
    error = raised if raised == "ValueError" else error_lineage(ValueError)
    assert isinstance(decide(retry(no_retry=(named,)), failures=1, error=error, seed=1), GiveUp)


def test_naming_a_base_class_covers_its_subclasses() -> None:
    only_unpaid = retry(retry_on=(NotPaidError,))
    assert isinstance(decide(only_unpaid, failures=1, error=error_lineage(CardRefusedError), seed=1), Retry)
    refused = decide(only_unpaid, failures=1, error=error_lineage(KeyError), seed=1)
    assert refused == GiveUp("KeyError is not among the errors declared as worth retrying")


def test_no_retry_wins_over_retry_on() -> None:
    policy = retry(retry_on=(OSError,), no_retry=(TimeoutError,))
    assert isinstance(decide(policy, failures=1, error=error_lineage(TimeoutError), seed=1), GiveUp)
    assert isinstance(decide(policy, failures=1, error=error_lineage(ConnectionError), seed=1), Retry)


def test_a_task_that_asks_for_a_wait_gets_exactly_that_wait_but_no_more_attempts() -> None:
    policy = retry(2, jitter=1, retry_on=(ValueError,))
    asked = decide(policy, failures=1, error="RetryAfter", retry_after=30.0, seed=1)
    assert asked == Retry(30.0, "attempt 1 of 2 failed; trying again in 30s, as the task asked")
    assert isinstance(decide(policy, failures=2, error="RetryAfter", retry_after=30.0, seed=1), GiveUp)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_attempts": True}, "max_attempts"),
        ({"max_attempts": 2.5}, "max_attempts"),
        ({"max_losses": 0}, "max_losses"),
        ({"factor": 0.5}, "factor"),
        ({"factor": float("inf")}, "factor"),
        ({"jitter": 1.5}, "jitter"),
        ({"jitter": "10%"}, "jitter"),
        ({"backoff": "soon"}, "backoff"),
        ({"backoff": "2h", "cap": "1h"}, "cap"),
        ({"schedule": "10s"}, "schedule"),
        ({"schedule": ("10s", "later")}, "schedule"),
        ({"retry_on": "ValueError"}, "retry_on"),
        ({"no_retry": ValueError}, "no_retry"),
        ({"no_retry": ("not a name",)}, "no_retry"),
        ({"no_retry": (int,)}, "no_retry"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_by_the_name_of_its_field(wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=f"retry {field}: "):
        retry(**wrong)


def test_tasks_say_what_should_happen_with_durations_as_text() -> None:
    assert RetryAfter("30s").seconds == 30
    assert str(RetryAfter("30s")) == "the task asked for a retry in 30s"
    assert str(RetryAfter("30s", "rate limited")) == "rate limited"
    assert (Snooze("5m", "not ready").seconds, str(Snooze("5m"))) == (300, "snoozed for 5m")
    assert str(Discard("order was cancelled")) == "order was cancelled"
    with pytest.raises(ConfigError, match="Snooze: 'soon'"):
        Snooze("soon")


@pytest.mark.parametrize("raised", [RetryAfter("30s", "busy"), Snooze(5), Discard("gone")])
def test_what_tasks_raise_can_cross_a_process_boundary(raised: Exception) -> None:
    copy = pickle.loads(pickle.dumps(raised))
    assert (type(copy), vars(copy), str(copy)) == (type(raised), vars(raised), str(raised))


@pytest.mark.parametrize("field", ["max_attempts", "max_losses"])
def test_no_more_tries_are_promised_than_are_counted(field: str) -> None:
    most: dict[str, Any] = {field: 32_767}
    more: dict[str, Any] = {field: 10**6}
    assert getattr(retry(**most), field) == 32_767
    with pytest.raises(ConfigError, match=f"retry {field}: 1000000 is not a whole number from 1 to 32767"):
        retry(**more)
