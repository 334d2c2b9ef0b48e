"""Trying triggers over stored events, and getting the stored alerts again from a replay."""

from __future__ import annotations

from tests.support.operate_streams import ack_alerts, label_entity, switch_trigger
from tests.support.watched import Heat, Pages, event, heat_monitor, triggers, watching
from tidemill.core.clock import VirtualClock
from tidemill.monitors import sustained
from tidemill.monitors.runner.backtest import as_identity, backtest, compare, identity, replay
from tidemill.monitors.view.backtest_chart import svg
from tidemill.store.database import Database
from tidemill.store.monitors.alerts import list_alerts
from tidemill.store.monitors.monitors import seal_tick


async def live(database: Database, *, ack: bool = True, wishes: bool = False) -> Pages:
    """An hour of five entities, with late events, silences, acknowledgements and re-alerts; and with wishes."""
    source, clock = Pages(), VirtualClock(10_000.0)
    async with watching(database, heat_monitor(source), clock) as watcher:
        for number in range(240):
            now = clock.now()
            for who in range(5):
                if not (who == 3 and 60 < number < 120) and not (who == 4 and number > 100):
                    late = 40.0 if number % 17 == 0 else 0.0
                    heat = (number * 7 + who * 31) % 100 if who else 60
                    source.add(event(f"{number}-{who}", now - late - who * 0.1, f"e{who}", heat=heat))
            clock.advance(15.0)
            await watcher.one_tick()
            if ack and number % 10 == 0:
                opened = [row["id"] for row in await list_alerts(database, current=True) if row["entity"] == "e0"]
                await ack_alerts(database, opened[:1], by="ann", at=clock.now())
            for trigger, rhythm in (("hot", 23), ("peak", 31)) if wishes else ():
                if number % rhythm in (rhythm // 2, rhythm - 1):
                    await switch_trigger(database, "heat", trigger, number % rhythm == rhythm - 1, by="ann")
            if wishes and number % 40 in (15, 35):
                await label_entity(database, "heat", "e4", {"present": number % 40 == 35}, by="ann")
    return source


async def test_a_replay_gives_exactly_the_alerts_that_live_running_gave(database: Database) -> None:
    source = await live(database)
    stored = [dict(row) for row in await list_alerts(database, limit=100_000)]
    assert {row["trigger"] for row in stored} == {"hot", "peak", "silent"}
    assert any(row["again_after"] for row in stored)
    report = await replay(database, heat_monitor(source), -1e12, 1e12)
    assert identity(report) == as_identity(stored)
    ended = {(r["trigger"], r["entity"], r["tick"]): r["resolved_at"] for r in stored if r["kind"] != "momentary"}
    for alert in report.alerts:
        if alert.kind != "momentary":
            moment = ended[(alert.trigger, alert.entity, alert.tick)]
            assert alert.resolved_at == (None if moment is None else moment.timestamp())


async def test_a_replay_knows_what_was_switched_off_and_who_was_not_there(database: Database) -> None:
    source = await live(database, wishes=True)
    stored = [dict(row) for row in await list_alerts(database, limit=100_000)]
    assert {row["resolution"] for row in stored if row["trigger"] == "hot"} >= {"its trigger was switched off"}
    assert sum(row["trigger"] == "silent" and row["entity"] == "e4" for row in stored) > 2
    report = await replay(database, heat_monitor(source), -1e12, 1e12)
    assert identity(report) == as_identity(stored)
    ended = {(r["trigger"], r["entity"], r["tick"]): r["resolved_at"] for r in stored if r["kind"] != "momentary"}
    told = {
        (a.trigger, a.entity, a.tick): None if a.resolved_at is None else round(a.resolved_at, 5)
        for a in report.alerts
        if a.kind != "momentary"
    }
    assert told == {key: None if at is None else round(at.timestamp(), 5) for key, at in ended.items()}


async def test_what_happened_while_a_trigger_was_off_is_not_told_when_it_is_on_again(database: Database) -> None:
    source, clock = Pages(), VirtualClock(1000.0)
    async with watching(database, heat_monitor(source), clock) as watcher:
        source.add(event(1, 999.0, heat=95))
        await watcher.one_tick()
        await switch_trigger(database, "heat", "peak", False, by="ann")
        clock.advance(10.0)
        source.add(event(2, 1009.0, heat=95))
        await watcher.one_tick()
        await switch_trigger(database, "heat", "peak", True, by="ann")
        clock.advance(10.0)
        await watcher.one_tick()
        source.add(event(3, 1019.5, heat=95))
        await watcher.one_tick()
    peaks = [row["key"] for row in await list_alerts(database) if row["trigger"] == "peak"]
    assert sorted(peaks) == ["1", "3"]


async def test_a_label_counts_from_the_next_tick_on_and_not_in_one_that_is_complete(database: Database) -> None:
    source, clock = Pages(), VirtualClock(1000.0)
    source.add(event(1, 999.0))

    async def label_now(present: bool) -> None:
        await label_entity(database, "heat", "a", {"present": present}, by="ann")

    async with watching(database, heat_monitor(source), clock) as watcher:
        await watcher.one_tick()
        await label_now(False)
        clock.advance(400.0)
        await watcher.one_tick()
        assert await list_alerts(database) == []
        # Between the completion of a tick and its folding: as a quick user would.
        await database.fetch("UPDATE tidemill.monitor_entity SET due_at = 1401.0")
        clock.advance(10.0)
        done = await seal_tick(database, "heat", clock.now())
        assert done is not None
        await label_now(True)
        await watcher.one_tick()
        assert await list_alerts(database) == []
        clock.advance(1.0)
        await watcher.one_tick()
        (alert,) = await list_alerts(database)
    assert alert["trigger"] == "silent"
    assert alert["tick"] == done[0] + 1
    report = await replay(database, heat_monitor(source), -1e12, 1e12)
    assert identity(report) == as_identity([dict(alert)])


async def test_a_backtest_tells_what_another_trigger_would_have_opened(database: Database) -> None:
    source = await live(database, ack=False)
    watch = heat_monitor(source)
    now = await backtest(database, watch, 0.0, 1e9)
    assert now.entities == 5
    assert now.events == 240 * 5 - 59 - 139
    hotter = [
        sustained("hot", when=lambda s, at: s.hot_since is not None, since=lambda s: s.hot_since, hold="1m"),
        *triggers()[1:],
    ]
    then = await backtest(database, watch, 0.0, 1e9, triggers=hotter)
    assert 0 < then.counts()["hot"] < now.counts()["hot"]
    assert then.counts()["peak"] == now.counts()["peak"]
    found = compare(now, then)
    assert {alert.trigger for alert in found.only_first} == {"hot"}
    assert not [alert for alert in found.only_second if alert.trigger != "hot"]
    picture = svg(then)
    assert picture.startswith("<svg")
    assert picture.count("<circle") == then.counts()["peak"]


async def test_in_a_backtest_a_timer_counts_at_its_own_time(database: Database) -> None:
    source, clock = Pages(), VirtualClock(10_000.0)
    source.add(event(1, 9000.0), event(2, 9900.0))  # both arrive together, long after
    watch = heat_monitor(source, fold=Heat)
    async with watching(database, watch, clock) as watcher:
        await watcher.one_tick()
    report = await backtest(database, watch, 0.0, 11_000.0)
    assert [(a.trigger, a.started_at, a.opened_at, a.resolved_at) for a in report.alerts] == [
        ("silent", 9300.0, 9300.0, 9900.0),
        ("silent", 10_200.0, 10_200.0, None),
    ]
