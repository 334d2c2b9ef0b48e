"""`tidemill explain STREAM/SOURCE:POSITION` or a message id: where a message waits, and what became of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support import eventually, value
from tests.support.streams import all_read, publish, running_stream
from tidemill import App
from tidemill.core.accounts import Caller
from tidemill.core.errors import NotFoundError
from tidemill.core.retry import retry
from tidemill.ops.explain import ExplainObject, Explanation, explain
from tidemill.ops.operator.local import Local
from tidemill.sources import LogSource
from tidemill.store.database import Database
from tidemill.streams import Plan, Stream, task


class Judging(Plan, eligibility="judge"):
    gate: asyncio.Event

    @task
    async def judge(self, ctx: Any) -> None:
        if ctx.value == "bad" or (ctx.value == "late" and ctx.message.attempt == 1):
            raise ValueError(f"{ctx.value} news")
        if ctx.value == "slow":
            await Judging.gate.wait()


def declare(app: App, *, attempts: int = 1) -> Stream:
    source = LogSource("posts", eligibilities=frozenset({"judge"}), message_id="key")
    policy = retry(attempts, backoff=3600, jitter=0.0)
    return app.stream(Stream("s", plans=[Judging], sources=[source], engines=0, retry=policy))


async def explained(app: App, database: Database, id: str) -> Explanation:
    return await Local(database, Caller("test", "viewer"), app.declarations).do(explain, ExplainObject(id=id))


async def test_a_message_is_explained_from_its_arrival_to_its_end(
    app: App, database: Database, database_url: str
) -> None:
    stream = declare(app)
    Judging.gate = asyncio.Event()
    await publish(database, "posts", ["slow"], key="one")
    position = await value(database, "SELECT position FROM tidemill.log_message")
    name = f"s/posts:{position}"
    found = await explained(app, database, name)
    assert (found.kind, found.state) == ("message", "waiting")
    assert found.why == ["No dispatcher has taken it from the log yet.", "No dispatcher of the stream is running."]
    async with running_stream(stream, database_url) as dispatcher:
        await eventually(lambda: dispatcher.reducer.busy)
        assert (await explained(app, database, name)).state == "in_flight"
        Judging.gate.set()
        await all_read(database, "posts")
    assert (await explained(app, database, name)).state == "done"
    by_id = await explained(app, database, "one")
    assert (by_id.state, by_id.message and by_id.message.source) == ("done", "posts")
    with pytest.raises(NotFoundError, match="has no message 1:"):
        await explained(app, database, "s/posts:1")
    with pytest.raises(NotFoundError, match="its sources are posts"):
        await explained(app, database, "s/other:1")


async def test_a_message_that_failed_is_explained_with_its_error(
    app: App, database: Database, database_url: str
) -> None:
    stream = declare(app, attempts=2)
    await publish(database, "posts", ["late"], key="two")
    async with running_stream(stream, database_url) as dispatcher:
        await eventually(lambda: dispatcher.reducer.counts[0].retried == 1)
    found = await explained(app, database, "two")
    assert found.message is not None
    assert (found.state, found.message.attempts, found.message.plans) == ("retrying", 2, ["Judging"])
    assert found.why == ["Attempt 1 failed.", "It is stored until its next attempt.", "Judging: ValueError: late news"]
    assert (await explained(app, database, f"s/posts:{found.message.place}")).state == "retrying"


async def test_a_message_that_was_given_up_is_explained_as_its_dead_letter(
    app: App, database: Database, database_url: str
) -> None:
    stream = declare(app)
    await publish(database, "posts", ["bad"], key="three")
    async with running_stream(stream, database_url) as dispatcher:
        await eventually(lambda: dispatcher.reducer.counts[0].dead == 1)
    found = await explained(app, database, "three")
    assert found.kind == "dead letter"
    assert "ValueError: bad news" in found.why[1]
