"""Putting jobs in: one, many, by name, from async and from plain code."""

from __future__ import annotations

import asyncio
import sys
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import msgspec
import pytest

from tests.support import find_history, find_live, finished, running_worker, value
from tidemill import App, current_job
from tidemill.core.errors import ConfigError, NotFoundError, PayloadError, StoreError
from tidemill.engine.worker.claimer import SAFETY_POLL
from tidemill.store.database import Database
from tidemill.store.jobs.insert import SOON
from tidemill.store.jobs.pages import JobFilter, list_job_page


@pytest.fixture
def app(app: App) -> App:
    @app.task(queue="sums", tags=["maths"])
    async def add(a: int, b: int = 10) -> int:
        return a + b

    @app.task(queue="sums")
    async def shout(args: str, priority: str, delay: int = 0) -> str:
        return f"{args} {priority} {delay}"

    return app


async def results(database: Database) -> list[bytes]:
    rows = await database.fetch("SELECT result FROM tidemill.job_history ORDER BY id")
    return [row["result"] for row in rows]


async def test_arguments_may_be_given_as_in_a_call_by_position_by_name_or_in_a_mapping(app: App, database) -> None:
    add = app.declarations.tasks["add"]
    async with running_worker(app):
        refs = [
            await app.enqueue(add, 1, 2),
            await app.enqueue(add, a=1, b=3),
            await app.enqueue(add, 1, b=4),
            await app.enqueue("add", args={"a": 1}),
            await app.enqueue("add", args={"a": 1}, b=5),
        ]
        assert [(await app.wait(ref, timeout=120)).result for ref in refs] == [3, 4, 5, 11, 6]


async def test_a_parameter_that_is_called_like_an_option_goes_into_args(app: App, database: Database) -> None:
    async with running_worker(app):
        ref = await app.enqueue("shout", args={"args": "hey", "priority": "high", "delay": 3}, priority=9)
        assert (await app.wait(ref, timeout=120)).result == "hey high 3"
    (row,) = await find_history(database, ref.id)
    assert row["priority"] == 9


async def test_an_enqueued_job_is_committed_when_the_call_returns(app: App, database: Database) -> None:
    ref = await app.enqueue("add", 7)
    assert ref.created
    row = await find_live(database, ref.id)
    assert row is not None
    assert (row["state"], row["queue"], row["task"], row["args"], row["attempt"]) == (
        "ready", "sums", "add", b'{"a":7}', 0,
    )  # fmt: skip


async def test_a_job_says_who_enqueued_it(app: App, database: Database) -> None:
    ref = await app.enqueue("add", 7)
    row = await find_live(database, ref.id)
    assert row is not None
    origin = msgspec.json.decode(row["origin"])
    assert origin["by"] == "app test"
    assert origin["pid"] > 0
    assert origin["host"]


async def test_a_job_that_a_job_enqueued_says_so(app: App, database: Database) -> None:
    @app.task(queue="parents")
    async def parent() -> int:
        return (await app.enqueue("add", 1)).id

    async with running_worker(app, ["parents"]):
        ref = await app.enqueue(parent)
        child = (await app.wait(ref, timeout=120)).result
    row = await find_live(database, child)
    assert row is not None
    origin = msgspec.json.decode(row["origin"])
    assert (origin["by"], origin["parent"]) == (f"job {ref.id} (parent)", ref.id)


async def test_twenty_thousand_jobs_go_in_with_one_call_and_keep_their_order(app: App, database: Database) -> None:
    refs = await app.enqueue_many("add", ({"a": n} for n in range(20_000)), tags=["bulk"], priority=2)
    assert [ref.id for ref in refs] == sorted({ref.id for ref in refs})
    assert len(refs) == 20_000
    rows = await database.fetch("SELECT id, args::text AS args FROM tidemill.job ORDER BY id")
    assert [row["id"] for row in rows] == [ref.id for ref in refs]
    assert [row["args"] for row in rows] == [f'{{"a":{n}}}' for n in range(20_000)]
    assert (
        await value(database, "SELECT count(*) FROM tidemill.job WHERE tags = '{maths,bulk}' AND priority = 2")
        == 20_000
    )


async def test_many_jobs_are_all_stored_or_none(app: App, database: Database) -> None:
    with pytest.raises(PayloadError, match=r"call 2: task add: .*; nothing was enqueued"):
        await app.enqueue_many("add", [{"a": 1}, {"a": 2}, {"a": "three"}])
    assert await value(database, "SELECT count(*) FROM tidemill.job") == 0


async def test_no_calls_enqueue_no_jobs(app: App) -> None:
    assert await app.enqueue_many("add", []) == []


async def test_a_job_may_go_to_another_queue_than_its_task_says(app: App, database: Database) -> None:
    async with running_worker(app, ["other queue/of mine"]):
        ref = await app.enqueue("add", 1, queue="other queue/of mine")
        assert (await finished(database, ref.id))["queue"] == "other queue/of mine"


