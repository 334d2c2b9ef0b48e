"""However many schedulers run, and however they end, every fire of a schedule enqueues its job exactly once."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import Any

import asyncpg

from tests.support import eventually, running_scheduler, scheduler_process, value
from tidemill import App
from tidemill.engine.roles.scheduler import Scheduler, _plan
from tidemill.store.database import Database
from tidemill.store.jobs.schedules.schedules import declare_schedules, fire_due

EVERY = 0.2
FIRES = 8


async def fires(database: Database, schedule: str = "tick") -> list[float]:
    """The moments that jobs were enqueued for, in order."""
    rows = await database.fetch("SELECT origin FROM tidemill.job ORDER BY id")
    origins = [json.loads(row["origin"]) for row in rows]
    return sorted(origin["fire"] for origin in origins if origin.get("schedule") == schedule)


async def assert_each_fire_once(database: Database) -> None:
    """No moment twice, none left out, and the schedule's own count agrees."""
    async with database.transaction() as connection:
        # Nobody fires while we look.
        row = await connection.fetchrow("SELECT * FROM tidemill.schedule WHERE name = 'tick' FOR UPDATE")
        seen = await fires(database)
    assert row is not None
    steps = [round((later - earlier) / EVERY, 3) for earlier, later in pairwise(seen)]
    assert steps == [1.0] * (len(seen) - 1), f"the fires are {seen}"
    assert (row["fired"], row["missed"]) == (len(seen), 0)


def declare(app: App, every: float = EVERY) -> None:
    @app.task(every=every, catchup="all")
    async def tick() -> None: ...


async def test_three_schedulers_fire_each_moment_once(app: App, database: Database) -> None:
    declare(app)
    async with running_scheduler(app), running_scheduler(app), running_scheduler(app):
        await eventually(lambda: enough(database, FIRES))
        await assert_each_fire_once(database)


async def test_of_schedulers_that_see_a_due_schedule_together_one_fires(app: App, database: Database) -> None:
    declare(app, every=3600.0)  # nothing more comes due meanwhile
    databases = [app.database() for _ in range(3)]
    schedulers = [Scheduler(each, app.declarations.stored_schedules()) for each in databases]
    async with AsyncExitStack() as stack:
        for each in databases:
            await stack.enter_async_context(each)
        await declare_schedules(database, app.declarations.stored_schedules(), 0.0)
        for round_number in range(20):
            await database.fetch(
                "UPDATE tidemill.schedule SET decided = $1::float8, next_fire = to_timestamp($1::float8 + 3600), "
                "catchup = 'one'",
                float(round_number),
            )
            fired = await asyncio.gather(
                *(fire_due(each, _plan, one._place) for each, one in zip(databases, schedulers, strict=True))
            )
            assert sum(len(one.jobs) for each in fired for one in each) == 1


async def test_a_scheduler_that_dies_before_its_commit_leaves_the_fire_to_another(
    app: App, database_url: str, database: Database
) -> None:
    """It holds the schedule and has enqueued the job when its connection ends: as if it had never been."""
    declare(app)
    await declare_schedules(database, app.declarations.stored_schedules(), 0.0)
    await database.fetch("UPDATE tidemill.schedule SET catchup = 'one'")
    doomed = await asyncpg.connect(database_url)
    transaction = doomed.transaction()
    await transaction.start()
    await doomed.execute("SELECT FROM tidemill.schedule FOR UPDATE")
    await doomed.execute(
        "INSERT INTO tidemill.job (queue, task, args, origin) "
        """VALUES ('default', 'tick', '{}', '{"by": "scheduler", "schedule": "tick", "fire": 1}')"""
    )
    place: Any = Scheduler(database, None)._place
    assert await fire_due(database, _plan, place) == []
    doomed.terminate()
    fired = await eventually(lambda: fire_due(database, _plan, place))
    assert len(fired[0].jobs) == 1
    assert await value(database, "SELECT count(*) FROM tidemill.job") == 1


async def test_killing_schedulers_neither_loses_nor_doubles_a_fire(database_url: str, database: Database) -> None:
    async with AsyncExitStack() as stack:
        processes = await asyncio.gather(
            *(stack.enter_async_context(scheduler_process(database_url)) for _ in range(3))
        )
        for victim in processes[:2]:
            target = len(await fires(database)) + 4
            await eventually(lambda target=target: enough(database, target))
            victim.kill()
        target = len(await fires(database)) + 4
        await eventually(lambda: enough(database, target))
        await assert_each_fire_once(database)


async def test_a_scheduler_that_starts_again_goes_on_where_the_last_one_ended(app: App, database: Database) -> None:
    declare(app)
    for count in (2, 4, 6):
        async with running_scheduler(app):
            await eventually(lambda count=count: enough(database, count))
        await assert_each_fire_once(database)


async def enough(database: Database, count: int) -> bool:
    return len(await fires(database)) >= count
