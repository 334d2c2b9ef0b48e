"""What a message says of itself: its deadline, its eligibilities, its trace; and what plans change of them."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from tests.support import eventually, value
from tests.support.stream_app import TABLES
from tests.support.streams import publish, running_stream, stream_process
from tidemill.core.codec import encode
from tidemill.core.errors import ConfigError
from tidemill.engine.telemetry.tracing import current_trace
from tidemill.sources import LogSource
from tidemill.store.database import Database
from tidemill.store.streams.dead_letters import DeadFilter, list_dead
from tidemill.streams import Plan, Stream, task

TRACE = "0af7651916cd43dd8448eb211c80319c"


class First(Plan, eligibility="first"):
    ran: list[str]

    @task
    async def work(self, ctx: Any) -> None:
        First.ran.append("first")
        if ctx.value.get("adds"):
            ctx.eligibilities.add("second")
        if ctx.value.get("hangs"):
            await asyncio.sleep(3600)


class Second(Plan, eligibility="second"):
    @task
    async def work(self, ctx: Any) -> None:
        First.ran.append(f"second, attempt {ctx.message.attempt}")
        if ctx.value.get("fails") and ctx.message.attempt == 1:
            raise ValueError("not yet")


class Tracing(Plan, eligibility="trace"):
    traces: list[str | None]

    @task
    async def work(self, ctx: Any) -> None:
        Tracing.traces.append(current_trace())


@pytest.fixture(autouse=True)
def _fresh() -> None:
    First.ran, Tracing.traces = [], []


def stream_of(*eligibilities: str, **options: Any) -> Stream:
    source = LogSource("posts", eligibilities=frozenset(eligibilities), **options)
    return Stream("s", plans=[First, Second, Tracing], sources=[source], engines=0, max_attempts=2)


async def test_a_message_is_dropped_when_its_deadline_has_passed_also_while_it_runs(
    database: Database, database_url: str
) -> None:
    async with running_stream(stream_of("first", deadline="field:until"), database_url) as dispatcher:
        await publish(database, "posts", [{"until": time.time() - 1}, {}])
        counts = dispatcher.reducer.counts[0]
        await eventually(lambda: (counts.expired, counts.done) == (1, 1))
        assert First.ran == ["first"]
        for number, seconds in enumerate((1, 4, 16, 64), start=2):  # On a slow machine the first may arrive too late.
            await publish(database, "posts", [{"until": time.time() + seconds, "hangs": True}])
            await eventually(lambda number=number: counts.expired == number, timeout=seconds + 60)
            if len(First.ran) == 2:
                break
    assert First.ran == ["first", "first"]
    assert counts.done == 1
    assert not await list_dead(database, DeadFilter())


async def test_a_message_names_its_plans_in_a_header(database: Database, database_url: str) -> None:
    stream = stream_of("first", eligibilities_from="header:plans")
    async with running_stream(stream, database_url) as dispatcher:
        await publish(database, "posts", [{}], headers=encode({"plans": "second, first"}))
        await publish(database, "posts", [{}], headers=encode({"plans": ""}))
        await publish(database, "posts", [{}], headers=encode({"plans": "third"}))
        await publish(database, "posts", [{}])
        counts = dispatcher.reducer.counts[0]
        await eventually(lambda: (counts.done, counts.dead) == (3, 1))
    assert sorted(First.ran) == ["first", "first", "second, attempt 1"]
    (letter,) = await list_dead(database, DeadFilter())
    assert letter["error"] == "no plan has the eligibility third that the message names"


async def test_a_plan_adds_another_which_is_retried_alone(database: Database, database_url: str) -> None:
    async with running_stream(stream_of("first"), database_url) as dispatcher:
        await publish(database, "posts", [{"adds": True, "fails": True}])
        await eventually(lambda: dispatcher.reducer.counts[0].done == 1)
    assert First.ran == ["first", "second, attempt 1", "second, attempt 2"]


async def test_the_trace_of_a_message_continues_in_its_tasks(database: Database, database_url: str) -> None:
    async with running_stream(stream_of("trace"), database_url):
        await publish(database, "posts", [{}], headers=encode({"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}))
        await publish(database, "posts", [{}])
        await eventually(lambda: len(Tracing.traces) == 2)
    assert [trace is not None and TRACE in trace for trace in Tracing.traces] == [True, False]


async def test_every_attempt_is_kept_with_its_engine_log_lines_and_traceback(
    database: Database, database_url: str
) -> None:
    await database.run(lambda connection: connection.execute(TABLES))
    await publish(database, "posts", [{"number": 1, "bad": True}])
    async with stream_process(database_url) as stream:
        await eventually(lambda: value(database, "SELECT count(*) = 1 FROM tidemill.dead_letter"), timeout=60)
        said = stream.said
    (letter,) = await list_dead(database, DeadFilter())
    attempts = json.loads(letter["history"])
    assert [(each["attempt"], each["plan"], each["kind"]) for each in attempts] == [
        (number, "Noting", "ValueError") for number in (1, 2, 3)
    ]
    assert 'raise ValueError("bad news")' in attempts[-1]["traceback"]
    assert " engine " in attempts[-1]["engine"]
    assert [line["event"] for line in attempts[-1]["lines"]] == ["this will not end well"]
    assert attempts[-1]["lines"][0]["fields"] == {"colour": "red"}
    line = next(line for line in said.splitlines() if "this will not end well" in line)
    assert all(word in line for word in ("stream=posts", "source=posts", "plan=Noting", "message=")), line


def test_options_of_a_message_are_checked() -> None:
    with pytest.raises(ConfigError, match="deadline 'until' is neither 'header:NAME' nor 'field:NAME'"):
        LogSource("posts", deadline="until")
