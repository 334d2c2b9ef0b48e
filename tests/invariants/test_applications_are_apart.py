"""Two applications in one database, whose tasks, flows, dags, streams, pipelines and monitors have equal names.

Each does exactly its own work, and what is done to one is never done to the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest

from tests.support import eventually, running_scheduler, running_worker, value
from tests.support.durable import running_run_worker
from tests.support.operate import acting, cancel_jobs, create_token, list_audit, run_now, set_control, set_paused
from tests.support.operate_streams import ack_alerts, add_silence, control_stream, replay_dead
from tests.support.pipelines import put, tree, update
from tests.support.streams import all_read, publish, running_dispatcher
from tests.support.waiting import PATIENT
from tests.support.watched import Pages, event, heat_monitor, watching
from tidemill import App
from tidemill.core.clock import VirtualClock
from tidemill.core.errors import NotFoundError, TidemillError
from tidemill.core.retry import retry
from tidemill.dags import Dag, node
from tidemill.flows import Workflow, step
from tidemill.flows.definition.events import StartEvent, StopEvent
from tidemill.pipelines import Pipeline
from tidemill.sources import LogSource
from tidemill.store.access.tokens import find_token
from tidemill.store.jobs.pages import JobFilter, match_jobs
from tidemill.store.jobs.queues import list_queues
from tidemill.store.jobs.schedules.schedules import declare_schedules, list_schedules
from tidemill.store.jobs.workers import QueueLimit, list_workers, read_control, set_limit, set_weight
from tidemill.store.migrate import migrate
from tidemill.store.monitors.alerts import list_alerts
from tidemill.store.streams import streams as stream_store
from tidemill.store.streams.dead_letters import DeadFilter, list_dead
from tidemill.streams import Plan, Stream, task

NAMES = ("north", "south")


class Side:
    """One of the two applications, with what its work has done."""

    def __init__(self, name: str, url: str) -> None:
        self.app = App(name, database_url=url, grace_seconds=5, **PATIENT)
        self.database = self.app.database(label=f"test {name}")
        self.done: list[Any] = []
        self.gate = asyncio.Event()
        declare(self)

    @property
    def name(self) -> str:
        return self.app.name


def declare(side: Side) -> None:
    """What both applications declare under the same names."""
    app = side.app

    @app.task(name="report")
    async def report(n: int = 0) -> str:
        side.done.append(n)
        return f"{side.name} {n}"

    @app.task(name="hold", concurrency_key="one at a time")
    async def hold() -> str:
        side.done.append("hold")
        await side.gate.wait()
        return side.name

    app.schedule("nightly", report.call(n=3), cron="0 3 * * *")

    @app.workflow(name="Letter")
    class Letter(Workflow):
        @step
        async def write(self, ev: StartEvent) -> StopEvent:
            side.done.append(ev.topic)
            if ev.topic == "war":
                await side.gate.wait()
            return StopEvent(result=f"{side.name} writes {ev.topic}")

    app.dag(Dag("pair", [node("one", "report", args={"n": 1}), node("two", "report", args={"n": 2})]))


@pytest.fixture
async def sides(empty_database_url: str) -> AsyncIterator[tuple[Side, Side]]:
    """Both applications, migrated and open."""
    async with AsyncExitStack() as stack:
        made = (Side(NAMES[0], empty_database_url), Side(NAMES[1], empty_database_url))
        for side in made:
            await stack.enter_async_context(side.database)
            await migrate(side.database)
        for side in made:
            await stack.enter_async_context(side.app)
        yield made


@pytest.fixture
def north(sides: tuple[Side, Side]) -> Side:
    return sides[0]


@pytest.fixture
def south(sides: tuple[Side, Side]) -> Side:
    return sides[1]


# -- jobs -----------------------------------------------------------------------------------------


async def test_each_runs_its_own_jobs_and_no_others(north: Side, south: Side) -> None:
    mine = await north.app.enqueue_many("report", [{"n": n} for n in range(50)])
    theirs = [await south.app.enqueue("report", n=n) for n in range(100, 130)]
    async with running_worker(north.app):
        assert [(await north.app.wait(job)).result for job in mine] == [f"north {n}" for n in range(50)]
        assert south.done == []
        assert await value(south.database, "SELECT count(*) FROM tidemill.job WHERE state = 'ready'") == 30
        async with running_worker(south.app):
            assert [(await south.app.wait(job.id)).result for job in theirs] == [f"south {n}" for n in range(100, 130)]
            assert [len(await list_workers(side.database)) for side in (north, south)] == [1, 1]
    assert (sorted(north.done), sorted(south.done)) == (list(range(50)), list(range(100, 130)))


async def test_each_runs_whole_beside_the_other(north: Side, south: Side) -> None:
    async with north.app.running(), south.app.running():
        for side in (north, south):
            assert (await side.app.wait(await side.app.enqueue("report", n=7))).result == f"{side.name} 7"
            assert await (await side.app.start("Letter", topic="peace")).result() == f"{side.name} writes peace"
    for side in (north, south):
        partitions = "SELECT count(*) FROM pg_tables WHERE schemaname = $1 AND tablename LIKE 'job_history_2%'"
        assert await value(side.database, partitions, side.database.schema) > 0
        assert sorted(map(str, side.done)) == ["7", "peace"]


async def test_jobs_on_a_callers_own_connection_go_to_the_callers_application(
    north: Side, south: Side, empty_database_url: str
) -> None:
    fresh = {side.name: Side(side.name, empty_database_url) for side in (north, south)}
    connection = await asyncpg.connect(empty_database_url)
    try:
        for name in NAMES:
            await fresh[name].app.enqueue("report", n=1, conn=connection)
    finally:
        await connection.close()
    with psycopg.connect(empty_database_url) as plain:
        for name in NAMES:
            fresh[name].app.enqueue_sync("report", n=2, unique_key="k", conn=plain)
    for side in (north, south):
        assert await value(side.database, "SELECT array_agg(args ->> 'n' ORDER BY id) FROM tidemill.job") == ["1", "2"]


async def test_a_unique_key_is_free_for_the_other(north: Side, south: Side) -> None:
    for side in (north, south):
        assert (await side.app.enqueue("report", unique_key="k", unique_for="1h")).created
        assert not (await side.app.enqueue("report", unique_key="k", unique_for="1h")).created


async def test_a_concurrency_key_holds_up_only_its_own(north: Side, south: Side) -> None:
    async with running_worker(north.app), running_worker(south.app):
        first = [await side.app.enqueue("hold") for side in (north, south)]
        await eventually(lambda: north.done == south.done == ["hold"])
        second = [await side.app.enqueue("hold") for side in (north, south)]
        north.gate.set()
        assert [(await north.app.wait(job)).result for job in (first[0], second[0])] == ["north", "north"]
        assert south.done == ["hold"], "north's slot is none of south's"
        south.gate.set()
        assert [(await south.app.wait(job)).result for job in (first[1], second[1])] == ["south", "south"]


async def test_a_limit_and_a_pause_of_a_queue_are_those_of_one_application(north: Side, south: Side) -> None:
    await acting(north.database, "ann", set_limit, QueueLimit.of("default", "1/h", 1))
    await set_control(north.database, "*", "default", "pause", by="ann")
    assert await read_control(south.database, "h", ["default"]) == {}
    await set_control(north.database, "*", "default", "run", by="ann")
    jobs = {side.name: await side.app.enqueue_many("report", [{"n": n} for n in range(5)]) for side in (north, south)}
    async with running_worker(north.app), running_worker(south.app):
        for job in jobs["south"]:
            assert (await south.app.wait(job)).state == "succeeded"
    assert len(north.done) <= 1, "the second token comes in an hour"
    rates = [{row["name"]: row["rate"] for row in await list_queues(side.database)} for side in (north, south)]
    assert [each.get("default") for each in rates] == [pytest.approx(1 / 3600), None]


async def test_rates_weights_and_batches_are_those_of_one_application(north: Side, south: Side) -> None:
    told: dict[str, list[int]] = {}
    for side in (north, south):

        @side.app.task(name="call", rate_key="{account}", rate="1/h", fair_key="{account}")
        async def call(account: str) -> None: ...

        side.app.dag(Dag("rated", [node("one", "report")]), rate="1/h")
    await acting(north.database, "ann", set_weight, "default", "acme", 7)
    async with north.app.running(), south.app.running():
        for side in (north, south):
            calls = side.app.declarations.tasks["call"]
            jobs = await side.app.enqueue_many([calls.call(account="acme"), calls.call(account="acme")])
            assert (await side.app.wait(jobs[0])).state == "succeeded", "the other has used up its own rate"
            runs = [await side.app.start("rated", rate_key="acme") for _ in range(2)]
            await runs[0].result(timeout=60)
            assert await value(side.database, f"SELECT start_at IS NOT NULL FROM tidemill.run WHERE id = {runs[1].id}")
            reports = side.app.declarations.tasks["report"]
            batch = await side.app.batch([reports.call(n=n) for n in range(1 if side is north else 2)], name="same")
            told[side.name] = [(await batch.wait(timeout=60)).total]
    assert told == {"north": [1], "south": [2]}
    weights = "SELECT count(*) FROM tidemill.fair_weight"
    assert [await value(side.database, weights) for side in (north, south)] == [1, 0]


async def test_what_matches_a_filter_is_cancelled_in_one_application(north: Side, south: Side) -> None:
    for side in (north, south):
        await side.app.enqueue_many("report", [{"n": n} for n in range(4)])

    async def matching(side: Side) -> list[int]:
        return await match_jobs(side.database, JobFilter(task="report"), live=("ready",), ended=(), limit=100)

    await cancel_jobs(north.database, await matching(north), by="ann")
    assert (len(await matching(north)), len(await matching(south))) == (0, 4)
    only_south = (await south.app.enqueue("report")).id
    with pytest.raises(NotFoundError):
        await north.app.jobs.cancel(only_south)
    with pytest.raises(NotFoundError):
        await north.app.jobs.get(only_south)


async def test_schedules_of_one_name_are_two_schedules(north: Side, south: Side) -> None:
    async def paused() -> list[Any]:
        listed = [await list_schedules(side.database) for side in (north, south)]
        return [[(row["name"], row["paused"]) for row in rows] for rows in listed]

    async with running_scheduler(north.app), running_scheduler(south.app):
        await set_paused(north.database, "nightly", True, by="ann")
        assert await paused() == [[("nightly", True)], [("nightly", False)]]
        await set_paused(south.database, "nightly", True, by="ann")
        await set_paused(north.database, "nightly", False, by="ann")
        assert await paused() == [[("nightly", False)], [("nightly", True)]]
        job = await run_now(south.database, "nightly", by="ann")
    async with running_worker(north.app), running_worker(south.app):
        assert (await south.app.wait(job.id)).result == "south 3"
    assert north.done == []


async def test_a_due_schedule_fires_in_its_own_application(north: Side, south: Side) -> None:
    due = "UPDATE tidemill.schedule SET decided = decided - 172800, next_fire = now()"
    fired = "SELECT fired FROM tidemill.schedule WHERE name = 'nightly'"
    async with running_scheduler(north.app), running_scheduler(south.app):
        await north.database.fetch(due)
        await set_paused(south.database, "nightly", True, by="ann")  # Its scheduler looks again, and finds nothing due.
        await north.database.fetch("SELECT pg_notify($1, '')", north.database.channel("schedules"))
        await eventually(lambda: value(north.database, fired))
    counts = [await value(side.database, "SELECT count(*) FROM tidemill.job") for side in (north, south)]
    assert ([await value(side.database, fired) for side in (north, south)], counts) == ([1, 0], [1, 0])


async def test_a_schedule_that_one_no_longer_declares_stays_in_the_other(north: Side, south: Side) -> None:
    async with running_scheduler(north.app), running_scheduler(south.app):
        await declare_schedules(north.database, [])
        assert [len(await list_schedules(side.database)) for side in (north, south)] == [0, 1]


# -- runs -----------------------------------------------------------------------------------------


async def test_flows_and_dags_of_one_name_run_where_they_were_started(north: Side, south: Side) -> None:
    async with running_run_worker(south.app), running_worker(south.app):
        waiting = await north.app.start("Letter", topic="tides", unique_key="k")
        done = await south.app.start("Letter", topic="mills", unique_key="k")
        assert await done.result() == "south writes mills"
        assert await (await south.app.start("pair")).result() is not None
        assert sorted(south.done[1:]) == [1, 2]
        assert await waiting.state() == "running"
        async with running_run_worker(north.app):
            assert await waiting.result() == "north writes tides"
    assert (north.done, south.done[0]) == (["tides"], "mills")
    counts = [await value(side.database, "SELECT count(*) FROM tidemill.run") for side in (north, south)]
    assert counts == [1, 2]


async def test_a_run_is_cancelled_in_its_own_application(north: Side, south: Side) -> None:
    runs = [await side.app.start("Letter", topic="war") for side in (north, south)]
    assert runs[0].id == runs[1].id, "the same number, and two runs"
    async with running_run_worker(north.app), running_run_worker(south.app):
        await eventually(lambda: north.done == south.done == ["war"])
        await runs[0].cancel()
        south.gate.set()
        assert await runs[1].result() == "south writes war"
        with pytest.raises(TidemillError):
            await runs[0].result()


# -- streams --------------------------------------------------------------------------------------


def stream_of(side: Side) -> Stream:
    """A stream that gives up odd numbers, the same in both applications."""

    class Noting(Plan, eligibility="note"):
        @task
        async def note(self, ctx: Any) -> Any:
            if ctx.value % 2:
                raise ValueError(f"{side.name} does not like {ctx.value}")
            side.done.append(ctx.value)
            return ctx.value

    source = LogSource("posts", eligibilities=frozenset({"note"}))
    return Stream("s", plans=[Noting], sources=[source], engines=0, retry=retry(1))


async def test_streams_of_one_name_read_their_own_log_and_bury_their_own_dead(north: Side, south: Side) -> None:
    await publish(north.database, "posts", [2, 3])
    await publish(south.database, "posts", [4, 5, 7])
    async with running_dispatcher(stream_of(north), north.database):
        await all_read(north.database, "posts")
        assert (north.done, south.done) == ([2], [])
        await control_stream(north.database, "s", mode="drain", by="ann")
        async with running_dispatcher(stream_of(south), south.database):
            await all_read(south.database, "posts")
            assert [len(await stream_store.read_status(side.database)) for side in (north, south)] == [1, 1]
        assert (north.done, south.done) == ([2], [4])
    dead = DeadFilter(stream="s")
    buried = [await list_dead(side.database, dead) for side in (north, south)]
    assert [[row["error"] for row in rows] for rows in buried] == [
        ["Noting: ValueError: north does not like 3 (its only attempt failed)"],
        [f"Noting: ValueError: south does not like {n} (its only attempt failed)" for n in (7, 5)],
    ]
    assert await replay_dead(south.database, dead) == 2
    assert len(await list_dead(north.database, dead)) == 1


# -- pipelines ------------------------------------------------------------------------------------


def pipeline_of(side: Side, root: Path) -> Pipeline:
    pipeline = Pipeline("copies", root=root)

    @pipeline.stage(input="in/{id}.txt", output="out/{id}.txt", in_process=True)
    def copy(entity: Any, text: str) -> str:
        if text == "bad":
            raise ValueError("bad text")
        return f"{side.name} {text}"

    return pipeline


async def test_pipelines_of_one_name_keep_states_and_failures_of_their_own(
    north: Side, south: Side, tmp_path: Path
) -> None:
    put(tmp_path, {"north/in/a.txt": "apple", "north/in/b.txt": "bad", "south/in/a.txt": "pear"})
    for side in (north, south):
        await update(side.database, pipeline_of(side, tmp_path / side.name))
    assert {name: text for name, text in tree(tmp_path).items() if "/out/" in name} == {
        "north/out/a.txt": "north apple",
        "south/out/a.txt": "south pear",
    }
    failures = "SELECT count(*) FROM tidemill.state_failure"
    assert [await value(side.database, failures) for side in (north, south)] == [1, 0]


# -- monitors -------------------------------------------------------------------------------------


async def test_monitors_of_one_name_follow_and_tell_their_own(north: Side, south: Side) -> None:
    clock = VirtualClock(1000.0)
    for side, entity in ((north, "a"), (south, "b")):
        source = Pages()
        source.add(event(1, 990.0, who=entity, heat=95.0))
        async with watching(side.database, heat_monitor(source), clock) as watcher:
            for _ in range(3):
                await watcher.one_tick()
                clock.advance(30.0)
    alerts = [await list_alerts(side.database) for side in (north, south)]
    assert [{row["entity"] for row in rows} for rows in alerts] == [{"a"}, {"b"}]
    await add_silence(north.database, "heat", {"entity": "b"}, starts_at=900.0, ends_at=9e9, by="ann")
    await ack_alerts(north.database, [row["id"] for row in alerts[0]], by="ann", at=1100.0)
    assert await value(south.database, "SELECT count(*) FROM tidemill.silence") == 0
    assert await value(south.database, "SELECT count(*) FROM tidemill.alert WHERE acked_at IS NOT NULL") == 0


# -- what they share ------------------------------------------------------------------------------


async def test_a_token_opens_both_and_the_audit_trail_knows_whose_an_entry_is(north: Side, south: Side) -> None:
    secret, _ = await create_token(north.database, "laptop", "viewer", by="eve")
    assert [(await find_token(side.database, secret)) is not None for side in (north, south)] == [True, True]
    await set_control(north.database, "*", "default", "pause", by="ann")
    await set_control(south.database, "*", "default", "pause", by="bob")
    trails = [await list_audit(side.database) for side in (north, south)]
    assert [[(row["application"], row["who"]) for row in rows] for rows in trails] == [
        [("north", "ann"), ("north", "eve")],
        [("south", "bob")],
    ]


async def test_live_pages_of_both_are_told_what_concerns_both(north: Side, south: Side) -> None:
    for side in (north, south):
        await side.database.fetch("SELECT tidemill.follow_changes(60)")
    await north.database.fetch("INSERT INTO installation.host (name, sampler) VALUES ('mill', 'x')")
    await north.app.enqueue("report")
    noted = "SELECT coalesce(array_agg(DISTINCT what), '{}') FROM tidemill.change"
    assert sorted(await value(north.database, noted)) == ["hosts", "queue"]
    assert await value(south.database, noted) == ["hosts"]
