"""A durable run survives: whatever its owner and place, its result is that of a run that nothing happened to."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support import (
    durable as flows,
    eventually,
    lapse,
    locked_out,
    run_worker_process,
    running_maintenance,
    value,
)
from tests.support.durable import (
    TURN,
    Adding,
    Chain,
    Fragile,
    Go,
    Stubborn,
    Tour,
    completed_once,
    deeds,
    open_gates,
    ticks_of,
)
from tests.support.waiting import time_to_connect
from tidemill import App
from tidemill.engine.containment.exit_status import EXIT_FENCED
from tidemill.flows.definition.events import StartEvent
from tidemill.flows.encoding.events import encode_event
from tidemill.flows.runner.run_handle import RunHandle
from tidemill.store.database import Database
from tidemill.store.runs.runs import start_run

#: What an undisturbed run does; and it does something aside, whenever that comes.
UNDISTURBED = ["begin", "work", "ask", "effect", "finish", "finish"]


@pytest.fixture
async def app(app: App, database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch) -> App:
    monkeypatch.setenv("TIDEMILL_DATABASE_URL", database_url)
    for each in (Tour, Chain, flows.Ask, Stubborn, Fragile, flows.Answer, Adding):
        app.workflow(each, timeout=None)
    await flows.make_tables(database)
    return app


async def test_a_step_whose_process_is_killed_behind_any_await_ends_as_if_nothing_had_been(
    app: App, database: Database, database_url: str
) -> None:
    points = ("get", "set", "once", "wait", "edit", "sleep", "compensate", "child", "gather", "transaction", "state")
    runs: dict[str, RunHandle] = {}
    for point in points:
        async with run_worker_process(database_url) as victim:
            run = runs[point] = await app.start(Fragile, tag=point)
            await run.send_event(Go(word="early"))
            assert await victim.ends() == -9
            await lapse(database, victim.pid)
    async with running_maintenance(app), run_worker_process(database_url):
        for point, run in runs.items():
            assert await run.result(timeout=120) == [0, 11, "early", ["a", "b"]], point
            did = [what for what, _ in await deeds(database, point)]
            assert did.count("transaction") == 1, f"{point}: it is committed with the end of the step"
            assert did.count("effect") == 1 or point in ("get", "set"), f"{point}: a committed effect is not repeated"
            assert did.count("enter") >= 2, point


async def test_a_run_survives_the_death_of_its_owner_in_every_phase(
    app: App, database: Database, database_url: str
) -> None:
    async with running_maintenance(app):
        async with run_worker_process(database_url) as first:
            asleep = await app.start(Tour, tag="asleep")
            await open_gates(database, "asleep work")
            await eventually(lambda: has_note(database, asleep, "asked"))
            await eventually(lambda: owner_of(database, asleep, None))
            first.terminate()
            assert await first.ends() == 0
        # From here on a waiting step stays in memory: a step is run again only because its owner has died.
        async with run_worker_process(database_url, idle=600) as victim:
            tags = ("calm", "at work", "committing", "waiting", "retrying", "over")
            runs = {tag: await app.start(Tour, tag=tag) for tag in tags}
            await eventually(lambda: all_did(database, runs, "work"))
            await open_gates(database, "calm work", "waiting work", "retrying work", "over work")
            for tag in ("calm", "over", "retrying"):
                await answer(database, runs[tag], tag)
            assert await runs["calm"].result(timeout=120) == ["calm", 1, 1]
            calm = [what for what, _ in await deeds(database, "calm")]
            calm.remove("aside")
            assert calm == UNDISTURBED
            assert await runs["over"].result(timeout=120) == ["over", 1, 1]
            await eventually(lambda: has_note(database, runs["waiting"], "asked"))
            unborn = await stored_for(database, victim.worker_id, "unborn")
            async with database.transaction() as held:
                await held.execute("SELECT FROM tidemill.run WHERE id = $1 FOR UPDATE", runs["committing"].id)
                late = await app.start(Tour, tag="late")
                await eventually(lambda: did(database, "late", "work"))
                await open_gates(database, "late work")
                await answer(database, late, "late")
                await eventually(lambda: is_to_retry(database, late))
                await open_gates(database, "committing work")
                await eventually(lambda: locked_out(database, TURN))
                victim.kill()
                await lapse(database, victim.pid)
        over = await ticks_of(database, runs["over"].id)
        runs |= {"asleep": asleep, "unborn": unborn, "late": late}
        async with run_worker_process(database_url, idle=600) as heir:
            await eventually(lambda: all_did(database, runs, "work"))
            await open_gates(database, "at work work", "unborn work")
            for tag in runs.keys() - {"calm", "over", "retrying", "late"}:
                await answer(database, runs[tag], tag)
            for tag, run in runs.items():
                assert await run.result(timeout=120) == [tag, 1, 1], tag
    for tag, run in runs.items():
        assert await completed_once(database, run.id) == 5, tag
        done = await deeds(database, tag)
        assert [what for what, _ in done].count("effect") == 1, (tag, done)
        assert {what for what, _ in done} == {*UNDISTURBED, "aside"}
        for pid in (victim.pid, heir.pid):
            by_one = [what for what, each in done if each == pid and what != "finish"]
            assert len(by_one) == len(set(by_one)), f"{tag}: one owner ran a step twice: {done}"
    assert await ticks_of(database, runs["over"].id) == over
    assert await value(database, "SELECT count(*) FROM tidemill.inbox") == 0


async def test_values_that_several_steps_change_are_right_when_their_process_is_killed(
    app: App, database: Database, database_url: str
) -> None:
    runs: dict[str, RunHandle] = {}

    async def has_added(count: int) -> bool:
        for tag, run in runs.items():
            done = [what for what, _ in await deeds(database, tag) if what.startswith("added")]
            if len(done) < count or await completed_once(database, run.id) < 4:  # The first step, and the even ones.
                return False
        return True

    async with running_maintenance(app):
        for killed in range(2):
            async with run_worker_process(database_url) as victim:
                if not killed:
                    runs |= {tag: await app.start(Adding, tag=tag) for tag in "abcd"}
                await eventually(lambda killed=killed: has_added(6 + 3 * killed))
                victim.kill()
                await lapse(database, victim.pid)
        await open_gates(database, *(f"{tag} odd" for tag in runs))
        async with run_worker_process(database_url):
            numbers = [1, 2, 3, 4, 5, 6]
            for tag, run in runs.items():
                assert await run.result(timeout=120) == [21, numbers, numbers, numbers], tag


async def test_an_owner_that_wakes_after_its_lease_is_fenced_and_changes_nothing(
    app: App, database: Database, database_url: str
) -> None:
    async with running_maintenance(app), run_worker_process(database_url) as stale:
        run = await app.start(Tour, tag="t")
        await eventually(lambda: did(database, "t", "work"))
        stale.freeze()
        await lapse(database, stale.pid)
        async with run_worker_process(database_url) as heir:
            await eventually(lambda: owner_of(database, run, heir.worker_id))
            await open_gates(database, "t work")
            await answer(database, run, "w")
            assert await run.result(timeout=120) == ["w", 1, 1]
            journal = await ticks_of(database, run.id)

            stale.thaw()

            assert await stale.ends() == EXIT_FENCED
            assert "its work has gone to others" in stale.said
            assert heir.exit_status is None
    assert await ticks_of(database, run.id) == journal
    assert await completed_once(database, run.id) == 5


async def test_a_stopped_run_worker_lets_go_at_once_even_of_a_step_that_will_not_end(
    app: App, database: Database, database_url: str
) -> None:
    """Without maintenance: nobody has to wait for a lease to lapse."""
    async with run_worker_process(database_url) as first, run_worker_process(database_url) as second:
        runs = [await app.start(Stubborn, tag="s"), await app.start(Tour, tag="t")]
        await eventually(lambda: all_did(database, {"s": 1, "t": 1}, ""))
        owners = {await value(database, "SELECT owner FROM tidemill.run WHERE id = $1", run.id) for run in runs}
        leaver, heir = (first, second) if first.worker_id in owners else (second, first)
        leaver.terminate()
        assert await leaver.ends() == 0
        for run in runs:
            await eventually(lambda run=run: owner_of(database, run, heir.worker_id))
        await open_gates(database, "s", "t work")
        await answer(database, runs[1], "w")
        assert await runs[0].result(timeout=120) == "s"
        assert await runs[1].result(timeout=120) == ["w", 1, 1]
    for run in runs:
        await completed_once(database, run.id)


async def test_a_lost_connection_stops_nothing_and_doubles_nothing(
    app: App, database: Database, database_url: str
) -> None:
    """Backends are killed under load: before, during and after their commits."""
    runs: list[RunHandle] = []
    results: list[int] = []
    async with flows.running_run_worker(app):
        killed: list[Any] = []
        killing = asyncio.create_task(kill_backends(database, killed))
        while len(runs) < 300 or len(killed) < 6:
            batch = [await app.start(Chain, unique_key=str(len(runs) + number)) for number in range(100)]
            results += await asyncio.gather(*(run.result(timeout=120) for run in batch))
            runs += batch
            if killing.done():
                killing.result()
        killing.cancel()
        await asyncio.gather(killing, return_exceptions=True)
    assert results == [45] * len(runs)
    for run in runs:
        assert await completed_once(database, run.id) == 11
    doubled = (
        "SELECT count(*) FROM tidemill.published WHERE data::text LIKE '%Count%' GROUP BY run_id HAVING count(*) <> 10"
    )
    assert await database.fetch(doubled) == []
    assert await value(database, "SELECT count(*) FROM tidemill.run") == len(runs)


async def test_a_claim_or_start_whose_answer_was_lost_is_found_again(app: App, database: Database) -> None:
    async with flows.running_run_worker(app) as run_worker:
        run = await stored_for(database, run_worker.worker_id, "x", workflow="Chain")
        assert await run.result(timeout=120) == 45


async def answer(database: Database, run: RunHandle, word: str) -> None:
    """Give a run what it waits for, once it does."""
    await eventually(lambda: has_note(database, run, "asked"))
    await run.send_event(Go(word=word))


# -- looking --------------------------------------------------------------------------------------


async def kill_backends(database: Database, killed: list[Any]) -> None:
    """End the run worker's connections again and again, up to sixty."""
    pause = 0.03 + 6 * await time_to_connect(database.dsn)
    while len(killed) < 60:
        killed += await database.fetch(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'test run worker'"
            f" AND datname = current_database() AND query LIKE '{TURN}'"
        )
        await asyncio.sleep(pause)


