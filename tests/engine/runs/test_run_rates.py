"""Runs that share a rate key begin at most at its rate, over all run workers, and say that they wait for it."""

from __future__ import annotations

import asyncio
import math
import random
from typing import Any

import pytest

from tests.support import eventually, value
from tidemill import App
from tidemill.core.errors import ConfigError, PayloadError
from tidemill.dags import Dag, node
from tidemill.flows import StartEvent, StopEvent, Workflow, step
from tidemill.ops.jobs.schedules import ScheduleRef, run_schedule
from tidemill.ops.runs.runs import RunRef, StartRun, get_run, start_run
from tidemill.ops.runs.start import StartWork, start_work
from tidemill.store.database import Database
from tidemill.store.jobs.declared import declare
from tidemill.store.runs.rates import begin_rated

BEGUN = "SELECT count(*) FROM tidemill.run WHERE start_at IS NULL"
PASS = "UPDATE tidemill.rate_key SET filled_at = filled_at - make_interval(secs => $1)"


class Order(StartEvent):
    tenant: str = "none"


class Report(Workflow):
    @step
    async def only(self, ev: Order) -> StopEvent:
        return StopEvent(result=ev.tenant)


@pytest.fixture
def shop(app: App) -> App:
    @app.task
    async def send(n: int = 0) -> None: ...

    app.workflow(Report, rate_key="{tenant}", rate="1/h", burst=2)
    app.dag(Dag("order", [node("first", "send")]), rate="1/h")
    return app


async def why(app: App, run: Any) -> str:
    return (await app.do(get_run, RunRef(id=run.id))).why[0]


async def test_a_key_that_is_used_up_holds_up_its_own_runs_only(shop: App, database: Database) -> None:
    busy = [await shop.start(Report, tenant="busy") for _ in range(6)]
    quiet = [await shop.start(Report, tenant=f"quiet {n}") for n in range(5)]
    async with shop.running():
        assert [await run.result(timeout=20) for run in quiet] == [f"quiet {n}" for n in range(5)]
        assert [await run.result(timeout=20) for run in busy[:2]] == ["busy"] * 2
        said = await why(shop, busy[4])
    assert said.startswith("It waits for its rate. Runs with rate key busy begin no more than one run every 1h; 2 runs")
    assert "it can begin in 2h 59m" in said or "it can begin in 3h" in said
    assert await value(database, "SELECT count(*) FROM tidemill.run WHERE start_at IS NOT NULL AND NOT awake") == 4


async def test_all_runs_of_a_dag_with_a_rate_share_it(shop: App, database: Database) -> None:
    first, second = await shop.start("order"), await shop.start("order")
    async with shop.running():
        await first.result(timeout=20)
        said = await why(shop, second)
    assert said.startswith("It waits for its rate. Runs with rate key dag order begin no more than one run every 1h; ")


async def test_a_run_says_that_no_run_worker_is_there(shop: App) -> None:
    said = await why(shop, await shop.start(Report))
    assert said.startswith("It waits for a run worker: start one with `tidemill up app.py`")


async def test_the_most_urgent_run_of_a_key_begins_first(shop: App, database: Database) -> None:
    await shop.start(Report)
    idle, urgent = await shop.start(Report, priority=1), await shop.start(Report, priority=9)
    later = await shop.start(Report, priority=9, delay="1h")
    await begin_rated(database)
    rows = await database.fetch("SELECT id FROM tidemill.run WHERE start_at IS NOT NULL ORDER BY id")
    assert [row["id"] for row in rows] == [idle.id, later.id]
    assert urgent.created


async def test_a_run_that_is_cancelled_or_expired_takes_no_start_of_the_rate(shop: App, database: Database) -> None:
    late = await shop.start(Report, deadline=0.001)
    cancelled = await shop.start(Report)
    await cancelled.cancel()
    others = [await shop.start(Report) for _ in range(3)]
    async with shop.running():
        assert [await run.result(timeout=20) for run in others[:2]] == ["none"] * 2
        assert (await shop.do(get_run, RunRef(id=cancelled.id))).state == "cancelled"
    assert await value(database, f"SELECT start_at IS NOT NULL FROM tidemill.run WHERE id = {others[2].id}")
    assert await value(database, f"SELECT seq = 0 FROM tidemill.run WHERE id = {late.id}")


