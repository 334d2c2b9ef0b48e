"""Jobs that share a rate key start at most at its rate, over all workers together."""

from __future__ import annotations

import math
import random
import time

import pytest

from tests.support import eventually, operate, puppet, running_worker, value, worker_process
from tests.support.task_app import RATE_OF_CALLS, declare
from tidemill import App
from tidemill.core.encoding.json_rows import readable
from tidemill.core.errors import ConfigError
from tidemill.engine.explain import explain_job
from tidemill.store.database import Database
from tidemill.store.jobs.claims.fair_claims import FairClaims
from tidemill.store.jobs.read import describe_job
from tidemill.store.jobs.workers import QueueLimit, set_key_limit

DONE = "SELECT count(*) FROM tidemill.job_history"
STARTS = "SELECT rate_key, extract(epoch FROM started_at)::float8 AS at FROM tidemill.job_history ORDER BY started_at"


async def test_two_worker_processes_together_keep_the_rate_of_each_key(
    app: App, database_url: str, executions: Database
) -> None:
    declare(app)
    rate, burst = RATE_OF_CALLS
    async with worker_process(database_url, ["calls"]), worker_process(database_url, ["calls"]):
        await app.enqueue_many("call_account", ({"account": f"a{n % 2}"} for n in range(60)))

        async def both_have_worked() -> bool:
            await app.enqueue_many("call_account", ({"account": f"a{n % 2}"} for n in range(4)))
            return await value(executions, f"{DONE} HAVING count(*) >= 60 AND count(DISTINCT worker_id) = 2")

        await eventually(both_have_worked)
    rows = await executions.fetch(STARTS)
    for account in ("a0", "a1"):
        starts = [row["at"] for row in rows if row["rate_key"] == f"account {account}"]
        assert len(starts) > 20
        for first in range(len(starts)):
            for last in range(first, len(starts)):
                # A claim's time is noted before it waits for the bucket, which allows for one more burst.
                assert last - first + 1 <= rate * (starts[last] - starts[first]) + 2 * burst


PASS = "UPDATE tidemill.rate_key SET filled_at = filled_at - make_interval(secs => $1)"


@pytest.mark.parametrize("seed", range(4))
async def test_what_may_start_is_what_a_token_bucket_gives(app: App, database: Database, seed: int) -> None:
    """Quarters of an hour pass between claims; rates are per hour, so that the time of the test itself is nothing."""
    chance = random.Random(seed)
    per_hour, burst = chance.choice([0.5, 1.0, 4.0, 20.0]), chance.choice([1.0, 2.0, 3.5, 10.0])
    app.task(name="call", queue="calls", rate_key="k", rate=per_hour / 3600, burst=burst)(_nothing)
    await app.enqueue_many("call", ({} for _ in range(200)))
    tokens = burst
    async with puppet(database, "calls") as first, puppet(database, "calls") as second:
        workers = [FairClaims(each.claims, {}) for each in (first, second)]
        for each in workers:
            await each.look_for_queues(["calls"], time.monotonic())
        for _ in range(20):
            hours, room, claims = chance.randint(0, 12) / 4, chance.randint(1, 9), chance.choice(workers)
            await database.fetch(PASS, hours * 3600)
            claims.weigh({})  # It forgets until when it wanted to wait.
            tokens = min(burst, tokens + hours * per_hour)
            started = 0
            while started < room and claims.has_work:
                started += len((await claims.turn([], "calls", room - started, [], time.monotonic())).jobs)
            assert started == min(room, math.floor(tokens + 0.001)), (per_hour, burst)
            tokens -= started


async def _nothing() -> None: ...


async def test_a_key_that_is_used_up_holds_up_no_other_key_and_no_other_job(app: App, database: Database) -> None:
    @app.task(rate_key="{account}", rate="1/h")
    async def call(account: str) -> None: ...

    @app.task
    async def other() -> None: ...

    await app.enqueue_many(call.call(account="busy") for _ in range(50))
    await app.enqueue_many(call.call(account=f"quiet {n}") for n in range(30))
    await app.enqueue_many(other.call() for _ in range(30))
    async with running_worker(app, max_concurrency=2):
        await eventually(lambda: value(database, "SELECT count(*) = 61 FROM tidemill.job_history"))
    assert await value(database, "SELECT count(*) FROM tidemill.job WHERE rate_key = 'busy'") == 49


