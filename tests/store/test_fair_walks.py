"""Claims of many short lanes walk on through the index: every job once, long lanes by turns, urgent ones first."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support import value
from tests.support.puppet import ending, puppet
from tidemill import App
from tidemill.core.jobs.job import ClaimedJob
from tidemill.store.database import Database
from tidemill.store.jobs.claims.claims import Claims
from tidemill.store.jobs.claims.fair_claims import PAGE, WALKING_CLAIMS, FairClaims

ROOM, LONG = 200, 400
QUANTUM = 10  # ROOM / SPREAD
READY = "SELECT count(*) FROM tidemill.job WHERE state = 'ready' AND due_at <= now()"


class WatchedClaims(Claims):
    """Claims that count their statements."""

    used: Counter[str]

    async def fetch(self, statement: str, *params: Any) -> list[Any]:
        self.used[statement] += 1
        return await super().fetch(statement, *params)


@pytest.fixture
def app(app: App) -> App:
    @app.task(fair_key="{tenant}")
    async def work(tenant: str) -> None: ...

    return app


async def tenants(app: App, keys: Sequence[str], **options: Any) -> None:
    await app.enqueue_many("work", ({"tenant": key} for key in keys), **options)


async def drained(database: Database, workers: int, seed: int) -> tuple[list[ClaimedJob], Counter[str]]:
    """The jobs in the order in which workers with turns at random claim them, and the statements used."""
    chance, order, used = random.Random(seed), list[ClaimedJob](), Counter[str]()
    async with puppet(database) as first, puppet(database) as second:
        each = []
        for one in (first, second)[:workers]:
            claims = WatchedClaims(database, one.claims.connection, one.worker_id, ["default"])
            claims.used = used
            each.append((FairClaims(claims, {}), list[ClaimedJob]()))
            await each[-1][0].look_for_queues(["default"], time.monotonic())
        while await value(database, READY):
            for _ in range(30):
                fair, held = chance.choice(each)
                if "default" in fair:
                    turn = await fair.turn([ending(job) for job in held], "default", ROOM, [], time.monotonic())
                    held[:] = turn.jobs
                    order += turn.jobs
    return order, used


@pytest.mark.parametrize("workers", [1, 2])
async def test_short_lanes_are_claimed_without_being_searched_for(app: App, database: Database, workers: int) -> None:
    keys = [f"tenant {n % (6 * PAGE)}" for n in range(12 * PAGE)]
    await tenants(app, keys)
    order, used = await drained(database, workers, seed=workers)
    assert Counter(job.args.decode() for job in order) == Counter(f'{{"tenant":"{key}"}}' for key in keys)
    assert sum(used[statement] for statement in WALKING_CLAIMS) > len(keys) / ROOM / 4


@pytest.mark.parametrize(("workers", "seed"), [(1, 0), (1, 1), (2, 2), (2, 3)])
async def test_long_lanes_among_many_short_ones_take_turns(
    app: App, database: Database, workers: int, seed: int
) -> None:
    chance = random.Random(seed)
    short = [f"tenant {n}" for n in range(3 * PAGE) for _ in range(chance.randint(1, 3))]
    long = [f"tenant {n} is long" for n in chance.sample(range(3 * PAGE), 3) for _ in range(LONG)]
    keys = short + long
    chance.shuffle(keys)
    await tenants(app, keys)
    await tenants(app, [f"later {n}" for n in range(PAGE)], delay="1h")
    order, used = await drained(database, workers, seed)
    started = [job.args.decode() for job in order]
    assert Counter(started) == Counter(f'{{"tenant":"{key}"}}' for key in keys)
    assert sum(used[statement] for statement in WALKING_CLAIMS)
    # A long lane has no more than a few turns before every short one has had its own.
    last = max(started.index(f'{{"tenant":"{key}"}}') for key in set(short))
    before = Counter(tenant for tenant in started[:last] if "long" in tenant)
    assert max(before.values()) <= 3 * QUANTUM * workers, before


async def test_a_walk_takes_nothing_before_more_urgent_lanes(app: App, database: Database) -> None:
    await tenants(app, [f"t{n}" for n in range(2 * PAGE)], priority=3)
    await tenants(app, [f"t{n}" for n in range(2 * PAGE)], priority=7)
    order, used = await drained(database, 1, 0)
    assert [job.priority for job in order] == [7] * 2 * PAGE + [3] * 2 * PAGE
    assert sum(used[statement] for statement in WALKING_CLAIMS)


async def test_a_walk_passes_lanes_that_are_not_due_or_wait_for_their_rate(app: App, database: Database) -> None:
    @app.task(name="call", fair_key="{tenant}", rate_key="{tenant}", rate="1/h")
    async def call(tenant: str) -> None: ...

    await tenants(app, [f"t{n}" for n in range(2 * PAGE)])
    await app.enqueue_many("call", ({"tenant": f"t{n % PAGE} calls"} for n in range(2 * PAGE)))
    await tenants(app, [f"t{n} later" for n in range(2 * PAGE)], delay="1h")
    async with puppet(database) as one:
        fair, got = FairClaims(one.claims, {}), Counter[str]()
        await fair.look_for_queues(["default"], time.monotonic())
        while sum(got.values()) < 3 * PAGE:
            turn = await fair.turn([], "default", ROOM, [], time.monotonic())
            got.update(job.args.decode() for job in turn.jobs)
    assert set(got.values()) == {1}
