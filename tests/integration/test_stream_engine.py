"""An engine and its plans: what is run, in which order, within which limits, and what is answered."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from tests.support import eventually
from tidemill import Discard, RetryAfter, Snooze
from tidemill.streams import Batch, Batched, BreakerRule, Filtered, JsonlSource, Plan, Stream, task
from tidemill.streams.engine import Engine, describe
from tidemill.streams.link import ToDispatcher, Work
from tidemill.streams.message import Answer


class Bench:
    """An engine with its answers."""

    def __init__(self, stream: Stream) -> None:
        self.answers: dict[int, Answer] = {}
        self.frames = 0
        self.engine = Engine(stream, self._heard)
        self._tickets = 0

    def _heard(self, frame: ToDispatcher) -> None:
        self.frames += 1
        for ticket in frame.ok:
            self.answers[ticket] = Answer(ticket, "ok")
        for answer in frame.answers:
            assert answer.ticket not in self.answers, "answered twice"
            self.answers[answer.ticket] = answer

    def give(self, *payloads: bytes, source: int = 0, extra: tuple[Any, ...] | None = None) -> list[int]:
        work = []
        for payload in payloads:
            self._tickets += 1
            work.append(Work(self._tickets, source, payload, 0, self._tickets, extra))
        self.engine.submit(work)
        return [each.ticket for each in work]

    def ask(self, payload: bytes, *eligibilities: str) -> int:
        self._tickets += 1
        self.engine.submit([], [Work(self._tickets, -1, payload, 0, 0, None, eligibilities)])
        return self._tickets

    async def answer(self, ticket: int) -> Answer:
        await eventually(lambda: ticket in self.answers, interval=0.001)
        return self.answers[ticket]


@asynccontextmanager
async def bench(*plans: type[Plan], sources: list[JsonlSource] | None = None, **options: Any) -> AsyncIterator[Bench]:
    everything = {plan.eligibility for plan in plans if plan.eligibility}
    declared = sources or [JsonlSource("a.jsonl", eligibilities=frozenset(everything))]
    made = Bench(Stream("bench", plans=plans, sources=declared, **options))
    await made.engine.start()
    try:
        yield made
    finally:
        await made.engine.stop()


async def turns(count: int) -> None:
    """Let everything that can go on go on, so many times."""
    for _ in range(count):
        await asyncio.sleep(0)


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
        assert [handed.body for handed in answer.handed] == [b'{"good":true}']


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
        extra = (None, None, None, 0.0, None, 2, ("Two",))
        await made.answer(made.give(b"1", extra=extra)[0])
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
        figures = made.engine.figures()["Picky"]["a"]
        assert (figures["filtered"], figures["reasons"], figures["failed"]) == (1, {"too short": 1}, 0)


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
        extra = (None, None, None, 0.0, time.time() - 1, 1, None)
        assert (await made.answer(made.give(b"1", extra=extra)[0])).status == "expired"


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


async def test_a_batched_task_is_called_with_items_of_many_messages() -> None:
    sizes: list[int] = []

    class Together(Plan, eligibility="x"):
        @task(batch=Batch(max_size=32, max_wait="20ms"))
        async def classify(self, items: list[Any]) -> list[Any]:
            sizes.append(len(items))
            return [ValueError("odd") if item.value % 2 else item.value for item in items]

    async with bench(Together) as made:
        tickets = made.give(*[str(number).encode() for number in range(100)])
        answers = [await made.answer(ticket) for ticket in tickets]
        assert sizes[:3] == [32, 32, 32]
        assert sum(sizes) == 100
        assert [answer.status for answer in answers] == ["ok", "failed"] * 50, "one item's error is its own"


async def test_a_batch_of_one_is_not_kept_waiting_for_long() -> None:
    class Together(Plan, eligibility="x"):
        @task(batch=Batch(max_size=1000, max_wait="10ms"))
        async def classify(self, items: list[Any]) -> list[Any]:
            return items

    async with bench(Together) as made:
        began = time.monotonic()
        await made.answer(made.give(b"1")[0])
        assert time.monotonic() - began < 20.0, "it does not wait until the batch is full"


async def test_a_batch_that_returns_the_wrong_number_fails_all_of_it_in_words() -> None:
    class Wrong(Plan, eligibility="x"):
        @task(batch=Batch(max_size=2, max_wait="10ms"))
        async def classify(self, items: list[Any]) -> list[Any]:
            return items[1:]

    async with bench(Wrong) as made:
        tickets = made.give(b"1", b"2")
        for ticket in tickets:
            assert "was given 2 items and returned 1" in (await made.answer(ticket)).failures[0].error


async def test_one_model_can_be_batched_over_several_plans() -> None:
    sizes: list[int] = []

    def encode(texts: list[str]) -> list[int]:
        sizes.append(len(texts))
        return [len(text) for text in texts]

    embed = Batched(encode, max_size=4, max_wait="50ms")

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
    together = threading.Barrier(4, timeout=20)

    class Blocking(Plan, eligibility="x"):
        @task
        def block(self, ctx: Any) -> None:
            where.append(threading.current_thread().name)
            together.wait()  # breaks if not all four get here

    async with bench(Blocking, threads=4) as made:
        tickets = made.give(*[b"1"] * 4)
        assert [(await made.answer(ticket)).status for ticket in tickets] == ["ok"] * 4
    assert all(name.startswith("stream-bench") for name in where)


async def test_concurrency_and_timeouts_are_held() -> None:
    running = most = 0

    class Limited(Plan, eligibility="x", timeout="1s"):
        @task(concurrency=3)
        async def do(self, ctx: Any) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            try:
                await (asyncio.Event().wait() if ctx.value == "hang" else turns(2))
            finally:
                running -= 1

    async with bench(Limited) as made:
        tickets = made.give(*[b"1"] * 30)
        hanging = made.give(b'"hang"')[0]
        assert [(await made.answer(ticket)).status for ticket in tickets] == ["ok"] * 30
        assert most == 3
        failure = (await made.answer(hanging)).failures[0]
        assert (failure.kind, failure.error) == ("TimeoutError", "plan Limited took longer than 1 s")
        assert running == 0


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
        assert "search has failed too often" in failure.error


async def test_a_live_request_passes_those_that_wait_already() -> None:
    gate, order = asyncio.Event(), []

    class Narrow(Plan, eligibility="x"):
        @task(concurrency=1)
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
