"""What plans hand over: jobs, log entries, statements, events, states; stored with the message's completion."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import eventually, value
from tests.support.streams import all_read, publish, running_stream
from tests.support.wire import Wire
from tidemill import App
from tidemill.core.errors import ConfigError
from tidemill.core.retry import retry
from tidemill.flows import Event, StartEvent, StopEvent, Workflow, step
from tidemill.pipelines import DatabaseStates, Pipeline
from tidemill.sources import LogSource
from tidemill.store.database import Database
from tidemill.store.streams.dead_letters import DeadFilter, list_dead
from tidemill.streams import Plan, Stream, task

QUICK = retry(3, backoff=0.02, jitter=0.0)


def posts(**options: Any) -> LogSource:
    return LogSource("posts", eligibilities=frozenset({"hand"}), **options)


class Apart(LogSource, frozen=True, tag="apart"):
    """Its positions are not stored with what is handed over, as those of a broker are not."""

    def consumer(self, context: Any) -> Any:
        consumer = super().consumer(context)
        consumer.transactional = False
        return consumer


async def test_what_a_plan_hands_over_is_stored_with_its_completion(
    app: App, database: Database, database_url: str
) -> None:
    @app.task
    async def follow_up(number: int) -> None: ...

    class Handing(Plan, eligibility="hand"):
        @task
        async def hand(self, ctx: Any) -> None:
            ctx.enqueue(follow_up, number=ctx.value)
            ctx.publish("results", {"number": ctx.value}, key=str(ctx.value))
            ctx.execute("INSERT INTO outcome VALUES ($1, $2)", ctx.value, "fine")
            if ctx.value == 3:
                ctx.execute("INSERT INTO nowhere VALUES (1)")

    await database.fetch("CREATE TABLE outcome (number int PRIMARY KEY, words text)")
    stream = Stream(
        "s",
        plans=[Handing],
        sources=[posts()],
        engines=0,
        retry=QUICK,
    )
    await publish(database, "posts", range(100))
    async with running_stream(stream, database_url):
        await all_read(database, "posts")
    assert await value(database, "SELECT count(*) FROM outcome") == 99
    assert await value(database, "SELECT count(*) FROM tidemill.job WHERE task = 'follow_up'") == 99
    assert await value(database, "SELECT count(DISTINCT key) FROM tidemill.log_message WHERE topic = 'results'") == 99
    (dead,) = await list_dead(database, DeadFilter())
    assert 'relation "nowhere" does not exist' in dead["error"]
    assert json.loads(dead["payload"]) == 3


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("ROLLBACK", "ROLLBACK cannot be executed with a message"),
        ("; -- done\n/* all */ commit and chain", "COMMIT cannot be executed with a message"),
        ("SET TRANSACTION READ ONLY", "SET cannot be executed with a message"),
        ("set statement_timeout = 1", "SET cannot be executed with a message"),
        ("COPY outcome FROM STDIN", "COPY cannot be executed with a message"),
        ("SELECT pg_terminate_backend(pg_backend_pid())", "which was lost during SELECT pg_terminate_backend"),
        ("/* /* nested */ */ ROLLBACK", "a statement has ended the transaction that other messages share"),
    ],
)
async def test_a_statement_that_would_end_or_change_the_transaction_of_other_messages_takes_none_along(
    database: Database, database_url: str, statement: str, why: str
) -> None:
    class Handing(Plan, eligibility="hand"):
        @task
        async def hand(self, ctx: Any) -> None:
            ctx.execute("/* all */ INSERT INTO outcome /* SET */ VALUES ($1) -- ------", ctx.value)
            if ctx.value == 50:
                ctx.execute(statement)

    await database.fetch("CREATE TABLE outcome (number int PRIMARY KEY)")
    stream = Stream("s", plans=[Handing], sources=[posts()], engines=0, retry=QUICK)
    await publish(database, "posts", range(100))
    async with running_stream(stream, database_url):
        (dead,) = await eventually(lambda: list_dead(database, DeadFilter()))
        await all_read(database, "posts")
    assert await value(database, "SELECT count(*) FROM outcome") == 99
    assert why in dead["error"]
    assert json.loads(dead["payload"]) == 50


async def test_a_handed_job_exists_once_though_its_message_is_repeated(
    app: App, database: Database, database_url: str
) -> None:
    """Where the position is not ours to store with it, a key makes the second hand-over the first."""

    @app.task
    async def follow_up(number: int) -> None: ...

    class Handing(Plan, eligibility="hand"):
        @task
        async def hand(self, ctx: Any) -> None:
            ctx.enqueue(follow_up, number=ctx.value)

    stream = Stream("s", plans=[Handing], sources=[Apart("posts", eligibilities=frozenset({"hand"}))], engines=0)
    await publish(database, "posts", range(10))
    for _ in range(2):
        async with running_stream(stream, database_url):
            await all_read(database, "posts")
        await database.fetch("UPDATE tidemill.log_group SET xid = '0', id = 0")
    assert await value(database, "SELECT count(*) FROM tidemill.job WHERE task = 'follow_up'") == 10


async def test_a_range_that_another_has_taken_over_cannot_be_finished_twice(
    database: Database, database_url: str
) -> None:
    gate = asyncio.Event()

    class Handing(Plan, eligibility="hand"):
        @task
        async def hand(self, ctx: Any) -> None:
            await gate.wait()
            ctx.publish("results", ctx.value)

    source = posts()
    stream = Stream("s", plans=[Handing], sources=[source], engines=0)
    await publish(database, "posts", range(5))
    async with running_stream(stream, database_url) as dispatcher:
        await eventually(lambda: len(dispatcher.reducer.flights) == 5)
        await database.fetch("UPDATE tidemill.log_range SET owner = gen_random_uuid(), lease_until = now() + '1h'")
        gate.set()
        await eventually(lambda: dispatcher.reducer.busy == 0)
        assert await value(database, "SELECT count(*) FROM tidemill.log_message WHERE topic = 'results'") == 0
        await database.fetch("UPDATE tidemill.log_range SET lease_until = now()")
        await all_read(database, "posts")
    assert await value(database, "SELECT count(*) FROM tidemill.log_message WHERE topic = 'results'") == 5


async def test_an_event_reaches_a_run_once_though_its_message_is_repeated(
    app: App, database: Database, database_url: str
) -> None:
    class Approved(Event):
        by: str

    @app.workflow
    class Order(Workflow):
        @step
        async def begin(self, event: StartEvent) -> StopEvent:
            return StopEvent(result="never run here")

    class Sending(Plan, eligibility="hand"):
        @task
        async def send(self, ctx: Any) -> None:
            ctx.send(ctx.value, Approved(by="a message"))

    run = await app.start(Order)
    source = posts()
    stream = app.stream(Stream("s", plans=[Sending], sources=[source], engines=0))
    await publish(database, "posts", [run.id])
    for _ in range(2):
        async with running_stream(stream, database_url):
            await all_read(database, "posts")
        await database.fetch("UPDATE tidemill.log_group SET xid = '0', id = 0")
    sent = "SELECT count(*) FROM tidemill.inbox WHERE run_id = $1 AND data::text LIKE '%a message%'"
    assert await value(database, sent, run.id) == 1


async def test_a_lost_answer_to_a_commit_stores_nothing_twice(database: Database, database_url: str) -> None:
    """The commit arrived and its answer did not: the database is asked what became of it."""

    class Handing(Plan, eligibility="hand"):
        @task
        async def hand(self, ctx: Any) -> None:
            ctx.execute("INSERT INTO outcome VALUES ($1)", ctx.value)

    await database.fetch("CREATE TABLE outcome (number int)")
    stream = Stream("s", plans=[Handing], sources=[posts()], engines=0)
    async with Wire(database_url).open() as wire, running_stream(stream, wire.url):
        wire.cut_after("INSERT INTO outcome", then="COMMIT")
        await publish(database, "posts", range(50))
        await all_read(database, "posts")
        await eventually(lambda: wire.cuts == 1)
    assert await value(database, "SELECT array_agg(number ORDER BY number) FROM outcome") == list(range(50))


def notes(store: Any, root: Path) -> Pipeline:
    pipeline = Pipeline("notes", root=root, store=store)

    @pipeline.stage(input="inbox/{name}.txt", output="upper/{name}.txt")
    def upper(text: str) -> str:
        return text.upper()

    return pipeline


class Writing(Plan, eligibility="hand"):
    @task
    async def write(self, ctx: Any) -> None:
        ctx.write_state(f"inbox/{ctx.value['name']}.txt", ctx.value["text"])


async def test_a_state_that_a_plan_writes_is_built_upon(
    app: App, database: Database, database_url: str, tmp_path: Path
) -> None:
    """Repeating the message writes the same content once more, from which nothing is built again."""
    app.pipeline(notes(None, tmp_path))
    stream = app.stream(Stream("s", plans=[Writing], sources=[posts()], engines=0))
    runner = app.pipelines.runner(database)
    running = asyncio.create_task(runner.run())
    try:
        await runner.wait_ready()
        await publish(database, "posts", [{"name": "a", "text": "hello"}])
        async with running_stream(stream, database_url):
            await all_read(database, "posts")
        assert (tmp_path / "inbox/a.txt").read_text() == "hello"
        found = "SELECT count(*) FROM tidemill.job WHERE task = 'notes/upper'"
        await eventually(lambda: value(database, found), what="the stage was asked to build")
    finally:
        runner.stop()
        await running


async def test_a_state_in_the_database_is_written_with_the_position(
    app: App, database: Database, database_url: str, tmp_path: Path
) -> None:
    app.pipeline(notes(DatabaseStates("notes"), tmp_path))
    stream = app.stream(Stream("s", plans=[Writing], sources=[posts()], engines=0, retry=QUICK))
    await publish(database, "posts", [{"name": "a", "text": "one"}, {"name": "b", "text": "two"}])
    async with running_stream(stream, database_url):
        await all_read(database, "posts")
    rows = await database.fetch("SELECT path, content FROM tidemill.state_blob ORDER BY path")
    assert [(row["path"], row["content"]) for row in rows] == [("inbox/a.txt", b"one"), ("inbox/b.txt", b"two")]


async def test_a_path_that_no_stage_takes_in_is_refused_where_it_is_written(app: App, tmp_path: Path) -> None:
    app.pipeline(notes(None, tmp_path))
    stream = app.stream(Stream("s", plans=[Writing], sources=[posts()], engines=0))
    assert stream.states is not None
    assert stream.states.check(None, "inbox/a.txt") == "notes"
    with pytest.raises(ConfigError, match="is made by stage upper"):
        stream.states.check("notes", "upper/a.txt")
    with pytest.raises(ConfigError, match=r"no stage takes in other/a.txt; they take in inbox/\{name\}.txt"):
        stream.states.check("notes", "other/a.txt")
    with pytest.raises(ConfigError, match="there is no pipeline 'blog'"):
        stream.states.check("blog", "inbox/a.txt")


async def test_what_a_live_request_hands_over_is_there_when_it_is_answered(
    database: Database, database_url: str
) -> None:
    class Handing(Plan, eligibility="hand"):
        @task
        async def hand(self, ctx: Any) -> str:
            ctx.execute("INSERT INTO outcome VALUES ($1)", ctx.value)
            return "fine"

    await database.fetch("CREATE TABLE outcome (number int CHECK (number > 0))")
    stream = Stream("s", plans=[Handing], sources=[posts()], engines=0)
    async with running_stream(stream, database_url) as dispatcher:
        found = await dispatcher.live_requests.ask(b"7", ["hand"])
        assert json.loads(found.result) == {"Handing": {"hand": "fine"}}
        assert await value(database, "SELECT number FROM outcome") == 7
        refused = await dispatcher.live_requests.ask(b"-1", ["hand"])
        assert "outcome_number_check" in refused.failures["result"]
