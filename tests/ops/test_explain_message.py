"""`tidemill explain STREAM/SOURCE:POSITION` or a message id: where a message waits, and what became of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support import eventually, value
from tests.support.streams import all_read, publish, running_stream
from tidemill import App
from tidemill.core.accounts import Caller
from tidemill.core.errors import NotFoundError
from tidemill.core.retry import retry
from tidemill.flows import StartEvent, StopEvent, Workflow, step
from tidemill.ops.explain import ExplainObject, Explanation, explain
from tidemill.ops.operator.local import Local
from tidemill.pipelines import DatabaseStates, Pipeline
from tidemill.sources import LogSource
from tidemill.store.database import Database
from tidemill.streams import Plan, Stream, task


class Apart(LogSource, frozen=True, tag="apart"):
    """Its positions are not stored with what is handed over, as those of a broker are not."""

    def consumer(self, context: Any) -> Any:
        consumer = super().consumer(context)
        consumer.transactional = False
        return consumer


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


async def explained(app: App, database: Database, id: str, *, forward: bool = False) -> Explanation:
    wanted = ExplainObject(id=id, forward=forward)
    return await Local(database, Caller("test", "viewer"), app.declarations).do(explain, wanted)


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


async def test_a_message_names_what_it_has_handed_over(
    app: App, database: Database, database_url: str, tmp_path: Path
) -> None:
    """Once, though the message is delivered twice; and the job names the message."""
    notes = Pipeline("notes", root=tmp_path, store=DatabaseStates("notes"))

    @notes.stage(input="inbox/{name}.txt", output="upper/{name}.txt")
    def upper(text: str) -> str:
        return text.upper()

    app.pipeline(notes)

    @app.workflow
    class Order(Workflow):
        @step
        async def begin(self, event: StartEvent) -> StopEvent:
            return StopEvent(result="never run here")

    @app.task
    async def follow_up(number: int) -> None: ...

    class Handing(Plan, eligibility="judge"):
        @task
        async def hand(self, ctx: Any) -> None:
            ctx.enqueue(follow_up, number=1)
            ctx.send(ctx.value, StartEvent())
            ctx.write_state("inbox/a.txt", "one")
            ctx.publish("results", "fine")
            ctx.execute("SELECT 1")

    run = await app.start(Order)
    source = Apart("posts", eligibilities=frozenset({"judge"}), message_id="header:id")
    stream = app.stream(Stream("s", plans=[Handing], sources=[source], engines=0, dedup_window=0.01))
    await publish(database, "posts", [run.id], headers=b'{"id": "seven"}')
    for _ in range(2):
        await database.fetch("UPDATE tidemill.log_group SET xid = '0', id = 0")
        async with running_stream(stream, database_url):
            await all_read(database, "posts")
    job = await value(database, "SELECT id FROM tidemill.job WHERE task = 'follow_up'")
    (place,) = await places(database, "posts")
    for name in (f"s/posts:{place}", "seven", "s/posts:seven"):
        found = await explained(app, database, name, forward=True)
        assert found.state == "done"
        assert found.message is not None
        assert found.message.place == f"0:{place}"
        assert [(each.id, each.what, each.state) for each in found.followed[:3]] == [
            (str(job), "job follow_up", "ready"),
            (f"r{run.id}", "event for a run", "running"),
            ("inbox/a.txt", "state of pipeline notes", ""),
        ]
        assert {each.what for each in found.followed[3:]} == {"message of the log results", "statement SELECT 1"}
        assert any("It has handed over: 1 × job, 1 × event for a run" in each for each in found.why)
    assert (
        await value(database, "SELECT origin->>'by' FROM tidemill.job WHERE id = $1", job)
        == f"message s/posts:0:{place}"
    )


async def places(database: Database, topic: str = "posts") -> list[int]:
    rows = await database.fetch("SELECT position FROM tidemill.log_message WHERE topic = $1 ORDER BY 1", topic)
    return [row["position"] for row in rows]


@pytest.mark.parametrize(
    ("settings", "of_stream", "waits_for", "says"),
    [
        ({"max_qps": 0.01, "burst": 1}, {}, "limit", "waits for the limit of its source, 0.01 messages a second"),
        ({"ordered": True}, {}, "key", "waits for its key, which message 0:"),
        ({}, {"max_concurrency": 1}, "slot", "waits for a slot: all of them are in use"),
        ({"max_concurrency": 1}, {}, "max_concurrency", "as many are in flight as its limit allows"),
    ],
)
async def test_a_message_that_was_read_is_explained_by_what_it_waits_for(
    app: App,
    database: Database,
    database_url: str,
    settings: dict[str, Any],
    of_stream: dict[str, Any],
    waits_for: str,
    says: str,
) -> None:
    Judging.gate = asyncio.Event()
    source = LogSource("posts", eligibilities=frozenset({"judge"}), **settings)
    stream = app.stream(Stream("s", plans=[Judging], sources=[source], engines=0, **of_stream))
    await publish(database, "posts", ["slow"] * 3, key="one")
    first, _, last = await places(database)
    async with running_stream(stream, database_url) as dispatcher:
        await eventually(lambda: dispatcher.reducer.busy and dispatcher.reducer.waiting(0))
        await eventually(lambda: value(database, "SELECT count(*) FROM tidemill.stream_status"))
        running = (await explained(app, database, f"s/posts:{first}")).message
        assert running is not None
        assert (running.state, running.waits_for) == ("in_flight", None)
        assert "engine 0" in str(running.engine)
        assert running.seconds is not None
        found = await explained(app, database, f"s/posts:{last}")
        assert found.message is not None
        assert (found.state, found.message.waits_for) == ("waiting", waits_for), found.why
        assert says in found.why[0]
        assert found.message.dispatcher is not None
        if waits_for == "key":
            assert found.message.behind == f"0:{first}"
        else:
            assert found.message.ahead == 1
        Judging.gate.set()
        dispatcher.life.stop()
        dispatcher.life.stop()


async def test_an_id_that_looks_like_another_is_still_found(app: App, database: Database, database_url: str) -> None:
    stream = declare(app)
    await publish(database, "posts", ["bad"], key="12")
    async with running_stream(stream, database_url) as dispatcher:
        await eventually(lambda: dispatcher.reducer.counts[0].dead == 1)
    for id in ("12", "s/posts:12"):
        found = await explained(app, database, id)
        assert (found.kind, found.message and found.message.message_id) == ("dead letter", "12")
    with pytest.raises(NotFoundError, match="job 13"):
        await explained(app, database, "13")


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
    assert found.dead_letter is not None
    (attempt,) = found.dead_letter.history
    assert attempt.waited is not None
    assert set(attempt.waited) <= {"source", "dispatcher"}
