"""What is known of an entity before its first event, and what its past raises when it is first followed."""

from __future__ import annotations

from typing import Any

from tests.support import value
from tests.support.operate_streams import ack_alerts, add_to_roster, label_entity, remove_from_roster
from tests.support.watched import Pages, event, heat_monitor, open_triggers, triggers, watching
from tidemill import App
from tidemill.core.accounts import Caller
from tidemill.core.clock import VirtualClock
from tidemill.monitors import Hours, Webhook, absent
from tidemill.monitors.definition.event import Event, MonitorTick
from tidemill.monitors.reducer.entity_state import EntityState
from tidemill.monitors.reducer.reducer import MonitorRules, TickIndex, advance
from tidemill.monitors.runner.backtest import as_identity, identity, replay
from tidemill.monitors.runner.evaluate import shard_of
from tidemill.monitors.runner.ingest import EntityBackfill
from tidemill.monitors.runner.notices import TASK
from tidemill.ops.monitors.alerts import Alert, ListAlerts, list_alerts
from tidemill.ops.operator.local import Local
from tidemill.store.database import Database
from tidemill.store.monitors import alerts as store


async def follow(database: Database, *entities: str, backfill: Any = None) -> None:
    await add_to_roster(database, "heat", entities, [shard_of(each) for each in entities], backfill=backfill, by="me")


async def states(database: Database) -> dict[str, str]:
    """The state of each momentary alert by its key."""
    keys = {row["id"]: row["key"] for row in await store.list_alerts(database, limit=500)}
    return {keys[each.id]: each.state for each in await listed(database) if keys[each.id] is not None}


async def listed(database: Database) -> list[Alert]:
    operator = Local(database, Caller("me", "viewer"), None)
    return (await operator.do(list_alerts, ListAlerts(limit=500))).items


# -- absent from the start ------------------------------------------------------------------------


async def test_a_listed_entity_that_was_never_heard_from_is_absent_after_its_time(database: Database) -> None:
    source, clock = Pages(), VirtualClock(1000.0)
    watch = heat_monitor(source, roster="listed")
    async with watching(database, watch, clock) as watcher:
        await watcher.one_tick()
        await follow(database, "a", "away")
        await label_entity(database, "heat", "away", {"present": False}, by="me")
        clock.advance(1.0)
        await watcher.one_tick()
        clock.advance(299.0)
        await watcher.one_tick()
        assert await open_triggers(database) == set()
        clock.advance(1.0)
        await watcher.one_tick()
        assert await open_triggers(database) == {("a", "silent")}
        (alert,) = await store.list_alerts(database)
        assert alert["started_at"].timestamp() == 1301.0
        source.add(event(1, 1400.0, "a"))
        clock.advance(100.0)
        await watcher.one_tick()
        assert await open_triggers(database) == set()
    again = await replay(database, watch, 0.0, 1e9)
    assert identity(again) == as_identity([dict(row) for row in await store.list_alerts(database)])


async def test_an_entity_that_is_followed_again_is_expected_from_then_on(database: Database) -> None:
    source, clock = Pages(), VirtualClock(1000.0)
    source.add(event(1, 999.0))
    async with watching(database, heat_monitor(source), clock) as watcher:
        await watcher.one_tick()
        await remove_from_roster(database, "heat", ["a"], by="me")
        clock.advance(5000.0)
        await watcher.one_tick()
        await follow(database, "a")
        clock.advance(1.0)
        await watcher.one_tick()
        assert await open_triggers(database) == set()
        clock.advance(300.0)
        await watcher.one_tick()
        assert await open_triggers(database) == {("a", "silent")}


async def test_a_trigger_may_leave_out_what_was_never_heard_from(database: Database) -> None:
    rules = [absent("silent", after="5m", from_start=False)]
    source, clock = Pages(), VirtualClock(1000.0)
    async with watching(database, heat_monitor(source, triggers=rules, roster="listed"), clock) as watcher:
        await watcher.one_tick()
        await follow(database, "a")
        for _ in range(3):
            clock.advance(400.0)
            await watcher.one_tick()
        assert await open_triggers(database) == set()
        source.add(event(1, clock.now(), "a"))
        await watcher.one_tick()
        clock.advance(300.0)
        await watcher.one_tick()
        assert await open_triggers(database) == {("a", "silent")}


MONDAY_8 = 1_767_600_000.0  # 5 January 2026, 08:00 UTC