async def stored_for(database: Database, owner: int, tag: str, workflow: str = "Tour") -> RunHandle:
    """A run that an owner has stored and not yet begun."""
    event = encode_event(StartEvent(tag=tag))
    number, _ = await start_run(database, workflow=workflow, version="", input=event, owner=owner)
    return RunHandle(database, number)


async def did(database: Database, tag: str, what: str) -> bool:
    return what in [each for each, _ in await deeds(database, tag)]


async def all_did(database: Database, tags: Any, what: str) -> bool:
    rows = await database.fetch("SELECT DISTINCT tag FROM deed WHERE $1 IN (what, '')", what)
    return {row["tag"] for row in rows} >= set(tags)


async def has_note(database: Database, run: RunHandle, kind: str) -> bool:
    return any((tick.get("note") or {}).get("kind") == kind for tick in await ticks_of(database, run.id))


async def owner_of(database: Database, run: RunHandle, owner: int | None) -> bool:
    return await value(database, "SELECT owner IS NOT DISTINCT FROM $2 FROM tidemill.run WHERE id = $1", run.id, owner)


async def is_to_retry(database: Database, run: RunHandle) -> bool:
    """Whether its last step has failed once; it is tried again after a moment."""
    failed = [tick for tick in await ticks_of(database, run.id) if tick["kind"] == "completed" and "error" in tick]
    return len(failed) == 1
