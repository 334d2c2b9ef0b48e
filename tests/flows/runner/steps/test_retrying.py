"""Retry policies at work: what an attempt knows of the earlier ones, and when it is enough."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.flows import shown, told
from tidemill.flows import Context, Workflow, step
from tidemill.flows.definition.events import StartEvent, StopEvent, WorkflowFailedEvent
from tidemill.flows.definition.retry_policy import (
    retry_if_exception_type,
    retry_policy,
    stop_after_attempt,
    wait_fixed,
    wait_none,
)

AT_ONCE = retry_policy(wait=wait_none(), stop=stop_after_attempt(3))
SOON = retry_policy(wait=wait_fixed(0.01), stop=stop_after_attempt(3))


def flaky(policy: Any, failures: int, error: type[Exception] = ValueError) -> tuple[type[Workflow], list[Any]]:
    infos: list[Any] = []

    class Flaky(Workflow):
        @step(retry_policy=policy)
        async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
            infos.append(ctx.retry_info())
            if len(infos) <= failures:
                raise error(f"attempt {len(infos)}")
            return StopEvent(result=len(infos))

    return Flaky, infos


@pytest.mark.parametrize("policy", [AT_ONCE, SOON])
async def test_a_failed_step_is_tried_again(policy: Any) -> None:
    flow, _ = flaky(policy, failures=2)
    assert await flow().run() == 3


@pytest.mark.parametrize("policy", [AT_ONCE, SOON])
async def test_when_it_is_enough_the_last_exception_is_raised(policy: Any) -> None:
    flow, infos = flaky(policy, failures=9)
    handler = flow().run()
    with pytest.raises(ValueError, match="attempt 3"):
        await handler
    last = (await shown(handler))[-1]
    assert isinstance(last, WorkflowFailedEvent)
    assert last.attempts == 3
    assert len(infos) == 3


async def test_an_attempt_knows_of_the_earlier_ones() -> None:
    flow, infos = flaky(SOON, failures=1)
    await flow().run()
    first, second = infos
    assert (first.retry_number, first.elapsed_seconds, first.last_exception, first.last_failed_at) == (
        0,
        0.0,
        None,
        None,
    )
    assert second.retry_number == 1
    assert second.elapsed_seconds >= 0.009
    assert str(second.last_exception) == "attempt 1"
    assert second.last_failed_at is not None


async def test_an_exception_that_is_not_worth_it_is_raised_at_once() -> None:
    policy = retry_policy(retry=retry_if_exception_type(KeyError), wait=wait_none())
    flow, infos = flaky(policy, failures=9)
    with pytest.raises(ValueError, match="attempt 1"):
        await flow().run()
    assert len(infos) == 1


async def test_every_attempt_is_told() -> None:
    flow, _ = flaky(SOON, failures=1)
    assert told(await shown(flow().run(), internal=True)) == [
        "work:0 running StartEvent",
        "work:0 not_running",
        "work:0 running StartEvent",
        "work:0 not_running",
        "StopEvent",
    ]


async def test_a_policy_may_be_any_object_with_a_next() -> None:
    asked: list[Any] = []

    class Mine:
        def next(self, elapsed_time: float, attempts: int, error: Exception) -> float | None:
            asked.append((attempts, str(error), elapsed_time >= 0))
            return 0.0 if attempts < 2 else None

    flow, _ = flaky(Mine(), failures=9)
    with pytest.raises(ValueError):
        await flow().run()
    assert asked == [(1, "attempt 1", True), (2, "attempt 2", True)]


async def test_a_seed_is_given_to_those_who_take_one() -> None:
    seeds: list[Any] = []

    class Seeded:
        def next(
            self, elapsed_time: float, attempts: int, error: Exception, *, seed: int | None = None
        ) -> float | None:
            seeds.append(seed)
            return 0.0 if attempts < 3 else None

    flow, _ = flaky(Seeded(), failures=9)
    with pytest.raises(ValueError):
        await flow().run()
    assert len(set(seeds)) == 3
    assert all(0 <= seed < 2**32 for seed in seeds)


async def test_a_returned_value_that_is_no_event_is_a_failure_like_any_other() -> None:
    calls: list[int] = []

    class Wrong(Workflow):
        @step(retry_policy=AT_ONCE)
        async def work(self, ev: StartEvent) -> StopEvent:
            calls.append(1)
            return 5 if len(calls) < 3 else StopEvent(result="at last")  # type: ignore[return-value]

    assert await Wrong().run() == "at last"