async def test_an_empty_key_has_its_rate_too(app: App, database: Database) -> None:
    @app.task(rate_key="{account}", rate="1/h")
    async def call(account: str) -> None: ...

    await app.enqueue_many(call.call(account=account) for account in ["", "", "", "a", "b"])
    async with running_worker(app, max_concurrency=2):
        await eventually(lambda: value(database, "SELECT count(DISTINCT rate_key) = 3 FROM tidemill.job_history"))
    assert await value(database, DONE) == 3


async def test_tenants_take_turns_within_a_rate(app: App, database: Database) -> None:
    order: list[str] = []

    @app.task(fair_key="{tenant}", rate_key="stripe", rate=400.0, burst=1)
    async def call(tenant: str) -> None:
        order.append(tenant)

    for tenant in "abc":
        await app.enqueue_many(call.call(tenant=tenant) for _ in range(20))
    async with running_worker(app, max_concurrency=4):
        await eventually(lambda: len(order) == 60)
    assert min(order[:30].count(tenant) for tenant in "abc") >= 5


async def test_a_rate_without_a_key_is_for_all_jobs_of_the_task(app: App, database: Database) -> None:
    @app.task(rate="1/h", burst=3)
    async def call(n: int) -> None: ...

    jobs = await app.enqueue_many(call.call(n) for n in range(10))
    async with running_worker(app):
        await eventually(lambda: value(database, "SELECT count(*) = 3 FROM tidemill.job_history"))
        why = explain_job(readable(await describe_job(database, jobs[-1].id)))
    limit = "Waits for its rate. Jobs with rate key task call start no more than one job every 1h; the next one can"
    assert any(each.startswith(limit) for each in why), why


async def test_a_rate_that_an_operator_changes_holds_at_once(app: App, database: Database) -> None:
    app.queue("calls", key_rate="1/h", key_burst=1)

    @app.task(queue="calls")
    async def call() -> None: ...

    await app.enqueue_many([call.call() for _ in range(20)], rate_key="stripe")
    async with running_worker(app, ["calls"]):
        await eventually(lambda: value(database, "SELECT count(*) = 1 FROM tidemill.job_history"))
        await operate.acting(database, "ann", set_key_limit, QueueLimit.of("calls", key_rate="1000/s"))
        await eventually(lambda: value(database, "SELECT count(*) = 20 FROM tidemill.job_history"))


async def test_a_retry_takes_another_start_of_the_rate_and_a_repeated_job_keeps_its_key(
    app: App, database: Database
) -> None:
    runs: list[int] = []

    @app.task(rate_key="k", rate="1/h", burst=2, retry=app.retry(max_attempts=2, schedule=[0]))
    async def call(n: int) -> None:
        runs.append(n)
        raise RuntimeError("once more")

    first = await app.enqueue(call.call(1))
    async with running_worker(app):
        await eventually(lambda: value(database, "SELECT count(*) = 1 FROM tidemill.job_history"))
        await operate.retry_jobs(database, [first.id], by="ann")
        keys = "SELECT (rate_key, key_rate * 3600, key_burst)::text FROM tidemill.job"
        assert await value(database, keys) == "(k,1,2)"
    assert runs == [1, 1]


def test_a_rate_key_that_cannot_be_stored_is_refused(app: App) -> None:
    @app.task(fair_key="{tenant}", rate_key="{tenant}")
    async def call(tenant: str) -> None: ...

    for tenant in ("a\x1fb", "x" * 1000):
        with pytest.raises(ConfigError, match="fair_key and rate_key"):
            call.new_job(call.signature.bind((tenant,), {}))
    with pytest.raises(ConfigError, match="add rate="):
        app.task(name="other", burst=3)(_nothing)
