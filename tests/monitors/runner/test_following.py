"""A monitor on a real database, tick by tick on virtual time: what it reads and stores, and whom it follows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support import eventually, value
from tests.support.operate_streams import (
    add_to_roster,
    remove_from_roster,
    reset_monitor,
    set_paused,
)
from tests.support.watched import Heat, Pages, event, heat_monitor, open_triggers, triggers, watching
from tidemill.core.clock import VirtualClock
from tidemill.core.codec import decode
from tidemill.monitors import sustained
from tidemill.monitors.runner.evaluate import shard_of
from tidemill.monitors.runner.ingest import PAGES_A_TICK, EntityBackfill
from tidemill.sources import SourceError
from tidemill.store.database import Database
from tidemill.store.monitors.alerts import list_alerts
from tidemill.store.monitors.monitors import list_monitors, read_monitor
from tidemill.store.monitors.problems import list_problems
from tidemill.store.monitors.roster import list_roster, show_entity

# -- the cursor -----------------------------------------------------------------------------------


async def test_events_are_stored_once_however_often_they_are_given(database: Database) -> None:
    source, clock = Pages(), VirtualClock(1000.0)
    source.add(*(event(i, 990.0 + i) for i in range(5)))
    async with watching(database, heat_monitor(source), clock) as watcher:
        for _ in range(3):
            await watcher.one_tick()
            clock.advance(0.5)
        row = await read_monitor(database, "heat")
    assert (row["events"], row["cursor_at"], row["cursor_id"]) == (5, 994.0, "4")
    assert row["duplicates"] > 0
    assert source.asked[-1] == 994.0 - 2.0


@pytest.mark.parametrize("newest_first", [False, True])
async def test_equal_times_across_the_edge_of_a_page_are_all_stored(database: Database, newest_first: bool) -> None:
    source = Pages(page=3, newest_first=newest_first)
    source.add(*(event(i, 990.0) for i in range(11)))
    async with watching(database, heat_monitor(source)) as watcher:
        await watcher.one_tick()
        source.add(*(event(i, 990.0) for i in range(11, 14)))
        await watcher.one_tick()
        state = await show_entity(database, "heat", "a")
    assert (await read_monitor(database, "heat"))["events"] == 14
    assert b'"count":14' in state["state"]
    assert b'"12","13"]' in state["state"]  # by id, of equal times: 9 before 10


async def test_events_that_keep_coming_late_are_found_and_make_the_overlap_wider(database: Database) -> None:
    source, clock = Pages(), VirtualClock(1000.0)
    source.add(event(1, 999.0))
    async with watching(database, heat_monitor(source), clock) as watcher:
        await watcher.one_tick()
        for number in range(3):
            source.add(event(f"late{number}", 970.0 + number / 10, heat=60))  # far behind the two seconds of overlap
            clock.advance(61.0)  # now and then it looks further back
            await watcher.one_tick()
        row = await read_monitor(database, "heat")
        assert row["lateness"] == pytest.approx(28.8)
        await watcher.one_tick()
        assert source.asked[-1] == pytest.approx(999.0 - 28.8 * 1.5)
        source.add(event("late too", 972.0))
        await watcher.one_tick()
        assert (await read_monitor(database, "heat"))["events"] == 5
    async with watching(database, heat_monitor(source), clock) as another:
        another._ingest._probe_at = clock.now() + 1.0
        await another.one_tick()
        assert source.asked[-1] == pytest.approx(999.0 - 28.8 * 1.5)  # as the process before it knew
        for _ in range(22):
            clock.advance(61.0)
            source.add(event(clock.now(), clock.now()))
            await another.one_tick()
            await another.one_tick()
        assert source.asked[-1] == pytest.approx(clock.now() - 2.0)


async def test_one_straggler_is_found_and_changes_neither_the_overlap_nor_the_load_of_the_source(
    database: Database,
) -> None:
    source, clock = Pages(page=20), VirtualClock(10_000.0)
    source.add(*(event(number, 9400.0 + number) for number in range(600)))
    async with watching(database, heat_monitor(source), clock) as watcher:
        await watcher.one_tick()
        source.add(event("straggler", 9999.0 - 590.0, heat=60))
        clock.advance(61.0)
        await watcher.one_tick()
        assert (await read_monitor(database, "heat"))["events"] == 601
        for _ in range(3):
            clock.advance(1.0)
            await watcher.one_tick()
            assert source.asked[-1] == 9999.0 - 2.0
        clock.advance(61.0)
        await watcher.one_tick()
        (row,) = await list_monitors(database, "heat")
        status = decode(row["status"])
        assert (status["overlap"], status["overlap_least"], status["overlap_most"]) == (2.0, 2.0, 600.0)
        assert status["reading"]["read_again"] > 0


async def test_a_source_whose_clock_was_set_back_is_followed_all_the_same(database: Database) -> None:
    source, clock = Pages(), VirtualClock(1000.0)
    source.add(event(1, 999.0))
    async with watching(database, heat_monitor(source), clock) as watcher:
        await watcher.one_tick()
        for number in range(2, 6):
            clock.advance(61.0)
            source.add(event(number, 500.0 + number))
            await watcher.one_tick()
    assert (await read_monitor(database, "heat"))["events"] == 5


async def test_one_event_from_the_future_does_not_hide_those_of_now(database: Database) -> None:
    source, clock = Pages(), VirtualClock(1000.0)
    source.add(event("future", 9e8))
    async with watching(database, heat_monitor(source), clock) as watcher:
        await watcher.one_tick()
        source.add(event("now", 1000.5))
        clock.advance(1.0)
        await watcher.one_tick()
    assert (await read_monitor(database, "heat"))["events"] == 2


async def test_several_pages_of_a_tick_are_judged_once(database: Database) -> None:
    source = Pages(page=10)
    source.add(*(event(i, 900.0 + i, heat=60) for i in range(95)))
    async with watching(database, heat_monitor(source)) as watcher:
        await watcher.one_tick()
    assert (await read_monitor(database, "heat"))["tick"] == 1
    assert await value(database, "SELECT count(*) FROM tidemill.alert WHERE trigger = 'hot'") == 1


# -- sources that fail ----------------------------------------------------------------------------


async def test_failures_in_a_row_make_a_source_unhealthy_and_one_success_mends_it(database: Database) -> None:
    source = Pages()
    source.failures = [*(SourceError(f"answered 50{i}") for i in range(4)), ZeroDivisionError("answered 504")]
    async with watching(database, heat_monitor(source, failure_max=30)) as watcher:
        pauses = [await watcher.one_tick() for _ in range(5)]
        row = (await list_monitors(database, "heat"))[0]
        assert b'"health":"UNHEALTHY"' in row["status"]
        assert b"answered 504" in row["status"]
        assert pauses == sorted(pauses)
        assert pauses[4] > 10 * pauses[0]
        problems = await list_problems(database, "heat")
        assert [(p["place"], p["count"]) for p in problems] == [("source", 5)]
        source.add(event(1, 999.0))
        await watcher.one_tick()
        row = (await list_monitors(database, "heat"))[0]
    assert b'"health":"healthy"' in row["status"]
    assert row["events"] == 1


async def test_nobody_is_called_absent_because_the_source_is_down(database: Database) -> None:
    source, clock = Pages(), VirtualClock(1000.0)
    source.add(event(1, 999.0))
    async with watching(database, heat_monitor(source), clock) as watcher:
        await watcher.one_tick()
        source.failures = [SourceError("down")] * 10
        for _ in range(10):
            clock.advance(60.0)
            await watcher.one_tick()
        assert await open_triggers(database) == set()
        source.add(event(2, 1590.0))  # it was there all the time
        await watcher.one_tick()
        assert await open_triggers(database) == set()
        clock.advance(300.0)
        await watcher.one_tick()
        assert await open_triggers(database) == {("a", "silent")}


async def test_nobody_is_called_absent_while_there_is_more_to_read(database: Database) -> None:
    source, clock = Pages(page=1), VirtualClock(9000.0)
    source.add(*(event(i, 1000.0 + i * 100) for i in range(PAGES_A_TICK * 2)), event("b", 1050.0, "b"))
    async with watching(database, heat_monitor(source), clock) as watcher:
        await watcher.one_tick()
        row = await read_monitor(database, "heat")
        assert (row["events"], row["tick_at"]) == (PAGES_A_TICK, 4800.0)
        assert await open_triggers(database) == {("b", "silent")}  # it says nothing up to there
        source.add(event("b2", 8800.0, "b"))
        for _ in range(3):
            await watcher.one_tick()
        assert await open_triggers(database) == set()
        assert [each["entity"] for each in await list_alerts(database, "heat")] == ["b"]


async def test_quiet_makes_polls_rare_and_activity_makes_them_frequent_again(database: Database) -> None:
    source, clock = Pages(), VirtualClock(1000.0)
    async with watching(database, heat_monitor(source, idle=0.5, idle_max=5), clock) as watcher:
        pauses = []
        for _ in range(8):
            pauses.append(await watcher.one_tick())
            clock.advance(5.0)
        assert pauses[0] < pauses[3] < pauses[-1] == 5.0
        source.add(event(1, clock.now()))
        assert await watcher.one_tick() == 0.5


# -- the roster -----------------------------------------------------------------------------------


async def test_only_those_on_the_list_are_followed_and_the_others_counted(database: Database) -> None:
    source, clock = Pages(page=4), VirtualClock(1000.0)
    source.add(*(event(f"a{i}", 900.0 + i, "a") for i in range(6)), *(event(f"b{i}", 950.0 + i, "b") for i in range(3)))
    async with watching(database, heat_monitor(source, roster="listed", backfill_rate="1000/s"), clock) as watcher:
        await watcher.one_tick()
        row = await read_monitor(database, "heat")
        assert (row["events"], row["ignored"]) == (0, 9)
        added = await add_to_roster(database, "heat", ["a"], [shard_of("a")], backfill=EntityBackfill(0.0), by="me")
        assert added == ["a"]
        seen = []
        for _ in range(3):
            await watcher.one_tick()
            clock.advance(1.0)
            seen.append((await list_roster(database, "heat"))[0]["backfill"])
        assert b'"pages":1' in seen[0]  # its past comes page by page, and goes on where it stopped
        assert seen[-1] is None
        assert (await show_entity(database, "heat", "a"))["count"] == 6
        source.add(event("a7", 1001.0, "a"), event("b7", 1001.0, "b"))
        await watcher.one_tick()
        assert (await read_monitor(database, "heat"))["events"] == 7
        assert (
            await add_to_roster(database, "heat", ["a"], [shard_of("a")], backfill=EntityBackfill(0.0), by="me") == []
        )


async def test_a_backfill_during_live_traffic_loses_and_repeats_nothing(database: Database) -> None:
    source, clock = Pages(page=5), VirtualClock(1000.0)
    source.add(*(event(f"old{i}", 800.0 + i, heat=95 if i % 10 == 0 else 0) for i in range(40)))
    watch = heat_monitor(source, roster="listed", backfill_rate="1000/s")
    async with watching(database, watch, clock) as watcher:
        await watcher.one_tick()
        await add_to_roster(database, "heat", ["a"], [shard_of("a")], backfill=EntityBackfill(0.0), by="me")
        for number in range(12):
            source.add(event(f"new{number}", 1000.0 + number, heat=95 if number == 5 else 0))
            clock.advance(1.0)
            await watcher.one_tick()
        state = await show_entity(database, "heat", "a")
    assert state["count"] == 52
    keys = [row["key"] for row in await list_alerts(database, trigger="peak")]
    assert sorted(keys) == ["new5", "old0", "old10", "old20", "old30"]


async def test_a_past_that_cannot_be_read_holds_up_nobody_and_is_given_up(database: Database) -> None:
    class Forgetful(Pages):
        async def history(self, entity: str, since: float, token: str | None) -> Any:
            raise SourceError("no such entity")
            yield

    source, clock = Forgetful(), VirtualClock(1000.0)
    async with watching(database, heat_monitor(source, roster="listed", backfill_rate="1000/s"), clock) as watcher:
        await add_to_roster(database, "heat", ["a"], [shard_of("a")], backfill=EntityBackfill(0.0), by="me")
        source.add(event(1, 999.0))
        for _ in range(6):
            clock.advance(1.0)
            await watcher.one_tick()
        assert (await read_monitor(database, "heat"))["events"] == 1
        assert (await list_roster(database, "heat"))[0]["backfill"] is None
    problems = await list_problems(database, "heat")
    assert [(p["place"], p["entity"], p["count"]) for p in problems] == [("backfill", "a", 5)]


async def test_an_entity_that_is_removed_is_ignored_and_has_no_open_alerts(database: Database) -> None:
    source = Pages()
    source.add(event(1, 999.0, heat=60))
    async with watching(database, heat_monitor(source)) as watcher:
        await watcher.one_tick()
        assert await open_triggers(database) == {("a", "hot")}
        assert await remove_from_roster(database, "heat", ["a"], by="me") == ["a"]
        source.add(event(2, 1000.0, heat=60))
        await watcher.one_tick()
        assert await open_triggers(database) == set()
        assert (await read_monitor(database, "heat"))["ignored"] >= 1


# -- reset, pause, failing code -------------------------------------------------------------------


async def test_a_reset_makes_the_same_states_again_and_sends_no_second_notice(database: Database) -> None:
    source, clock = Pages(), VirtualClock(1000.0)
    source.add(*(event(i, 900.0 + i, heat=(i * 37) % 100) for i in range(80)))
    async with watching(database, heat_monitor(source), clock) as watcher:
        await watcher.one_tick()
        before = await show_entity(database, "heat", "a")
        alerts = await value(database, "SELECT count(*) FROM tidemill.alert")
        await database.fetch("UPDATE tidemill.monitor_entity SET state = '{\"count\": 7}'")
        assert await reset_monitor(database, "heat", None, by="me") == ["a"]
        clock.advance(1.0)
        await watcher.one_tick()
        after = await show_entity(database, "heat", "a")
    assert after["state"] == before["state"]
    assert await value(database, "SELECT count(*) FROM tidemill.alert") == alerts


async def test_a_paused_monitor_does_nothing_and_then_misses_nothing(database: Database) -> None:
    source, clock = Pages(), VirtualClock(1000.0)
    async with watching(database, heat_monitor(source), clock) as watcher:
        await watcher.one_tick()
        await set_paused(database, "heat", True, by="me")
        source.add(event(1, 1000.0))
        asked = len(source.asked)
        assert await watcher.one_tick() == 1.0
        assert len(source.asked) == asked
        await set_paused(database, "heat", False, by="me")
        await watcher.one_tick()
    assert (await read_monitor(database, "heat"))["events"] == 1


async def test_a_trigger_that_raises_is_shown_and_the_others_go_on(database: Database) -> None:
    source = Pages()
    source.add(event(1, 999.0, heat=95))
    bad = sustained("bad", when=lambda s, now: s.nothing["here"])
    async with watching(database, heat_monitor(source, triggers=[bad, *triggers()])) as watcher:
        await watcher.one_tick()
    assert await open_triggers(database) == {("a", "hot")}
    problems = await list_problems(database, "heat")
    assert [(p["place"], p["entity"]) for p in problems] == [("trigger bad", "a")]
    assert "TypeError" in problems[0]["error"]


async def test_a_state_that_cannot_be_stored_stops_only_its_own_entity(database: Database) -> None:
    class Odd(Heat):
        def on_event(self, state: Any, event: Any) -> None:
            super().on_event(state, event)
            if event["who"] == "odd":
                state.thing = object()

    source = Pages()
    source.add(event(1, 999.0, "odd"), event(2, 999.0, "a", heat=60))
    async with watching(database, heat_monitor(source, fold=Odd)) as watcher:
        await watcher.one_tick()
        await watcher.one_tick()
    assert await open_triggers(database) == {("a", "hot")}
    assert "cannot be stored" in (await show_entity(database, "heat", "odd"))["problem"]


# -- versions -------------------------------------------------------------------------------------


async def test_a_new_version_is_built_from_the_log_and_takes_over(database: Database) -> None:
    class Heat2(Heat):
        version = "2"

        def on_event(self, state: Any, event: Any) -> None:
            super().on_event(state, event)
            state.total = (state.total or 0) + event["heat"]

    source, clock = Pages(), VirtualClock(1000.0)
    source.add(*(event(i, 900.0 + i, f"e{i % 7}", heat=95) for i in range(70)))
    async with watching(database, heat_monitor(source), clock) as old:
        await old.one_tick()
        alerts = await value(database, "SELECT count(*) FROM tidemill.alert")
        async with watching(database, heat_monitor(source, fold=Heat2), clock) as new:

            async def taken_over() -> bool:
                await new.one_tick()
                return (await read_monitor(database, "heat"))["version"] == "2"

            await eventually(taken_over)
            source.add(event("after", 1001.0, "e0", heat=5))
            clock.advance(2.0)
            await old.one_tick()  # it knows that its time is over, and does nothing
            await new.one_tick()
            await new.one_tick()
            state = await show_entity(database, "heat", "e0")
    assert state["version"] == "2"
    assert b'"total":955' in state["state"]
    assert await value(database, "SELECT count(*) FROM tidemill.alert WHERE trigger <> 'hot'") == alerts - 7


async def test_what_is_reported_while_a_new_version_is_built_is_reported_once(database: Database) -> None:
    class Heat2(Heat):
        version = "2"

    source, clock = Pages(), VirtualClock(1000.0)
    source.add(event("first", 999.0, heat=5))
    async with watching(database, heat_monitor(source), clock) as old:
        await old.one_tick()
        async with watching(database, heat_monitor(source, fold=Heat2), clock) as new:
            await new.one_tick()  # It has built the state of the only entity.
            for number, heat in enumerate([60, 5, 95]):
                clock.advance(10.0)
                source.add(event(number, clock.now() - 1, heat=heat))
                await old.one_tick()
            reported = await database.fetch("SELECT id, trigger, key, resolved_at FROM tidemill.alert ORDER BY id")
            for _ in range(4):
                await new.one_tick()
                clock.advance(1.0)
            state = await show_entity(database, "heat", "a")
    assert [alert["trigger"] for alert in reported] == ["hot", "hot", "peak"]
    assert await database.fetch("SELECT id, trigger, key, resolved_at FROM tidemill.alert ORDER BY id") == reported
    assert (state["version"], json.loads(state["state"])["count"]) == ("2", 4)
