"""The log of observed events by the week: made ahead of time, dropped when old, and correct without it."""

from __future__ import annotations

import pytest

from tests.support import value
from tests.support.watched import Pages, event, heat_monitor, watching
from tidemill.core.clock import VirtualClock
from tidemill.store.database import Database
from tidemill.store.monitors.events import WEEK, drop_old, make_partitions

NOW = 1_767_600_000.0


async def test_weeks_are_made_ahead_of_time_and_dropped_when_they_are_old(database: Database) -> None:
    source, clock = Pages(), VirtualClock(NOW)
    source.add(*(event(n, NOW - 100 + n) for n in range(50)))
    async with watching(database, heat_monitor(source, keep="7d"), clock) as watcher:
        await watcher.one_tick()
        assert await value(database, "SELECT count(*) FROM tidemill.monitor_event_default") == 0
        assert await value(database, "SELECT count(*) FROM tidemill.monitor_event") == 50
        assert await drop_old(database, NOW) == []
        later = NOW + 3 * WEEK
        await make_partitions(database, later)
        dropped = await drop_old(database, later)
    assert f"monitor_event_w{int(NOW // WEEK)}" in dropped
    assert await value(database, "SELECT count(*) FROM tidemill.monitor_event") == 0
    assert await value(database, "SELECT count(*) FROM tidemill.monitor_tick") == 0


async def test_events_of_any_week_are_stored_whether_it_was_made_or_not(database: Database) -> None:
    source, clock = Pages(), VirtualClock(NOW)
    source.overlap = source.overlap_most = 1e9
    await make_partitions(database, NOW)
    source.add(event("old", NOW - 10 * WEEK), event("now", NOW - 1))
    async with watching(database, heat_monitor(source, backfill="365d"), clock) as watcher:
        await watcher.one_tick()
        await watcher.one_tick()
    assert await value(database, "SELECT count(*) FROM tidemill.monitor_event") == 2
    assert await value(database, "SELECT count(*) FROM tidemill.monitor_event_default") == 1


@pytest.mark.parametrize("keep", ["7d", "365d"])
async def test_the_longest_wish_of_any_monitor_counts(database: Database, keep: str) -> None:
    async with watching(database, heat_monitor(Pages(), keep=keep), VirtualClock(NOW)):
        await make_partitions(database, NOW, back=5)
        dropped = await drop_old(database, NOW)
    assert bool(dropped) is (keep == "7d")