@pytest.mark.parametrize("seed", range(4))
async def test_what_may_begin_is_what_a_token_bucket_gives(app: App, database: Database, seed: int) -> None:
    """Quarters of an hour pass between looks; rates are per hour, so that the time of the test itself is nothing."""
    chance = random.Random(seed)
    per_hour, burst = chance.choice([0.5, 1.0, 4.0, 20.0]), chance.choice([1.0, 2.0, 3.5, 10.0])
    app.workflow(Report, rate=per_hour / 3600, burst=burst)
    for _ in range(150):
        await app.start(Report)
    tokens, begun = burst, 0
    for _ in range(20):
        hours = chance.randint(0, 12) / 4
        await database.fetch(PASS, hours * 3600)
        tokens = min(burst, tokens + hours * per_hour)
        await asyncio.gather(*(begin_rated(database) for _ in range(3)))  # Several workers look at the same time.
        await begin_rated(database)
        now = await value(database, BEGUN)
        assert now - begun == min(150 - begun, math.floor(tokens + 0.001)), (per_hour, burst)
        tokens, begun = tokens - (now - begun), now


async def test_every_way_to_start_a_run_has_its_rate_key(shop: App, database: Database) -> None:
    await declare(database, shop.declarations.templates())
    await shop.start(Report, tenant="a")
    await shop.start(Report, Order(tenant="a"), rate_key="{tenant}-x")
    await asyncio.to_thread(shop.start_sync, Report, tenant="a")
    await shop.do(start_run, StartRun(workflow="Report", args={"tenant": "a"}))
    await shop.do(start_work, StartWork(name="Report", args={"tenant": "a"}, rate_key="x"))
    await database.fetch("""SELECT tidemill.start('Report', '{"tenant": "a"}')""")
    await database.fetch("SELECT tidemill.start('Report')")
    await database.fetch("SELECT tidemill.start('order', rate_key => 'x')")
    rows = await database.fetch(
        "SELECT rate_key, key_rate * 3600 AS rate, key_burst AS burst, awake FROM tidemill.run ORDER BY id"
    )
    assert [row["rate_key"] for row in rows] == ["a", "a-x", "a", "a", "x", "a", "none", "x"]
    assert {(row["rate"], row["burst"], row["awake"]) for row in rows[:-1]} == {(1.0, 2.0, False)}


async def test_a_repeated_dag_and_a_scheduled_run_have_the_rate_too(shop: App, database: Database) -> None:
    shop.schedule("nightly", Report, Order(tenant="a"), every="1h")
    async with shop.running():
        first = await shop.start("order", priority=7, tags=["x"])
        await first.result(timeout=20)
        again = await first.rerun(start="first")
        await eventually(lambda: value(database, "SELECT count(*) FROM tidemill.schedule"))
        await shop.do(run_schedule, ScheduleRef(name="nightly"))
    row = await database.fetchrow("SELECT rate_key, priority, tags FROM tidemill.run WHERE id = $1", again.id)
    assert row is not None
    assert tuple(row) == ("dag order", 7, ["x"])
    assert await value(database, "SELECT rate_key FROM tidemill.run WHERE workflow = 'Report'") == "a"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rate_key": "{tenant}"}, "workflow Report: rate_key= is of a rate: add rate=, such as rate='10/m'"),
        ({"burst": 2}, "burst= is of a rate"),
        ({"rate": "fast"}, "rate of workflow Report"),
        ({"rate": 1, "rate_key": "{tennant}"}, "there is no argument 'tennant'; did you mean 'tenant'"),
    ],
)
def test_a_wrong_rate_is_refused_where_it_is_declared(app: App, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        app.workflow(Report, **options)


async def test_a_wrong_key_is_answered_with_what_to_write(shop: App) -> None:
    shop.dag(Dag("plain", [node("first", "send")]))
    with pytest.raises(ConfigError, match=r"plain declares no rate; declare it with app.dag\(plain, rate='10/m'\)"):
        await shop.start("plain", rate_key="x")
    with pytest.raises(PayloadError, match=r"workflow Report: rate_key '\{n\}' does not fit: there is no argument 'n'"):
        await shop.start(Report, rate_key="{n}")
    with pytest.raises(ConfigError, match="no option 'fair_key', which jobs have: runs do not wait in queues"):
        await shop.start(Report, fair_key="a")
