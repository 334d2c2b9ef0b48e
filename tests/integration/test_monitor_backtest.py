"""Trying triggers over stored events, and getting the stored alerts again from a replay."""

from __future__ import annotations

from tests.support.watched import Heat, Pages, event, heat_monitor, triggers, watching
from tidemill.core.clock import VirtualClock
from tidemill.monitors import sustained
from tidemill.monitors.backtest import as_identity, backtest, compare, identity, replay
from tidemill.monitors.picture import svg
from tidemill.store.alerts import ack_alerts, list_alerts
from tidemill.store.database import Database


async def live(database: Database, *, ack: bool = True) -> Pages:
    """An hour of five entities, with late events, silences, acknowledgements and re-alerts."""
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