async def test_tags_of_the_task_and_of_the_call_are_kept_and_found(app: App, database: Database) -> None:
    ref = await app.enqueue("add", 1, tags=["urgent", "eu"])
    await app.enqueue("add", 2)
    row = await find_live(database, ref.id)
    assert row is not None
    assert row["tags"] == ["maths", "urgent", "eu"]
    assert [job["id"] for job in await list_job_page(database, JobFilter(tag="urgent"))] == [ref.id]
    assert len(await list_job_page(database, JobFilter(tag="maths"))) == 2
    async with running_worker(app):
        assert (await finished(database, ref.id))["tags"] == ["maths", "urgent", "eu"]


async def test_two_hundred_enqueues_at_once_each_get_their_own_job(app: App, database: Database) -> None:
    refs = await asyncio.gather(*(app.enqueue("add", n) for n in range(200)))
    assert len({ref.id for ref in refs}) == 200
    rows = await database.fetch("SELECT id, args FROM tidemill.job")
    stored = {row["id"]: msgspec.json.decode(row["args"])["a"] for row in rows}
    assert [stored[ref.id] for ref in refs] == list(range(200))


async def test_concurrent_first_enqueues_share_one_pool(app: App, database: Database) -> None:
    async def most_connections() -> int:
        seen = 0
        while not enqueueing.done():
            seen = max(seen, await value(database, CONNECTIONS, "tidemill test"))
        return seen

    enqueueing = asyncio.gather(*(app.enqueue("add", n) for n in range(50)))
    assert await most_connections() <= app.settings.pool_size
    await enqueueing


CONNECTIONS = """
SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND datname = current_database()
"""


async def test_an_error_of_one_enqueue_does_not_hit_those_beside_it(app: App, database: Database) -> None:
    def options(n: int) -> dict[str, Any]:
        return {"tags": ["refused"]} if n == 50 else {}

    refuses = "ALTER TABLE tidemill.job ADD CHECK (NOT 'refused' = ANY (tags))"
    await database.run(lambda connection: connection.execute(refuses))
    answers = await asyncio.gather(*(app.enqueue("add", n, **options(n)) for n in range(100)), return_exceptions=True)
    assert isinstance(answers[50], StoreError)
    assert all(not isinstance(answer, BaseException) for n, answer in enumerate(answers) if n != 50)
    assert await value(database, "SELECT count(*) FROM tidemill.job") == 99


async def test_text_that_postgresql_cannot_store_is_refused_with_its_task(app: App, database: Database) -> None:
    with pytest.raises(PayloadError, match="task shout"):
        await app.enqueue("shout", "nul \x00", "high")
    with pytest.raises(PayloadError, match="task shout"):
        await app.enqueue_many("shout", [{"args": "a", "priority": "b"}, {"args": "nul \x00", "priority": "b"}])
    assert await value(database, "SELECT count(*) FROM tidemill.job") == 0


# Plain code


async def test_plain_code_enqueues_without_an_event_loop(app: App, database: Database) -> None:
    add = app.declarations.tasks["add"]

    def plain() -> list[int]:
        one = app.enqueue_sync("add", 1, b=2, priority=8)
        many = app.jobs.enqueue_many_sync([add.call(2), add.call(3)])
        return [one.id, *(ref.id for ref in many)]

    ids = await asyncio.to_thread(plain)
    rows = await database.fetch("SELECT id, priority FROM tidemill.job ORDER BY id")
    assert [row["id"] for row in rows] == ids
    assert [row["priority"] for row in rows] == [8, 5, 5]


async def test_plain_code_may_enqueue_in_the_thread_of_a_running_event_loop(app: App, database: Database) -> None:
    ref = app.enqueue_sync("add", 1)
    assert await find_live(database, ref.id) is not None


