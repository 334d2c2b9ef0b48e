"""The limits of an engine and its plans: batches, threads, concurrency, time, rates; and who goes first."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import Any

import pytest

from tests.support import eventually
from tests.support.bench import bench
from tests.support.waiting import turns
from tidemill.core.retry import RetryAfter
from tidemill.engine import batching
from tidemill.sources import JsonlSource
from tidemill.streams import Batch, Batched, BreakerRule, Plan, task


async def test_a_batched_task_is_called_with_items_of_many_messages() -> None:
    sizes: list[int] = []

    class Together(Plan, eligibility="x"):
        @task(batch=Batch(max_size=32, max_wait="40s"))
        async def classify(self, items: list[Any]) -> list[Any]:
            sizes.append(len(items))
            return [ValueError("odd") if item.value % 2 else item.value for item in items]

    async with bench(Together) as made:
        tickets = made.give(*[str(number).encode() for number in range(96)])
        answers = [await made.answer(ticket) for ticket in tickets]
        assert sizes == [32, 32, 32]
        assert [answer.status for answer in answers] == ["ok", "failed"] * 48, "one item's error is its own"


async def test_a_batch_of_one_is_not_kept_waiting_for_long() -> None:
    class Together(Plan, eligibility="x"):
        @task(batch=Batch(max_size=1000, max_wait="10ms"))
        async def classify(self, items: list[Any]) -> list[Any]:
            return items

    async with bench(Together) as made:
        began = time.monotonic()
        await made.answer(made.give(b"1")[0])
        assert time.monotonic() - began < 60.0, "it does not wait until the batch is full"


async def test_a_batch_that_returns_the_wrong_number_fails_all_of_it_in_words() -> None:
    class Wrong(Plan, eligibility="x"):
        @task(batch=Batch(max_size=2, max_wait="40s"))
        async def classify(self, items: list[Any]) -> list[Any]:
            return items[1:]

    async with bench(Wrong) as made:
        tickets = made.give(b"1", b"2")
        for ticket in tickets:
            assert "was given 2 items and returned 1" in (await made.answer(ticket)).failures[0].error


@pytest.mark.parametrize("threaded", [False, True])
async def test_a_batch_that_raises_is_split_until_the_guilty_items_are_found(threaded: bool) -> None:
    sizes: list[int] = []

    def work(items: list[Any]) -> list[Any]:
        sizes.append(len(items))
        bad = [item.value for item in items if item.value in (3, 4, 20)]
        if bad:
            raise ValueError(f"cannot read {bad[0]}")
        return [item.value for item in items]

    class Strict(Plan, eligibility="x"):
        if threaded:

            @task(batch=Batch(max_size=23, max_wait="40s"))
            def classify(self, items: list[Any]) -> list[Any]:
                return work(items)
        else:

            @task(batch=Batch(max_size=23, max_wait="40s"))
            async def classify(self, items: list[Any]) -> list[Any]:
                return work(items)

    async with bench(Strict) as made:
        tickets = made.give(*[str(number).encode() for number in range(23)])
        answers = [await made.answer(ticket) for ticket in tickets]
    failed = {number: answer.failures[0].error for number, answer in enumerate(answers) if answer.status != "ok"}
    assert failed == {number: f"cannot read {number}" for number in (3, 4, 20)}, "each with its own error"
    assert len(sizes) < 23, "fewer calls than one for each"


@pytest.mark.parametrize("error", [RetryAfter("30s", "busy"), ConnectionRefusedError("nobody listens")])
async def test_an_error_that_is_not_of_an_item_fails_the_batch_in_one_call(error: Exception) -> None:
    calls = []

    class Down(Plan, eligibility="x"):
        @task(batch=Batch(max_size=8, max_wait="40s"))
        async def classify(self, items: list[Any]) -> list[Any]:
            calls.append(len(items))
            raise error

    async with bench(Down) as made:
        tickets = made.give(*[b"1"] * 8)
        assert {(await made.answer(ticket)).failures[0].kind for ticket in tickets} == {type(error).__name__}
    assert calls == [8]


async def test_one_model_can_be_batched_over_several_plans() -> None:
    sizes: list[int] = []

    def encode(texts: list[str]) -> list[int]:
        sizes.append(len(texts))
        return [len(text) for text in texts]

    embed = Batched(encode, max_size=4, max_wait="40s")

    class First(Plan, eligibility="a"):
        @task
        async def do(self, ctx: Any) -> int:
            return await embed(ctx.value)

    class Second(Plan, eligibility="b"):
        @task
        async def do(self, ctx: Any) -> int:
            return await embed(ctx.value * 2)

    async with bench(First, Second) as made:
        tickets = made.give(b'"ab"', b'"abc"')
        assert [(await made.answer(ticket)).status for ticket in tickets] == ["ok", "ok"]
    assert sizes == [4]


async def test_plain_functions_run_in_threads() -> None:
    where: list[str] = []
    together = threading.Barrier(4, timeout=150)

    class Blocking(Plan, eligibility="x"):
        @task
        def block(self, ctx: Any) -> None:
            where.append(threading.current_thread().name)
            together.wait()  # breaks if not all four get here

    async with bench(Blocking, threads=4) as made:
        tickets = made.give(*[b"1"] * 4)
        assert [(await made.answer(ticket)).status for ticket in tickets] == ["ok"] * 4
    assert all(name.startswith("stream-bench") for name in where)


async def test_a_plan_that_takes_too_long_is_ended() -> None:
    ended = []

    class Hanging(Plan, eligibility="x", timeout="100ms"):
        @task
        async def hang(self, ctx: Any) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(ctx.value)

    async with bench(Hanging) as made:
        failure = (await made.answer(made.give(b"1")[0])).failures[0]
        assert (failure.kind, failure.error) == ("TimeoutError", "plan Hanging took longer than 0.1 s")
        assert ended == [1]


async def test_concurrency_is_held() -> None:
    running = most = 0

    class Limited(Plan, eligibility="x"):
        @task(max_concurrency=3)
        async def do(self, ctx: Any) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await turns(2)
            running -= 1

    async with bench(Limited) as made:
        tickets = made.give(*[b"1"] * 30)
        assert [(await made.answer(ticket)).status for ticket in tickets] == ["ok"] * 30
        assert (most, running) == (3, 0)


async def test_a_plan_that_is_disabled_or_not_for_a_source_does_not_run() -> None:
    ran: list[str] = []

    class One(Plan, eligibility="a"):
        @task
        async def do(self, ctx: Any) -> None:
            ran.append(f"One {ctx.message.source}")

    class Two(Plan, eligibility="a"):
        @task
        async def do(self, ctx: Any) -> None:
            ran.append(f"Two {ctx.message.source}")

    wanted = frozenset({"a"})
    sources = [JsonlSource("main.jsonl", eligibilities=wanted), JsonlSource("recovery_x.jsonl", eligibilities=wanted)]
    settings = {"One": {"disabled": True}, "Two": {"disabled_for": ("recovery_*",)}}
    async with bench(One, Two, sources=sources, plan_settings=settings) as made:
        await made.answer(made.give(b"1", source=0)[0])
        await made.answer(made.give(b"1", source=1)[0])
    assert ran == ["Two main"]


async def test_a_plans_rate_is_held_smoothly() -> None:
    begun: list[float] = []

    class Slow(Plan, eligibility="x", rate="100/s"):
        @task
        async def do(self, ctx: Any) -> None:
            begun.append(time.monotonic())

    async with bench(Slow) as made:
        await made.answer(made.give(*[b"1"] * 30)[-1])
    assert begun[-1] - begun[0] >= 0.25, "thirty at a hundred a second, two of which may go at once"


async def test_a_dependency_that_fails_is_left_alone_for_a_while() -> None:
    calls = 0

    class Calling(Plan, eligibility="x"):
        @task(breaker="search", breaker_rule=BreakerRule(least=5, rest="60s"))
        async def call(self, ctx: Any) -> None:
            nonlocal calls
            calls += 1
            raise ConnectionError("away")

    async with bench(Calling) as made:
        for ticket in made.give(*[b"1"] * 5):
            assert (await made.answer(ticket)).failures[0].kind == "ConnectionError"
        failure = (await made.answer(made.give(b"1")[0])).failures[0]
        assert calls == 5
        assert failure.verdict == "snooze"
        assert failure.error == "the circuit breaker of search is open: it has failed too often"


async def test_a_live_request_passes_those_that_wait_already() -> None:
    gate, order = asyncio.Event(), []

    class Narrow(Plan, eligibility="x"):
        @task(max_concurrency=1)
        async def do(self, ctx: Any) -> str:
            if ctx.value == "first":
                await gate.wait()
            order.append(ctx.value)
            return ctx.value

    async with bench(Narrow) as made:
        made.give(b'"first"', *[b'"backlog"'] * 50)
        await turns(100)
        live = made.ask(b'"live"', "x")
        await turns(100)
        gate.set()
        assert (await made.answer(live)).result == b'{"Narrow":{"do":"live"}}'
        assert order[:2] == ["first", "live"]


async def test_stopping_ends_a_message_that_overhears_it() -> None:
    """On Python 3.11 whatever waits with `asyncio.wait_for` may overhear a cancellation: this one always does."""
    begun, heard = asyncio.Event(), []

    class Deaf(Plan, eligibility="x"):
        @task(max_concurrency=1)
        async def hang(self, ctx: Any) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                heard.append(ctx.value)

    async with asyncio.timeout(120):
        async with bench(Deaf) as made:
            made.give(b"1", b"2", b"3")
            await begun.wait()
    assert heard == [1], "nothing more is begun"


async def test_stopping_ends_what_runs_and_waits_for_its_end() -> None:
    begun, ended = asyncio.Event(), []

    class Hanging(Plan, eligibility="x"):
        async def stop(self) -> None:
            ended.append("plan")

        @task
        async def hang(self, ctx: Any) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                await turns(3)
                ended.append("message")

    async with bench(Hanging) as made:
        made.give(b"1")
        await begun.wait()
    assert ended == ["message", "plan"]


async def test_plain_tasks_that_hang_fail_alone_and_later_messages_are_run() -> None:
    may_end = threading.Event()

    class Hanging(Plan, eligibility="x"):
        @task(timeout=0.5)
        def work(self, ctx: Any) -> None:
            if ctx.value == "hang":
                may_end.wait()

    async with bench(Hanging, threads=2) as made:
        try:
            hung = made.give(*[b'"hang"'] * 5)
            for ticket in hung:
                answer = await made.answer(ticket)
                assert answer.status == "failed"
            for ticket in made.give(*[b'"good"'] * 10):
                assert (await made.answer(ticket)).status == "ok"
        finally:
            may_end.set()


async def test_a_batched_call_that_hangs_fails_alone_and_later_messages_are_run() -> None:
    may_end = threading.Event()

    class Hanging(Plan, eligibility="x"):
        @task(batch=Batch(max_size=1), timeout=0.5)
        def work(self, contexts: list[Any]) -> list[None]:
            if contexts[0].value == "hang":
                may_end.wait()
            return [None]

    async with bench(Hanging, threads=2) as made:
        try:
            (hung,) = made.give(b'"hang"')
            assert (await made.answer(hung)).status == "failed"
            (good,) = made.give(b'"good"')
            assert (await made.answer(good)).status == "ok"
        finally:
            may_end.set()


async def test_a_live_request_does_not_wait_for_a_thread_behind_messages() -> None:
    may_end = threading.Event()

    class Plain(Plan, eligibility="x"):
        @task
        def work(self, ctx: Any) -> None:
            if not ctx.message.live:
                may_end.wait()

    async with bench(Plain, threads=1) as made:
        try:
            made.give(*[b"1"] * 20)
            assert (await made.answer(made.ask(b"1", "x"))).status == "ok"
        finally:
            may_end.set()


async def test_a_task_that_swallows_its_cancellation_fails_its_message_and_the_engine_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidemill.engine.containment.blocked_time.CANCEL_SECONDS", 0.2)
    monkeypatch.setattr("tidemill.streams.engine.engine.CANCEL_SECONDS", 0.2)
    may_end = asyncio.Event()

    class Swallow(Plan, eligibility="go", timeout="200ms"):
        @task
        async def swallow(self, ctx: Any) -> None:
            while ctx.value == "guilty" and not may_end.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await may_end.wait()

    async with bench(Swallow) as running:
        guilty, innocent = running.give(b'"guilty"', b'"innocent"')
        assert (await running.answer(innocent)).status == "ok"
        answer = await running.answer(guilty)
        assert answer.status == "failed"
        assert "took longer than 0.2 s and did not end when it was cancelled" in answer.failures[0].error
        assert running.is_exhausted
    may_end.set()


async def test_a_batch_that_swallows_its_cancellation_has_its_engine_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemill.engine.batching.CANCEL_SECONDS", 0.2)
    may_end = asyncio.Event()

    class Swallow(Plan, eligibility="go", timeout="200ms"):
        @task(batch=Batch(max_size=4, max_wait="5ms"))
        async def swallow(self, items: list[Any]) -> list[Any]:
            while not may_end.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await may_end.wait()
            return [None] * len(items)

    async with bench(Swallow) as running:
        (guilty,) = running.give(b'"guilty"')
        assert (await running.answer(guilty)).status == "failed"
        await eventually(lambda: running.is_exhausted)
    may_end.set()


async def test_a_batch_that_swallows_its_cancellation_is_written_off_and_the_next_one_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batching, "CANCEL_SECONDS", 0.01)
    ended = asyncio.Event()

    async def work(items: list[str]) -> list[str]:
        while "guilty" in items and not ended.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await ended.wait()
        return items

    ignored: list[str] = []
    batched = Batched(work, max_size=1, name="work", on_ignored=ignored.append)
    guilty = asyncio.ensure_future(batched("guilty"))
    innocent = asyncio.ensure_future(batched("innocent"))
    await turns(3)
    guilty.cancel()
    assert await innocent == "innocent"
    assert ignored == ["batch work"]
    ended.set()
    assert await batched("last") == "last", "the end of the one that was written off does not count"


async def test_an_item_that_runs_alone_shares_its_batch_with_none() -> None:
    sizes: list[int] = []

    async def work(items: list[int]) -> list[int]:
        sizes.append(len(items))
        return items

    batched = Batched(work, max_size=8, max_wait="1ms")
    calls = [batched(1), batched(2), batched(3, alone=True), batched(4), batched(5)]
    assert await asyncio.gather(*calls) == [1, 2, 3, 4, 5]
    assert sizes == [2, 1, 2]


async def test_time_in_which_a_message_waits_for_the_batch_of_others_does_not_count_against_it() -> None:
    """The timeout is over before the first batch is, and the second message has done nothing yet."""
    may_end = asyncio.Event()

    class Together(Plan, eligibility="x", timeout="500ms"):
        @task(batch=Batch(max_size=1))
        async def classify(self, items: list[Any]) -> list[Any]:
            if items[0].value == 1:
                with contextlib.suppress(asyncio.CancelledError):
                    await may_end.wait()
                await asyncio.sleep(0.6)
            return items

    async with bench(Together) as made:
        first, second = made.give(b"1", b"2")
        assert "plan Together took longer than 0.5 s" in (await made.answer(first)).failures[0].error
        assert (await made.answer(second)).status == "ok"
