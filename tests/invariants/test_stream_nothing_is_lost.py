"""Whatever dies, every message is worked on, none is acked before its work is done, and the poisonous end up dead."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal

import psutil
import pytest

from tests.support import eventually, value
from tests.support.stream_app import TABLES
from tests.support.streams import all_read, lives, publish, stream_process, worked_on
from tidemill.ops.streams.dead_letters import history_of
from tidemill.store.database import Database
from tidemill.store.streams.dead_letters import DeadFilter, list_dead

pytestmark = pytest.mark.long

MANY = 100
SECONDS = float(os.environ.get("TIDEMILL_CHAOS_SECONDS") or 10)


@pytest.fixture
async def tables(database: Database) -> Database:
    await database.run(lambda connection: connection.execute(TABLES))
    return database


async def all_at_work(tables: Database, engines: int) -> int:
    """Publish until that many engines have worked on something: nobody runs out before. How many were sent."""
    sent = 0

    async def are_at_work() -> bool:
        nonlocal sent
        await publish(tables, "posts", [{"number": sent + each, "seconds": 0.02} for each in range(25)])
        sent += 25
        return await value(tables, "SELECT count(DISTINCT pid) >= $1 FROM work", engines)

    await eventually(are_at_work, interval=0.1)
    return sent


async def test_nothing_is_dispatched_before_the_models_are_loaded(tables: Database, database_url: str) -> None:
    await publish(tables, "posts", [{"number": number} for number in range(50)])
    async with stream_process(database_url, stream_loads_for=0.5):
        await all_read(tables, "posts")
    early = await value(
        tables, "SELECT count(*) FROM work WHERE at < (SELECT min(at) FROM loaded WHERE loaded.pid = work.pid)"
    )
    assert early == 0
    assert await worked_on(tables) == list(range(50))


async def test_a_crashed_engines_messages_go_to_another(tables: Database, database_url: str) -> None:
    """Its slots are free again: otherwise the stream would stand still after a few crashes."""
    async with stream_process(database_url) as stream:
        for lap in range(3):
            first = lap * 100
            await publish(tables, "posts", [{"number": first + number, "seconds": 0.3} for number in range(100)])
            await eventually(lambda first=first: value(tables, "SELECT count(*) > $1 FROM work", first))
            await stream.kill_engine()
            await all_read(tables, "posts")
        assert stream.process.poll() is None, "the dispatcher survives any engine"
        assert "ENGINE DIED" in stream.said
    assert sorted(set(await worked_on(tables))) == list(range(300))


async def test_an_engine_that_falls_silent_is_killed_and_its_messages_go_to_another(
    tables: Database, database_url: str
) -> None:
    """Stopped as it is, it neither answers nor ends: nothing but its silence tells that it is wedged."""
    async with stream_process(database_url, stream_silence=3) as stream:
        sent = await all_at_work(tables, 2)
        wedged = stream.engines()[0]
        wedged.suspend()
        await publish(tables, "posts", [{"number": sent + number} for number in range(100)])
        await all_read(tables, "posts")
        await eventually(lambda: "ENGINE SILENT" in stream.said)
        await eventually(lambda: not lives(wedged))
        assert stream.process.poll() is None
    assert sorted(set(await worked_on(tables))) == list(range(sent + 100))


async def test_a_message_that_kills_engines_is_given_up_and_the_others_are_not(
    tables: Database, database_url: str
) -> None:
    await publish(tables, "posts", [{"number": number, "deadly": number == 20} for number in range(60)])
    async with stream_process(database_url):
        await all_read(tables, "posts")
    assert sorted(set(await worked_on(tables))) == [number for number in range(60) if number != 20]
    (dead,) = await list_dead(tables, DeadFilter())
    assert dead["why"] == "lost"
    assert "its engine died 3 times while running nothing but it; the last time: it failed (exit 13)" in dead["error"]
    deaths = history_of(dead)
    assert [each.error for each in deaths[-3:]] == ["its engine died: it failed (exit 13)"] * 3
    assert all(each.kind == "Lost" and "engine" in each.engine for each in deaths), "each death names its engine"


async def test_a_dead_dispatcher_is_started_again_and_loses_nothing(tables: Database, database_url: str) -> None:
    await publish(tables, "posts", [{"number": number, "seconds": 0.02} for number in range(600)])
    async with stream_process(database_url, supervised=True, stream_lease=2) as stream:
        for _ in range(2):
            engines = await eventually(lambda: both_of(stream.engines()))
            (dispatcher,) = set(stream.children()) - set(engines)  # Both are copies of the supervisor.
            dispatcher.kill()
            gone, alive = psutil.wait_procs(engines, 40)
            assert not alive, "engines end with their dispatcher"
            assert len(gone) == 2
        await all_read(tables, "posts")
    assert sorted(set(await worked_on(tables))) == list(range(600))


def both_of(engines: list[psutil.Process]) -> list[psutil.Process] | None:
    return engines if len(engines) == 2 else None


async def test_two_dispatchers_share_the_work_and_one_takes_over_from_the_other(
    tables: Database, database_url: str
) -> None:
    brief = {"stream_lease": 2}
    async with stream_process(database_url, **brief) as left, stream_process(database_url, **brief) as right:
        sent = await all_at_work(tables, 3)  # of two each: the other dispatcher's as well
        await publish(tables, "posts", [{"number": sent + each, "seconds": 0.02} for each in range(500)])
        left.process.kill()
        await all_read(tables, "posts")
        assert right.process.poll() is None
    assert sorted(set(await worked_on(tables))) == list(range(sent + 500))


async def test_a_terminated_stream_finishes_what_is_under_way_and_nothing_runs_twice(
    tables: Database, database_url: str
) -> None:
    await publish(tables, "posts", [{"number": number, "gate": "go"} for number in range(200)])
    async with stream_process(database_url, supervised=True) as stream:
        await eventually(lambda: value(tables, "SELECT count(*) > 1 FROM waiting"))
        os.killpg(stream.process.pid, signal.SIGTERM)
        await eventually(lambda: "draining" in stream.said)
        await tables.fetch("INSERT INTO gate VALUES ('go')")
        assert await stream.ends() == 0
        assert "drained" in stream.said
    done = await worked_on(tables)
    assert 0 < len(done) < 200, "what had begun, and no more"
    async with stream_process(database_url):
        await all_read(tables, "posts")
    assert await worked_on(tables) == list(range(200)), "each exactly once"


@pytest.mark.timeout(180 + 2 * SECONDS)
async def test_everything_is_worked_on_while_everything_is_killed(tables: Database, database_url: str) -> None:
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    loop = asyncio.get_running_loop()
    sent = kills = 0
    await publish(tables, "posts", [{"number": -1, "bad": True}])
    async with stream_process(database_url, supervised=True, stream_chaos=1, stream_lease=2) as stream:
        until = loop.time() + SECONDS
        while loop.time() < until or kills <= 3:
            await publish(tables, "posts", [{"number": sent + each, "seconds": 0.05} for each in range(MANY)])
            sent += MANY
            await asyncio.sleep(chance.uniform(0.1, 0.6))  # nothing is waited for: this is when the next one is killed
            victims = [*stream.engines(), *stream.engines(), *stream.children()]
            if victims:
                with contextlib.suppress(psutil.NoSuchProcess):
                    chance.choice(victims).kill()
                    kills += 1
            if chance.random() < 0.2:
                await tables.fetch(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
                    " AND pid <> pg_backend_pid() AND application_name LIKE 'tidemill stream%'"
                )
        await all_read(tables, "posts")
        assert await eventually(lambda: value(tables, "SELECT count(*) FROM tidemill.dead_letter")) == 1
    missing = set(range(sent)) - set(await worked_on(tables))
    assert not missing, f"seed {seed}: {len(missing)} of {sent} messages were lost, such as {sorted(missing)[:5]}"
