"""Micro-batches keep their device busy, and cost little beside it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from tests.support import eventually
from tests.support.bench import bench
from tidemill.engine.worker.log_capture import find_listener
from tidemill.sources import JsonlSource
from tidemill.streams import Batch, Batched, Filtered, Plan, task


async def test_the_next_call_begins_before_the_callers_of_the_last_one_continue() -> None:
    events: list[str] = []

    async def work(items: list[int]) -> list[int]:
        events.append(f"call of {items}")
        return items

    batched = Batched(work, max_size=2)

    async def call(item: int) -> None:
        await batched(item)
        events.append(f"answer of {item}")

    await asyncio.gather(*map(call, range(4)))
    assert events == ["call of [0, 1]", "call of [2, 3]", *(f"answer of {item}" for item in range(4))]


async def test_a_full_batch_waits_for_the_thread_and_never_runs_beside_the_one_before_it() -> None:
    running, most, lock = 0, 0, threading.Lock()

    def work(items: list[int]) -> list[int]:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.001)
        with lock:
            running -= 1
        return [2 * item for item in items]

    batched = Batched(work, max_size=4)
    assert await asyncio.gather(*map(batched, range(64))) == [2 * item for item in range(64)]
    assert most == 1


async def test_a_call_that_waits_for_a_thread_has_not_begun() -> None:
    may_end, begun = threading.Event(), []
    inside = threading.Event()

    def work(items: list[int]) -> list[int]:
        inside.set()
        may_end.wait()
        return items

    batched = Batched(work, max_size=1)
    first = asyncio.ensure_future(batched(1, on_begin=lambda: begun.append(1)))
    second = asyncio.ensure_future(batched(2, on_begin=lambda: begun.append(2)))
    await eventually(lambda: inside.is_set() and begun == [1])
    may_end.set()
    assert await asyncio.gather(first, second) == [1, 2]
    await eventually(lambda: begun == [1, 2])


async def test_messages_that_only_run_in_batches_need_no_tasks_of_their_own() -> None:
    may_end, inside = threading.Event(), threading.Event()

    class Together(Plan, eligibility="x"):
        @task(batch=Batch(max_size=100))
        def embed(self, items: list[Any]) -> list[Any]:
            inside.set()
            may_end.wait()
            return items

    async with bench(Together) as made:
        tickets = made.give(*[b"1"] * 500)
        await eventually(inside.is_set)
        assert len(asyncio.all_tasks()) < 10
        may_end.set()
        assert {(await made.answer(ticket)).status for ticket in tickets} == {"ok"}


async def test_every_way_in_which_an_item_of_a_batch_can_end_is_answered() -> None:
    class Together(Plan, eligibility="x"):
        @task(batch=Batch(max_size=8, max_wait="1ms"))
        def embed(self, items: list[Any]) -> list[Any]:
            return [self.one(item) for item in items]

        def one(self, item: Any) -> Any:
            match item.value:
                case "filter":
                    return Filtered("not wanted")
                case "stop":
                    return StopIteration("nothing left")
                case "publish":
                    item.publish("topic", 1)
                case "change":
                    item.eligibilities.add("y")
                case "fail":
                    return ValueError("no")
            return None

    class Other(Plan, eligibility="y"):
        @task
        async def fail(self, ctx: Any) -> None:
            raise LookupError("not here")

    values = ["filter", "stop", "publish", "change", "fail", "pass"]
    source = JsonlSource("a.jsonl", eligibilities=frozenset({"x"}))
    async with bench(Together, Other, sources=[source]) as made:
        tickets = made.give(*(f'"{value}"'.encode() for value in values))
        answers = dict(zip(values, [await made.answer(ticket) for ticket in tickets], strict=True))
    assert {value: answer.status for value, answer in answers.items()} == {
        "filter": "ok", "stop": "failed", "publish": "ok", "change": "failed", "fail": "failed", "pass": "ok",
    }  # fmt: skip
    assert [item.name for item in answers["publish"].outbox] == ["topic"]
    assert [failure.kind for failure in answers["fail"].failures] == ["ValueError"]


async def test_what_a_batch_logs_is_kept_for_each_of_its_messages() -> None:
    class Together(Plan, eligibility="x"):
        @task(batch=Batch(max_size=2))
        def embed(self, items: list[Any]) -> list[Any]:
            listener = find_listener()
            assert listener is not None
            listener.keep_line(b'{"event":"the model is cold"}')
            return [ValueError("no") for _ in items]

    async with bench(Together) as made:
        for ticket in made.give(b"1", b"2"):
            (failure,) = (await made.answer(ticket)).failures
            assert failure.lines == b'[{"event":"the model is cold"}]'
            assert "ValueError: no" in failure.traceback


async def test_an_engine_that_stops_answers_no_message_of_a_batch_that_it_cancels() -> None:
    begun = asyncio.Event()

    class Together(Plan, eligibility="x"):
        @task(batch=Batch(max_size=1))
        async def embed(self, items: list[Any]) -> list[Any]:
            begun.set()
            await asyncio.Event().wait()
            return items

    async with bench(Together) as made:
        made.give(b"1", b"2")
        await begun.wait()
    assert not made.answers
