"""Cases for the operations on monitors, entities, alerts and silences."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from tests.invariants.operations.case import Case, World
from tests.support.operate_streams import add_silence
from tests.support.web_app import make_ovens
from tidemill.core.codec import encode
from tidemill.ops.explain import WhyNot
from tidemill.ops.monitors import alerts, backtests, monitors, roster
from tidemill.store.monitors.alerts import UnackedFilter

SPAN = (datetime(2023, 11, 14, tzinfo=UTC), datetime(2023, 11, 16, tzinfo=UTC))


async def a_monitor(world: World) -> None:
    """Monitor `ovens` follows two entities, one of which has been hot; alert 1 is open, alert 2 is resolved."""
    if "ovens" not in world.app.monitors:
        world.app.monitor(make_ovens())
    status = {"health": "healthy", "failures": 0, "triggers": ["hot"]}
    for statement, *args in (
        ("INSERT INTO tidemill.monitor (name, version, keep, status) VALUES ('ovens', 'v', 1e9, $1)", encode(status)),
        ("INSERT INTO tidemill.monitor_entity (monitor, entity, shard) VALUES ('ovens', 'a', 1), ('ovens', 'b', 2)",),
        (
            "INSERT INTO tidemill.monitor_event (monitor, entity, source_id, at, tick, data) "
            "SELECT 'ovens', 'a', 'e' || n, 1.7e9 + n, n, json_build_object('oven', 'a', 'celsius', 60 + n) "
            "FROM generate_series(1, 30) AS n",
        ),
        (
            "INSERT INTO tidemill.alert (monitor, trigger, entity, kind, severity, started_at, opened_at, tick, "
            "resolved_at, explain) SELECT 'ovens', 'hot', e, 'sustained', 'warning', '2026-01-02Z', '2026-01-02Z', 1, "
            "CASE WHEN e = 'b' THEN '2026-01-03Z'::timestamptz END, '{}' FROM unnest('{a,b}'::text[]) AS e",
        ),
        (
            "INSERT INTO tidemill.alert_history (alert, at, action, who) "
            "VALUES (1, '2026-01-02Z', 'opened', 'monitor'), (2, '2026-01-02Z', 'opened', 'monitor')",
        ),
    ):
        await world.database.fetch(statement, *args)


async def a_silence(world: World) -> None:
    await a_monitor(world)
    ends = time.time() + 3600
    await add_silence(world.database, "ovens", {"trigger": "*"}, starts_at=0.0, ends_at=ends, by="ann")


CASES: dict[str, Case] = {
    "explain_why_not": Case(
        WhyNot(trigger="hot", entity="b"),
        a_monitor,
        (WhyNot(trigger="hot", entity="nothing"), WhyNot(trigger="cold", entity="b")),
        command="explain --why-not hot b --json",
    ),
    "list_monitors": Case(monitors.ListMonitors(), a_monitor, command="monitor status --json", items=True),
    "pause_monitor": Case(
        monitors.MonitorRef(name="ovens"),
        a_monitor,
        (monitors.MonitorRef(name="nothing"),),
        command="monitor pause",
    ),
    "resume_monitor": Case(
        monitors.MonitorRef(name="ovens"),
        a_monitor,
        (monitors.MonitorRef(name="nothing"),),
        command="monitor resume --monitor ovens",
    ),
    "switch_trigger": Case(
        monitors.SwitchTrigger(name="ovens", trigger="hot", wanted="off"),
        a_monitor,
        (
            monitors.SwitchTrigger(name="nothing", trigger="hot", wanted="off"),
            monitors.SwitchTrigger(name="ovens", trigger="cold", wanted="off"),
            monitors.SwitchTrigger(name="ovens", trigger="hot", wanted="no"),  # pyright: ignore[reportArgumentType]
        ),
        command="monitor trigger hot off",
    ),
    "list_monitor_events": Case(
        monitors.ListMonitorEvents(name="ovens", entity="a", tick=27),
        a_monitor,
        (monitors.ListMonitorEvents(name="nothing"), monitors.ListMonitorEvents(name="ovens", limit=0)),
        command="monitor tail --entity a",
    ),
    "backtest_monitor": Case(
        backtests.BacktestMonitor(name="ovens", since=SPAN[0], until=SPAN[1]),
        a_monitor,
        (
            backtests.BacktestMonitor(name="nothing"),
            backtests.BacktestMonitor(name="ovens", last="0s"),
            backtests.BacktestMonitor(name="ovens", last="99d"),
            backtests.BacktestMonitor(name="ovens", triggers=["cold"]),
            backtests.BacktestMonitor(name="ovens", timeout=0.0),
            backtests.BacktestMonitor(name="ovens", since=SPAN[0].replace(tzinfo=None)),
        ),
        command="monitor backtest APP --since 2023-11-14 --until 2023-11-16 --json",
    ),
    "list_entities": Case(
        roster.ListEntities(name="ovens"),
        a_monitor,
        (roster.ListEntities(name="ovens", within=1.0), roster.ListEntities(name="ovens", cursor="?")),
    ),
    "list_roster": Case(
        roster.ListRoster(name="ovens"),
        a_monitor,
        (roster.ListRoster(name="nothing"), roster.ListRoster(name="ovens", cursor="?")),
        command="monitor roster list --json",
        items=True,
    ),
    "change_roster": Case(
        roster.ChangeRoster(name="ovens", add=["c"]),
        a_monitor,
        (
            roster.ChangeRoster(name="ovens"),
            roster.ChangeRoster(name="nothing", add=["c"]),
            roster.ChangeRoster(name="ovens", add=["c"], past="soon"),
            roster.ChangeRoster(name="ovens", remove=["a\nb"]),
        ),
        command="monitor roster add c",
    ),
    "label_entity": Case(
        roster.LabelEntity(name="ovens", entity="a", labels={"present": False, "room": "12"}),
        a_monitor,
        (
            roster.LabelEntity(name="ovens", entity="a", labels={}),
            roster.LabelEntity(name="ovens", entity="z", labels={"room": 1}),
            roster.LabelEntity(name="ovens", entity="a", labels={"room": [1]}),  # pyright: ignore[reportArgumentType]
        ),
        command="monitor roster label a present=false room=12",
    ),
    "backfill_monitor": Case(
        roster.BackfillMonitor(name="ovens", entities=["a"], past="1h"),
        a_monitor,
        (
            roster.BackfillMonitor(name="ovens", entities=["z"]),
            roster.BackfillMonitor(name="ovens", past="long"),
            roster.BackfillMonitor(name="nothing"),
        ),
        command="monitor backfill a --past 1h",
    ),
    "reset_monitor": Case(
        roster.ResetMonitor(name="ovens"), a_monitor, (roster.ResetMonitor(name="nothing"),), command="monitor reset"
    ),
    "list_alerts": Case(
        alerts.ListAlerts(trigger="hot"),
        a_monitor,
        (alerts.ListAlerts(limit=0), alerts.ListAlerts(cursor="?")),
        command="monitor alerts --trigger hot --all --json",
        items=True,
    ),
    "get_alert": Case(
        alerts.GetAlert(id=1),
        a_monitor,
        (alerts.GetAlert(id=99), alerts.GetAlert(id=-1)),
    ),
    "preview_ack_alerts": Case(UnackedFilter(trigger="hot"), a_monitor),
    "ack_alerts": Case(
        alerts.AckAlerts(ids=[1], note="seen"),
        a_monitor,
        (
            alerts.AckAlerts(),
            alerts.AckAlerts(ids=[]),
            alerts.AckAlerts(ids=[1], filter=UnackedFilter()),
            alerts.AckAlerts(ids=[1, 99]),
            alerts.AckAlerts(ids=[-1]),
        ),
        command="monitor ack 1 --note seen",
    ),
    "note_alert": Case(
        alerts.NoteAlert(id=1, note="seen", owner="ann"),
        a_monitor,
        (alerts.NoteAlert(id=1), alerts.NoteAlert(id=99, note="x")),
        command="monitor note 1 seen --owner ann",
    ),
    "silence_alerts": Case(
        alerts.SilenceAlerts(name="ovens", matchers={"trigger": "hot"}, lasts="10m"),
        a_monitor,
        (
            alerts.SilenceAlerts(name="ovens", matchers={}),
            alerts.SilenceAlerts(name="ovens", matchers={"colour": "red"}),
            alerts.SilenceAlerts(name="ovens", matchers={"trigger": "hot"}, lasts="soon"),
        ),
        command="monitor silence trigger=hot --lasts 10m",
    ),
    "list_silences": Case(alerts.ListSilences(monitor="ovens"), a_silence, command="monitor silence"),
    "end_silence": Case(
        alerts.SilenceRef(id=1),
        a_silence,
        (alerts.SilenceRef(id=9), alerts.SilenceRef(id=-1)),
        command="monitor silence --end 1",
    ),
}
