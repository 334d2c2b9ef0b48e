"""Staleness: a pure function that has an answer for everything."""

from __future__ import annotations

from hypothesis import given, strategies as st

from tidemill.pipelines.reducer import reasons
from tidemill.pipelines.reducer.staleness import (
    BACKOFF,
    BuildFailure,
    StalenessRules,
    StateRecord,
    input_change,
    input_pairs,
    input_text,
    retry_at,
    staleness,
)

hashes = st.sampled_from(["a", "b", "c"])
records = st.none() | st.builds(
    StateRecord, hashes | st.just(""), hashes, hashes, st.integers(0, 9), invalid_by=st.none() | st.just("me")
)
failures = st.none() | st.builds(
    BuildFailure, hashes, hashes, st.integers(1, 9), st.just("oops"), st.just(0.0), st.none() | st.floats(0, 10)
)
rules = st.builds(StalenessRules, hashes, st.integers(0, 9), st.sampled_from(["rebuild", "adopt"]))


@given(rules, records, failures, st.none() | hashes, st.integers(0, 9), hashes, st.floats(0, 10))
def test_there_is_always_an_answer_and_the_same_facts_give_the_same(rule, record, failure, content, size, inputs, now):
    def ask():
        return staleness(rule, record, failure, content=content, size=size, inputs=inputs, now=now)

    answer = ask()
    assert answer == ask()
    assert answer is None or str(answer)
    if answer is None:
        assert content is not None
        if rule.on_edit == "rebuild":
            assert record is not None
            assert (record.content, record.code, record.inputs) == (content, rule.code, inputs)
            assert size >= rule.min_size
    if content is None:
        assert answer is not None
    if failure is None:
        assert not isinstance(answer, reasons.BackingOff | reasons.NeedsAttention | reasons.RetryDue)


@given(rules, records, failures, hashes, st.integers(0, 9), hashes)
def test_a_failure_holds_only_for_its_own_code_and_inputs(rule, record, failure, content, size, inputs):
    answer = staleness(rule, record, failure, content=content, size=size, inputs=inputs, now=5.0)
    if isinstance(answer, reasons.BackingOff | reasons.NeedsAttention):
        assert failure is not None
        assert (failure.code, failure.inputs) == (rule.code, inputs)


def test_waits_grow_and_then_it_is_parked() -> None:
    assert [retry_at(attempts, 100.0) for attempts in range(1, 8)] == [*(100.0 + wait for wait in BACKOFF), None]
    assert retry_at(1, 0.0, ()) is None


def test_inputs_are_told_apart_by_path_and_content() -> None:
    before = input_text(["a", "b", "c d"], ["1", "2", "3"])
    after = input_text(["a", "c d", "e"], ["1", "9", "5"])
    assert input_pairs(before) == {"a": "1", "b": "2", "c d": "3"}
    assert input_change(before, after) == reasons.InputChanged(changed=("c d",), added=("e",), removed=("b",))
    assert input_text(["a"], ["1"], named=False) == "1"
