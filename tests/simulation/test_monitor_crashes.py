"""Random lessons with random deaths: whatever dies when, what is written is what would have been written anyway.

Time is virtual and a death is an exception out of any point of a tick, in the middle of a transaction among others. A
failing seed is printed by its test's name and can be run alone.
"""

from __future__ import annotations

import json
import random
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.support import value
from tests.support.operate_streams import ack_alerts
from tests.support.server import TestServer
from tests.support.watched import Pages, Parts, event, everything, heat_monitor, triggers, watching
from tidemill.core.clock import VirtualClock
from tidemill.core.errors import LeaseLostError
from tidemill.engine.containment.crash_record import CrashRecord
from tidemill.monitors.runner.backtest import as_identity, identity, replay
from tidemill.monitors.runner.callbacks import Callbacks
from tidemill.monitors.runner.ingest import Ingest
from tidemill.sources import SourceError
from tidemill.store.database import Database, DatabaseSettings
from tidemill.store.monitors.alerts import list_alerts

SEEDS = range(4)
ROUNDS = 20


class Death(BaseException):
    """The process ends here."""


class World:
    """What happens outside, round by round, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.rounds: list[tuple[float, list[Any]]] = []
        now, number = 10_000.0, 0
        for _ in range(ROUNDS):
            now += draw.choice([1.0, 5.0, 30.0, 200.0, 400.0])
            events = []
            for _ in range(draw.choice([0, 1, 3, 20, 60])):
                number += 1
                late = draw.choice([0.0] * 8 + [30.0, 250.0])
                at = round(now - late - draw.random() * 5, 3)
                events.append(event(number, at, draw.choice("abcdef"), heat=draw.randrange(100)))
            self.rounds.append((now, events))
        self.acks = draw.sample(range(ROUNDS), 6)
        self.failing = draw.sample(range(ROUNDS), 3)


async def live_through(database: Database, seed: int, deaths: random.Random | None) -> int:
    """All rounds; with `deaths`, the process dies at random points and another takes over. How often that was."""
    world, clock, source = World(seed), VirtualClock(10_000.0), Pages(page=7)
    source.overlap, source.overlap_most = 600.0, 600.0
    died = 0

    def reached(stage: str) -> None:
        if deaths is not None and deaths.random() < 0.03:
            raise Death(stage)

    position = 0
    while position < len(world.rounds):
        try:
            watch = heat_monitor(source, triggers=some_triggers())
            async with watching(database, watch, clock, reached=reached) as watcher:
                while position < len(world.rounds):
                    now, events = world.rounds[position]
                    if clock.now() < now:
                        clock.advance(now - clock.now())
                        source.add(*events)
                        source.failures = [SourceError("down")] if position in world.failing else []
                    await watcher.one_tick()
                    while source.failures or await _behind(database, clock.now()):
                        await watcher.one_tick()
                    if position in world.acks:
                        some = [row["id"] for row in await list_alerts(database, current=True, linger=0.0)]
                        await ack_alerts(database, sorted(some)[:2], by="ann", at=clock.now())
                    position += 1
        except Death:
            died += 1
    return died


def some_triggers() -> list[Any]:
    return triggers(hold="10s", clear="20s", realert="5m")


async def _behind(database: Database, now: float) -> bool:
    row = await database.fetchrow(
        "SELECT count(*) AS n FROM tidemill.monitor_entity WHERE head > folded OR due_at <= $1", now
    )
    return row is not None and bool(row["n"])


@pytest.mark.parametrize("seed", SEEDS)
async def test_deaths_change_nothing_and_a_replay_gives_the_same_again(
    seed: int, database: Database, server: TestServer
) -> None:
    url = server.create()
    async with Database(DatabaseSettings(url=url)) as calm:
        assert await live_through(calm, seed, None) == 0
        expected = await everything(calm)
    server.drop(url)
    assert await live_through(database, seed, random.Random(f"deaths {seed}")) > 0
    assert await everything(database) == expected
    stored = [dict(row) for row in await list_alerts(database, limit=100_000)]
    assert stored
    report = await replay(database, heat_monitor(Pages(), triggers=some_triggers()), -1e12, 1e12)
    assert identity(report) == as_identity(stored)


@pytest.mark.parametrize("seed", SEEDS)
async def test_parts_that_change_hands_lose_and_repeat_nothing_and_call_nobody_absent(
    seed: int, database: Database
) -> None:
    """Two drivers share three parts and tick by turns; either may die at any point. All entities send events."""
    draw, clock, source = random.Random(seed), VirtualClock(10_000.0), Parts(3)
    watch = heat_monitor(source)
    number = died = 0

    def reached(stage: str) -> None:
        if draw.random() < 0.02:
            raise Death(stage)

    async with AsyncExitStack() as living:
        stacks = [await living.enter_async_context(AsyncExitStack()) for _ in range(2)]
        drivers: list[Any] = [None, None]
        for _ in range(80):
            clock.advance(100.0)
            for who in "abcdef":
                number += 1
                source.held[draw.randrange(3)].append(event(number, clock.now(), who, heat=draw.randrange(100)))
            for turn in draw.choice([[0], [1], [0, 1], [1, 0]]):
                try:
                    if drivers[turn] is None:
                        new = watching(database, watch, clock, reached=reached)
                        drivers[turn] = await stacks[turn].enter_async_context(new)
                    await drivers[turn].one_tick()
                except Death:
                    died, drivers[turn] = died + 1, None
                    await stacks[turn].aclose()
        for stack in stacks:
            await stack.aclose()
        async with watching(database, watch, clock) as last:
            await last.one_tick()
            await last.one_tick()
    assert died
    counted = "SELECT sum((state ->> 'count')::int) FROM tidemill.monitor_entity"
    assert await value(database, counted) == number
    assert await value(database, "SELECT events FROM tidemill.monitor") == number
    assert await value(database, "SELECT duplicates FROM tidemill.monitor") == 0
    assert await value(database, "SELECT count(*) FROM tidemill.alert WHERE trigger = 'silent'") == 0
    peaks = sum(json.loads(each.payload)["heat"] > 90 for part in source.held for each in part)
    assert await value(database, "SELECT count(*) FROM tidemill.alert WHERE trigger = 'peak'") == peaks


async def test_a_driver_that_has_lost_a_part_stores_nothing_of_it(database: Database) -> None:
    source = Parts(1)
    source.held[0].append(event(1, 999.0))
    watch = heat_monitor(source)
    async with watching(database, watch):
        read_pages = Ingest(database, watch, source, Callbacks(watch.name, CrashRecord()), lambda stage: None)
        with pytest.raises(LeaseLostError, match="another process has taken over"):
            await read_pages.read_partitions(source, owner=0, shares=[0], now=1000.0)
    assert await value(database, "SELECT count(*) FROM tidemill.monitor_event") == 0
