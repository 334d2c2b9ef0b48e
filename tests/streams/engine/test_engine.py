"""An engine and its plans: what is run, in which order, and what is answered."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import pytest

from tests.support import eventually
from tests.support.bench import bench
from tests.support.waiting import turns
from tidemill import Discard, RetryAfter, Snooze
from tidemill.sources import JsonlSource
from tidemill.streams import Batch, Filtered, Plan, task
from tidemill.streams.engine.answers import describe
from tidemill.streams.runner.link import DeliveryDetails


async def test_every_message_is_answered_once_and_in_few_frames() -> None:
    class Nothing(Plan, eligibility="x"):
        @task
        async def nothing(self, ctx: Any) -> None: ...

    async with bench(Nothing) as made:
        tickets = made.give(*[b"1"] * 1000)
        await made.answer(tickets[-1])
        assert sorted(made.answers) == tickets
        assert made.frames < 50


async def test_messages_that_wait_do_not_keep_others_from_starting() -> None:
    gate = asyncio.Event()
    begun: list[int] = []

    class Waiting(Plan, eligibility="x"):
        @task
        async def wait(self, ctx: Any) -> None:
            begun.append(ctx.value)
            await gate.wait()

    async with bench(Waiting) as made:
        tickets = made.give(*[str(number).encode() for number in range(300)])
        await eventually(lambda: len(begun) == 300)
        assert not made.answers
        gate.set()
        await made.answer(tickets[-1])
        assert len(made.answers) == 300


async def test_tasks_run_in_dependency_order_and_see_earlier_results() -> None:
    order: list[str] = []
    gone_right = asyncio.Event()

    class Graph(Plan, eligibility="x"):
        @task
        async def load(self, ctx: Any) -> int:
            order.append("load")
            return 2

        @task(after="load")
        async def left(self, ctx: Any) -> int:
            await gone_right.wait()
            order.append("left")
            return ctx.results["load"] * 10

        @task(after="load")
        async def right(self, ctx: Any) -> int:
            order.append("right")
            gone_right.set()
            return ctx.results["load"] * 100

        @task(after=("left", "right"))
        async def join(self, ctx: Any) -> int:
            order.append("join")
            return ctx.results["left"] + ctx.results["right"]

    async with bench(Graph) as made:
        answer = await made.answer(made.ask(b"1", "x"))
        assert msgspec.json.decode(answer.result or b"")["Graph"] == {"load": 2, "left": 20, "right": 200, "join": 220}
        assert order == ["load", "right", "left", "join"]


async def test_a_failure_is_told_when_its_siblings_have_ended_too() -> None:
    begun, ended = asyncio.Event(), []

    class Siblings(Plan, eligibility="x"):
        @task
        async def slow(self, ctx: Any) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await turns(3)
                ended.append("slow")
                raise

        @task
        async def bad(self, ctx: Any) -> None:
            await begun.wait()
            raise ValueError("bad news")

    async with bench(Siblings) as made:
        answer = await made.answer(made.give(b"1")[0])
        assert answer.failures[0].error == "bad news"
        assert answer.failures[0].kind == "ValueError"
        assert ended == ["slow"], "it went on after the failure had been reported"


async def test_a_plans_failure_does_not_undo_anothers() -> None:
    class Good(Plan, eligibility="good"):
        @task
        async def do(self, ctx: Any) -> str:
            ctx.publish("out", {"good": True})
            return "done"

    class Bad(Plan, eligibility="bad"):
        @task
        async def do(self, ctx: Any) -> None:
            ctx.publish("out", {"bad": True})
            raise RuntimeError("no")

    async with bench(Good, Bad) as made:
        answer = await made.answer(made.give(b"1")[0])
        assert answer.status == "failed"
        assert [failure.plan for failure in answer.failures] == ["Bad"]
        assert [outbox.body for outbox in answer.outbox] == [b'{"good":true}']


async def test_only_the_plans_that_are_left_run_again() -> None:
    ran: list[str] = []

    class One(Plan, eligibility="a"):
        @task
        async def do(self, ctx: Any) -> None:
            ran.append(f"One {ctx.message.attempt}")

    class Two(Plan, eligibility="b"):
        @task
        async def do(self, ctx: Any) -> None:
            ran.append(f"Two {ctx.message.attempt}")

    async with bench(One, Two) as made:
        details = DeliveryDetails(attempt=2, plans=("Two",))
        await made.answer(made.give(b"1", details=details)[0])
    assert ran == ["Two 2"]


async def test_a_filter_ends_a_plan_early_with_its_reason() -> None:
    class Picky(Plan, eligibility="x"):
        @task
        async def look(self, ctx: Any) -> None:
            raise Filtered("too short")

        @task(after="look")
        async def never(self, ctx: Any) -> None:
            raise AssertionError("it went on")

    async with bench(Picky) as made:
        assert (await made.answer(made.give(b"1")[0])).status == "ok"
        statistics = made.engine.statistics()["Picky"]["a"]
        assert (statistics["filtered"], statistics["reasons"], statistics["failed"]) == (1, {"too short": 1}, 0)


async def test_no_eligibility_means_no_work_and_success() -> None:
    class Never(Plan, eligibility="x"):
        @task
        async def never(self, ctx: Any) -> None:
            raise AssertionError

    async with bench(Never, sources=[JsonlSource("a.jsonl")]) as made:
        assert (await made.answer(made.give(b"1")[0])).status == "ok"


async def test_one_message_that_cannot_be_decoded_costs_only_itself() -> None:
    class Count(Plan, eligibility="x"):
        @task
        async def count(self, ctx: Any) -> None: ...

    async with bench(Count) as made:
        tickets = made.give(b"1", b"{broken", b"3")
        answers = [await made.answer(ticket) for ticket in tickets]
        assert [answer.status for answer in answers] == ["ok", "undecodable", "ok"]
        assert "malformed" in answers[1].failures[0].error


async def test_a_typed_decoder_says_what_does_not_fit() -> None:
    class Post(msgspec.Struct):
        id: int
        text: str

    seen: list[Post] = []

    class Typed(Plan, eligibility="x"):
        @task
        async def take(self, ctx: Any) -> None:
            seen.append(ctx.value)

    source = JsonlSource("a.jsonl", eligibilities=frozenset({"x"}), decoder=Post)
    async with bench(Typed, sources=[source]) as made:
        good, bad = made.give(b'{"id":1,"text":"a"}', b'{"id":"one","text":"a"}')
        await made.answer(good)
        assert seen == [Post(1, "a")]
        assert "$.id" in (await made.answer(bad)).failures[0].error


async def test_a_message_past_its_deadline_is_not_begun() -> None:
    class Never(Plan, eligibility="x"):
        @task
        async def never(self, ctx: Any) -> None:
            raise AssertionError

    async with bench(Never) as made:
        details = DeliveryDetails(deadline=time.time() - 1)
        assert (await made.answer(made.give(b"1", details=details)[0])).status == "expired"


async def test_errors_keep_their_words_through_any_wrapping() -> None:
    class Wrapped(Plan, eligibility="x"):
        @task
        async def call(self, ctx: Any) -> None:
            try:
                raise ConnectionError("port 9 is closed")
            except ConnectionError as error:
                raise RuntimeError("search failed") from error

    async with bench(Wrapped) as made:
        failure = (await made.answer(made.give(b"1")[0])).failures[0]
        assert failure.error == "search failed (because of ConnectionError: port 9 is closed)"
        assert failure.lineage[0] == "RuntimeError"
    assert describe(ValueError()) == "ValueError"


@pytest.mark.parametrize(
    ("error", "after", "verdict"),
    [(RetryAfter("5s", "busy"), 5.0, ""), (Snooze("1m", "early"), 60.0, "snooze"), (Discard("gone"), None, "discard")],
)
async def test_a_task_may_say_what_should_happen(error: Exception, after: float | None, verdict: str) -> None:
    class Saying(Plan, eligibility="x"):
        @task
        async def say(self, ctx: Any) -> None:
            raise error

    async with bench(Saying) as made:
        failure = (await made.answer(made.give(b"1")[0])).failures[0]
        assert (failure.after, failure.verdict) == (after, verdict)


class Panic(BaseException):
    """As extensions that are written in Rust raise it."""


@pytest.mark.parametrize("error", [Panic("lost"), SystemExit(1), KeyboardInterrupt()])
async def test_an_exception_that_is_none_fails_its_message_and_costs_no_slot(error: BaseException) -> None:
    class Single(Plan, eligibility="single"):
        @task
        async def work(self, ctx: Any) -> None:
            raise error

    class Plain(Plan, eligibility="plain"):
        @task
        def work(self, ctx: Any) -> None:
            raise error

    class Graph(Plan, eligibility="graph"):
        @task
        async def one(self, ctx: Any) -> None:
            raise error

        @task
        async def other(self, ctx: Any) -> None: ...

    class Together(Plan, eligibility="together"):
        @task(batch=Batch(max_size=4, max_wait="1ms"))
        async def work(self, items: list[Any]) -> list[Any]:
            raise error

    async with bench(Single, Plain, Graph, Together) as at:
        for details in (None, DeliveryDetails(plans=("Single",))):
            (ticket,) = at.give(b"1", details=details)
            answer = await at.answer(ticket)
            assert answer.status == "failed"
            assert len(answer.failures) == (4 if details is None else 1)


async def test_a_decoder_that_panics_costs_only_its_message() -> None:
    def decode(payload: bytes) -> bytes:
        if payload == b"bad":
            raise Panic("lost")
        return payload

    class Single(Plan, eligibility="single"):
        @task
        async def work(self, ctx: Any) -> None: ...

    source = JsonlSource("a.jsonl", eligibilities=frozenset({"single"}), decoder=decode)
    async with bench(Single, sources=[source]) as at:
        bad, good = at.give(b"bad", b"good")
        assert (await at.answer(bad)).status == "undecodable"
        assert (await at.answer(good)).status == "ok"