async def test_many_threads_enqueue_at_once(app: App, database: Database) -> None:
    ids: list[int] = []

    def plain() -> None:
        for n in range(20):
            ids.append(app.enqueue_sync("add", n).id)

    def all_together() -> None:
        threads = [threading.Thread(target=plain) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    await asyncio.to_thread(all_together)
    assert len(set(ids)) == 160
    assert await value(database, "SELECT count(*) FROM tidemill.job") == 160


async def test_a_running_task_may_enqueue_with_the_plain_twin(app: App, database: Database) -> None:
    @app.task(queue="parents")
    def parent() -> dict:
        return {"child": app.enqueue_sync("add", 1).id, "me": current_job().id}

    async with running_worker(app, ["parents"]):
        ref = await app.enqueue(parent)
        result = (await app.wait(ref, timeout=120)).result
    assert result["me"] == ref.id
    assert await find_live(database, result["child"]) is not None


# Waiting


async def test_waiting_for_a_job_returns_how_it_ended(app: App) -> None:
    @app.task(queue="sums")
    async def broken() -> None:
        raise ValueError("no luck")

    async with running_worker(app):
        good = await app.wait(await app.enqueue("add", 1), timeout=150)
        bad = await app.wait((await app.enqueue(broken)).id, timeout=150)
    assert (good.state, good.result) == ("succeeded", 11)
    assert (bad.state, bad.result) == ("failed", None)
    assert "ValueError: no luck" in str(bad.note)


async def test_waiting_too_long_is_a_timeout(app: App) -> None:
    ref = await app.enqueue("add", 1)
    with pytest.raises(TimeoutError):
        await app.wait(ref, timeout=0.05)


async def test_waiting_for_a_job_that_does_not_exist_says_so(app: App) -> None:
    with pytest.raises(NotFoundError, match="there is no job 4711"):
        await app.wait(4711, timeout=150)


# Later


async def test_a_delay_counts_from_the_clock_of_the_database(app: App, database: Database) -> None:
    ref = await app.enqueue("add", 1, delay="90s")
    row = await find_live(database, ref.id)
    assert row is not None
    assert row["due_at"] - row["created_at"] == timedelta(seconds=90)


async def test_a_delayed_job_starts_when_it_is_due_and_not_before(app: App, database: Database) -> None:
    async with running_worker(app):
        much_later = await app.enqueue("add", 1, delay="1h")
        later = await app.enqueue("add", 1, delay=0.4)
        soon = await app.enqueue("add", 2)
        await finished(database, soon.id)
        row = await finished(database, later.id)
        assert await find_live(database, much_later.id) is not None
    assert row["started_at"] >= row["due_at"]


async def test_a_moment_may_be_given_in_any_time_zone_or_as_seconds(app: App, database: Database) -> None:
    moment = datetime(2040, 6, 1, 12, tzinfo=UTC)
    for at in (moment, moment.astimezone(), moment.timestamp()):
        row = await find_live(database, (await app.enqueue("add", 1, at=at)).id)
        assert row is not None
        assert row["due_at"] == moment


async def test_a_moment_in_the_past_is_now(app: App, database: Database) -> None:
    async with running_worker(app):
        ref = await app.enqueue("add", 1, at=datetime(2000, 1, 1, tzinfo=UTC))
        assert (await finished(database, ref.id))["state"] == "succeeded"


async def test_a_delay_that_no_calendar_has_is_refused(app: App, database: Database) -> None:
    with pytest.raises(ConfigError, match="longer than a century"):
        await app.enqueue("add", 1, delay=1e15)
    assert await value(database, "SELECT count(*) FROM tidemill.job") == 0


FORKING = """
import os, sys
from tidemill import App

app = App("forking", database_url=sys.argv[1])

@app.task
def work(who: str) -> None: ...

app.enqueue_sync(work, "parent")
child = os.fork()
app.enqueue_sync(work, "child" if child == 0 else "parent again")
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
app.close_sync()
"""


async def test_a_fork_of_a_process_that_has_enqueued_enqueues_as_well(database_url: str, database: Database) -> None:
    """As web servers do that load an application once and fork."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", FORKING, database_url)
    assert await asyncio.wait_for(process.wait(), 150) == 0
    stored = await database.fetch("SELECT args FROM tidemill.job")
    assert {row["args"] for row in stored} == {b'{"who":"parent"}', b'{"who":"parent again"}', b'{"who":"child"}'}


async def test_a_database_that_could_not_be_used_is_tried_again_by_the_next_call(app: App, database: Database) -> None:
    await database.fetch("ALTER TABLE tidemill.schema_version RENAME version TO hidden")
    with pytest.raises(asyncpg.UndefinedColumnError):
        await app.enqueue("add", 1)
    await database.fetch("ALTER TABLE tidemill.schema_version RENAME hidden TO version")
    assert (await app.enqueue("add", 1)).created


@pytest.mark.parametrize("delay", ["7s", "25s"])
async def test_an_idle_worker_is_woken_for_a_job_that_is_due_before_it_would_look_again(
    app: App, database: Database, delay: str
) -> None:
    assert SOON > SAFETY_POLL
    connection = await database.connect()
    woken: asyncio.Queue[str] = asyncio.Queue()
    await connection.add_listener(database.channel("jobs"), lambda *said: woken.put_nowait(str(said[-1])))

    @app.task(queue="later")
    async def quiet() -> None: ...

    await app.enqueue("quiet", delay=delay)
    assert await asyncio.wait_for(woken.get(), 20) == "later"
    await app.enqueue_many([quiet.call(), quiet.call()], delay=delay)
    assert await asyncio.wait_for(woken.get(), 20) == "later"
    await connection.close()
