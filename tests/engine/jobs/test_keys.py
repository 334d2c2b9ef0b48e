"""Unique keys and concurrency keys."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import asyncpg
import pytest

from tests.support import eventually, find_live, finished, running, running_maintenance, running_worker, value
from tests.support.operate import cancel_jobs, retry_jobs
from tidemill import App
from tidemill.core.errors import ConfigError
from tidemill.store.database import Database
from tidemill.store.jobs.history.partitions import forget_leftovers
from tidemill.store.jobs.sweeps import admit_due


@pytest.fixture
def app(app: App) -> App:
    @app.task
    async def send(to: str = "") -> str:
        return to

    @app.task
    async def other() -> None: ...

    return app


# Debounced


async def test_of_debounced_calls_the_last_one_counts_and_the_job_waits_for_it(app: App, database: Database) -> None:
    first = await app.enqueue("send", "a", unique_key="k", debounce="1h")
    await value(database, "UPDATE tidemill.job SET due_at = now() + interval '10 minutes'")
    second = await app.enqueue("send", "b", unique_key="k", debounce="1h")
    assert (first.created, second.created, second.id) == (True, False, first.id)
    assert await value(database, "SELECT args ->> 'to' FROM tidemill.job") == "b"
    assert await value(database, "SELECT due_at > now() + interval '59 minutes' FROM tidemill.job")


async def test_a_debounced_job_runs_once_with_the_last_arguments(app: App, database: Database) -> None:
    async with running_worker(app):
        jobs = [await app.enqueue("send", str(n), unique_key="k", debounce="300ms") for n in range(5)]
        ended = await app.wait(jobs[-1], timeout=20)
    assert await value(database, "SELECT count(*) FROM tidemill.job_history") == len({job.id for job in jobs})
    assert ended.result == "4"


async def test_a_call_while_its_job_runs_makes_another_one(app: App, database: Database) -> None:
    going, go_on = asyncio.Event(), asyncio.Event()

    @app.task
    async def slow(n: int) -> int:
        going.set()
        await go_on.wait()
        return n

    async with running_worker(app):
        first = await app.enqueue("slow", 1, unique_key="k", debounce="10ms")
        await asyncio.wait_for(going.wait(), 20)
        second = await app.enqueue("slow", 2, unique_key="k", debounce="10ms")
        go_on.set()
        assert second.id != first.id
        assert [(await app.wait(job, timeout=20)).result for job in (first, second)] == [1, 2]


@pytest.mark.parametrize("own", [False, True])
async def test_a_debounced_job_has_the_deadline_of_its_last_call(app: App, database: Database, own: bool) -> None:
    deadline = "SELECT deadline FROM tidemill.job WHERE unique_key = 'k'"
    async with database.transaction() as connection:
        conn = connection if own else None
        await app.enqueue("send", "a", unique_key="k", debounce="1h", deadline="2h", conn=conn)
        for later in (datetime(2050, 1, 1, tzinfo=UTC), datetime(2040, 1, 1, tzinfo=UTC)):
            await app.enqueue("send", "b", unique_key="k", debounce="1h", deadline=later, conn=conn)
            assert await connection.fetchval(database.sql(deadline)) == later
        await app.enqueue("send", "c", unique_key="k", debounce="1h", conn=conn)
        assert await connection.fetchval(database.sql(deadline)) is None


async def test_callers_at_the_same_time_share_one_debounced_job(app: App, database: Database) -> None:
    jobs = await asyncio.gather(*(app.enqueue("send", str(n), unique_key="k", debounce="1h") for n in range(20)))
    assert len({job.id for job in jobs}) == 1
    assert sum(job.created for job in jobs) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"debounce": "1s"}, "needs a unique_key"),
        ({"debounce": "1s", "unique_key": "k", "delay": "1s"}, "is itself a delay"),
        ({"debounce": "1s", "unique_key": "k", "unique_for": "1s"}, "is itself a delay"),
    ],
)
async def test_a_wrong_debounce_is_refused(app: App, options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        await app.enqueue("send", **options)  # pyright: ignore[reportArgumentType]


# Unique


async def test_many_jobs_have_a_unique_key_each(app: App, database: Database) -> None:
    taken = await app.enqueue("send", "b", unique_key="to-b")
    names = [{"to": name} for name in ("a", "b", "c", "a")]
    jobs = await app.enqueue_many("send", names, unique_key="to-{to}", unique_for="1h")
    assert [job.created for job in jobs] == [True, False, True, False]
    assert jobs[1].id == taken.id
    assert jobs[3].id == jobs[0].id
    keys = await value(database, "SELECT array_agg(unique_key ORDER BY unique_key) FROM tidemill.job")
    assert keys == ["to-a", "to-b", "to-c"]


async def test_a_second_job_with_a_taken_key_is_not_stored_and_names_the_holder(app: App, database: Database) -> None:
    first = await app.enqueue("send", unique_key="order 7")
    second = await app.enqueue("send", "again", unique_key="order 7")
    assert (first.created, second.created, second.id) == (True, False, first.id)
    assert await value(database, "SELECT count(*) FROM tidemill.job") == 1


async def test_a_key_belongs_to_its_task(app: App) -> None:
    assert (await app.enqueue("send", unique_key="k")).created
    assert (await app.enqueue("other", unique_key="k")).created


async def test_a_key_is_free_again_when_its_job_has_finished(app: App, database: Database) -> None:
    async with running_worker(app):
        first = await app.enqueue("send", unique_key="k")
        await finished(database, first.id)
        second = await app.enqueue("send", unique_key="k")
    assert second.created
    assert second.id != first.id


async def test_a_key_is_free_again_when_its_job_was_cancelled(app: App, database: Database) -> None:
    first = await app.enqueue("send", unique_key="k")
    await cancel_jobs(database, [first.id], by="ann")
    assert (await app.enqueue("send", unique_key="k")).created


async def test_a_window_holds_the_key_after_the_job_has_finished(app: App, database: Database) -> None:
    async with running_worker(app):
        first = await app.enqueue("send", unique_key="k", unique_for="1h")
        await finished(database, first.id)
        second = await app.enqueue("send", unique_key="k", unique_for="1h")
        assert (second.created, second.id) == (False, first.id)
        await database.fetch("UPDATE tidemill.unique_window SET until = now() - interval '1 second'")
        third = await app.enqueue("send", unique_key="k", unique_for="1h")
        assert third.created


async def test_a_window_of_one_key_leaves_other_keys_alone(app: App) -> None:
    assert (await app.enqueue("send", unique_key="a", unique_for="1h")).created
    assert (await app.enqueue("send", unique_key="b", unique_for="1h")).created
    assert (await app.enqueue("other", unique_key="a", unique_for="1h")).created


async def test_concurrent_enqueues_with_one_key_store_one_job(app: App, database: Database) -> None:
    refs = await asyncio.gather(*(app.enqueue("send", unique_key="k") for _ in range(50)))
    assert sum(ref.created for ref in refs) == 1
    assert len({ref.id for ref in refs}) == 1
    assert await value(database, "SELECT count(*) FROM tidemill.job") == 1


# Concurrency


class Room:
    """How many are inside at once, and how many were at most."""

    def __init__(self) -> None:
        self.inside = self.most = 0

    async def visit(self) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        await asyncio.sleep(0.01)
        self.inside -= 1


async def test_jobs_that_share_a_key_run_as_many_at_a_time_as_allowed(app: App, database: Database) -> None:
    room = Room()

    @app.task(queue="keyed", concurrency_key="account", max_concurrency=3)
    async def bill() -> None:
        await room.visit()

    await asyncio.gather(*(app.enqueue(bill) for _ in range(30)))
    async with running_worker(app, ["keyed"], max_concurrency=10), running_worker(app, ["keyed"], max_concurrency=10):
        await eventually(lambda: value(database, "SELECT count(*) = 30 FROM tidemill.job_history"))
    assert room.most == 3


async def test_a_key_is_per_value_of_the_arguments_it_names(app: App, database: Database) -> None:
    open_gate = asyncio.Event()
    inside: list[int] = []

    @app.task(queue="keyed", concurrency_key="user:{user}")
    async def bill(user: int) -> None:
        inside.append(user)
        await open_gate.wait()

    refs = [await app.enqueue(bill, user) for user in (1, 1, 2, 3)]
    async with running_worker(app, ["keyed"]):
        await eventually(lambda: sorted(inside) == [1, 2, 3])
        waiting = await find_live(database, refs[1].id)
        assert waiting is not None
        assert (waiting["state"], waiting["note"]) == ("throttled", "waits for a slot of concurrency key user:1")
        open_gate.set()
        await finished(database, refs[1].id)
    assert sorted(inside) == [1, 1, 2, 3]


async def test_a_failed_job_frees_its_slot(app: App, database: Database) -> None:
    @app.task(queue="keyed", concurrency_key="k")
    async def fail() -> None:
        raise ValueError

    refs = [await app.enqueue(fail) for _ in range(3)]
    async with running_worker(app, ["keyed"]):
        for ref in refs:
            assert (await finished(database, ref.id))["state"] == "failed"


async def test_a_cancelled_waiting_job_frees_its_slot(app: App, database: Database) -> None:
    first = await app.enqueue("send", concurrency_key="k")
    second = await app.enqueue("send", concurrency_key="k")
    await cancel_jobs(database, [first.id], by="ann")
    row = await find_live(database, second.id)
    assert row is not None
    assert row["state"] == "ready"


async def test_a_keyed_job_that_is_retried_waits_for_a_slot_again(app: App, database: Database) -> None:
    attempts: list[int] = []

    @app.task(queue="keyed", concurrency_key="k", retry=app.retry(2, backoff=0.01))
    async def flaky(n: int) -> None:
        attempts.append(n)
        if attempts.count(n) == 1:
            raise ValueError

    refs = [await app.enqueue(flaky, n) for n in range(3)]
    async with running_worker(app, ["keyed"]), running_maintenance(app):
        for ref in refs:
            assert (await finished(database, ref.id))["state"] == "succeeded"


async def test_a_delayed_keyed_job_runs_when_it_is_due(app: App, database: Database) -> None:
    async with running_worker(app), running_maintenance(app):
        ref = await app.enqueue("send", concurrency_key="k", delay=0.3)
        row = await finished(database, ref.id)
    assert row["started_at"] >= row["due_at"]


async def test_a_finished_keyed_job_can_be_retried_long_after_its_key_was_last_used(app: App, database) -> None:
    @app.task(queue="keyed", concurrency_key="k")
    async def bill() -> None: ...

    async with running_worker(app, ["keyed"]), running_maintenance(app):
        first = await app.enqueue(bill)
        await finished(database, first.id)
        await forget_leftovers(database)
        (again,) = (await retry_jobs(database, [first.id], by="ann")).asked
        assert (await finished(database, again))["state"] == "succeeded"


async def test_a_callers_open_transaction_holds_up_nobody_but_the_jobs_of_its_key(
    app: App, database: Database, database_url: str
) -> None:
    release = asyncio.Event()

    @app.task(concurrency_key="k", max_concurrency=1)
    async def one() -> None:
        await release.wait()

    async with running_maintenance(app), running_worker(app):
        first = await app.enqueue(one)
        await running(database, first.id)
        own = await asyncpg.connect(database_url)
        async with own.transaction():
            second = await app.enqueue(one.call(), conn=own)
            release.set()
            await finished(database, first.id)
            third = await app.enqueue(one)
            await finished(database, (await app.enqueue("send")).id)
        await own.close()
        for ref in (second, third):
            await finished(database, ref.id)


async def test_keys_that_are_full_do_not_keep_others_from_their_turn(app: App, database: Database) -> None:
    """However many of them there are, and wherever in the alphabet."""
    await database.fetch(
        "INSERT INTO tidemill.job (queue, task, args, state, concurrency_key, max_concurrency) "
        "SELECT 'away', 'send', '{}', state, 'a' || n, 1 FROM generate_series(1, 1100) AS n, "
        "unnest(ARRAY['running', 'throttled']) AS state"
    )
    await database.fetch("INSERT INTO tidemill.concurrency_key SELECT 'a' || n, 1 FROM generate_series(1, 1100) AS n")
    last = await app.enqueue("send", concurrency_key="z")
    await database.fetch("UPDATE tidemill.job SET state = 'throttled' WHERE id = $1", last.id)
    await admit_due(database)
    assert await value(database, "SELECT state FROM tidemill.job WHERE id = $1", last.id) == "ready"
    assert await value(database, "SELECT count(*) FROM tidemill.job WHERE state = 'throttled'") == 1100