def test_the_hours_of_a_trigger_hold_for_what_was_never_heard_from() -> None:
    rules = MonitorRules(
        "m", heat_monitor(Pages()).fold, (absent("silent", after="5m", hours=Hours("Mon-Fri 08:00-16:00")),)
    )
    sunday = MONDAY_8 - 86_400.0
    entity_state = EntityState("a", added=frozenset({1}), due=sunday)
    moments = [sunday, MONDAY_8 + 299.0, MONDAY_8 + 300.0, MONDAY_8 + 8 * 3600, MONDAY_8 + 86_400.0 + 301.0]
    held = []
    for number, at in enumerate(moments, 1):
        advance(rules, entity_state, {}, TickIndex([MonitorTick(number, at)]))
        held.append(set(entity_state.alerts))
    assert held == [set(), set(), {"silent"}, set(), {"silent"}]


# -- the past of a first start and of a backfill -------------------------------------------------


async def test_a_first_start_opens_momentary_alerts_of_the_past_as_history(app: App, database: Database) -> None:
    source, clock = Pages(page=5), VirtualClock(100_000.0)
    source.add(*(event(f"old{number}", 90_000.0 + number, heat=95) for number in range(300)))
    source.add(event("now", 99_990.0, heat=95))
    watch = app.monitor(heat_monitor(source, notify=[Webhook(url="http://127.0.0.1:9/")]))
    async with watching(database, watch, clock, task=app.declarations.tasks[TASK]) as watcher:
        for _ in range(4):  # its past takes more than one tick
            await watcher.one_tick()
            clock.advance(0.5)
        source.add(event("later", 100_001.0, heat=95))
        await watcher.one_tick()
    found = await states(database)
    assert (found.pop("now"), found.pop("later")) == ("fired", "fired")
    assert (set(found.values()), len(found)) == ({"history"}, 300)
    told = "SELECT array_agg(a.key ORDER BY a.id) FROM tidemill.alert_notice JOIN tidemill.alert AS a ON a.id = alert"
    assert await value(database, f"{told} WHERE a.kind = 'momentary'") == ["now", "later"]
    current = await store.list_alerts(database, trigger="peak", current=True)
    assert {row["key"] for row in current} == {"now", "later"}
    wanted = store.UnackedFilter(trigger="peak")
    assert len(await store.match_unacked(database, wanted, limit=1000)) == 2
    history = await store.show_history(
        database, min(row["id"] for row in await store.list_alerts(database, trigger="peak", limit=500))
    )
    assert [row["detail"] for row in history] == ["from before it was followed: nothing to acknowledge"]


async def test_the_past_that_a_backfill_reads_is_history_and_late_events_are_news(database: Database) -> None:
    source, clock = Pages(), VirtualClock(10_000.0)
    async with watching(database, heat_monitor(source, roster="listed"), clock) as watcher:
        await watcher.one_tick()
        source.add(event("old", 9000.0, heat=95))
        await follow(database, "a", backfill=EntityBackfill(0.0))
        clock.advance(1.0)
        await watcher.one_tick()
        source.add(event(1, 10_600.0), event("late", 10_100.0, heat=95))
        clock.advance(1000.0)
        await watcher.one_tick()
    assert await states(database) == {"old": "history", "late": "fired"}


async def test_each_state_of_an_alert_has_one_name(database: Database) -> None:
    source, clock = Pages(), VirtualClock(1000.0)
    source.add(event("peak", 999.0, heat=95), event("b", 999.0, "b", heat=60))
    async with watching(database, heat_monitor(source, triggers=triggers()[:2]), clock) as watcher:
        await watcher.one_tick()
        found = {(each.trigger, each.entity): each for each in await listed(database)}
        assert {where: each.state for where, each in found.items()} == {
            ("peak", "a"): "fired", ("hot", "a"): "open", ("hot", "b"): "open",
        }  # fmt: skip
        await ack_alerts(database, [found["peak", "a"].id, found["hot", "a"].id], by="me", at=1001.0)
        source.add(event(3, 1000.0, "b"))
        clock.advance(1.0)
        await watcher.one_tick()
        assert {(each.trigger, each.entity): each.state for each in await listed(database)} == {
            ("peak", "a"): "acknowledged", ("hot", "a"): "acknowledged", ("hot", "b"): "resolved",
        }  # fmt: skip


def test_an_occurrence_is_history_by_its_event_and_else_by_its_time() -> None:
    rules = MonitorRules("m", heat_monitor(Pages()).fold, tuple(triggers()))
    came = [
        Event("old", 100.0, "a", {"heat": 95}, 1, past=True),
        Event("late", 90.0, "a", {"heat": 95}, 1),
    ]
    outcome = advance(rules, EntityState("a"), {1: came}, TickIndex([MonitorTick(1, 1000.0)]))
    found = {alert.key: alert.resolution for alert in outcome.opened if alert.key}
    assert found == {"old": "history", "late": "momentary"}
