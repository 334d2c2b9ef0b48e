"""Runs triggers over stored events: a backtest on virtual time, and a replay of the ticks as they were.

`backtest` evaluates every event at its own time, as if it had been seen at once: to try a rule before it is used.
`replay` repeats the stored ticks, with the acknowledgements of people: with the same fold and triggers it gives exactly
the stored alerts.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from itertools import count, groupby
from typing import Any

import msgspec

from tidemill.core.codec import decode
from tidemill.core.errors import PayloadError
from tidemill.monitors.definition.event import Event, MonitorTick
from tidemill.monitors.definition.monitor import Monitor
from tidemill.monitors.definition.triggers import Trigger
from tidemill.monitors.reducer.entity_state import AlertRecord, EntityProblem, EntityState
from tidemill.monitors.reducer.fold import describe
from tidemill.monitors.reducer.reducer import EntityOutcome, MonitorRules, TickIndex, advance, evaluate_tick
from tidemill.monitors.reducer.settings_history import added_ticks, history_of
from tidemill.monitors.runner.evaluate import read_event
from tidemill.store.database import Database
from tidemill.store.monitors.alerts import READ_ACKS
from tidemill.store.monitors.events import read_span, read_ticks
from tidemill.store.monitors.monitors import read_monitor
from tidemill.store.monitors.roster import list_roster
from tidemill.store.monitors.settings_history import read_settings_history

STEP = 0.5
MOST_LOOKS = 1_000_000
MOST_SINCE = 256
MOST_ENTITIES = 10_000_000


class BacktestReport(msgspec.Struct):
    """The alerts that would have been opened, and the problems on the way."""

    monitor: str
    since: float
    until: float
    alerts: list[AlertRecord] = []
    problems: list[EntityProblem] = []
    entities: int = 0
    events: int = 0

    def counts(self) -> dict[str, int]:
        """How many alerts each trigger would have opened."""
        found: dict[str, int] = {}
        for alert in self.alerts:
            found[alert.trigger] = found.get(alert.trigger, 0) + 1
        return dict(sorted(found.items()))


class Difference(msgspec.Struct, frozen=True):
    """The difference of two reports: alerts of both, and of only one of them."""

    both: list[AlertRecord]
    only_first: list[AlertRecord]
    only_second: list[AlertRecord]


async def backtest(
    database: Database,
    monitor: Monitor,
    since: float,
    until: float,
    *,
    triggers: Sequence[Trigger] | None = None,
) -> BacktestReport:
    """Run triggers over the events of a time span; by default those of the monitor."""
    report = BacktestReport(monitor.name, since, until)
    rules = MonitorRules(monitor.name, monitor.fold, monitor.triggers if triggers is None else tuple(triggers))
    async for entity, events in _by_entity(database, monitor.name, since, until):
        report.entities += 1
        report.events += len(events)
        # In a thread, so that a server can answer other requests meanwhile.
        _add(report, await asyncio.to_thread(walk_through, rules, entity, events, until))
    report.alerts.sort(key=lambda alert: (alert.opened_at, alert.entity, alert.trigger))
    return report


async def replay(database: Database, monitor: Monitor, since: float, until: float) -> BacktestReport:
    """Repeat the ticks of a time span as they were."""
    report = BacktestReport(monitor.name, since, until)
    acks = {
        (r["entity"], r["trigger"], r["tick"]): r["acked_at"] for r in await database.fetch(READ_ACKS, monitor.name)
    }
    changes = await read_settings_history(database, monitor.name, -1)
    row = await read_monitor(database, monitor.name)
    off = history_of((change for change in changes if change["entity"] is None), list(row["off"]))
    rules = MonitorRules(monitor.name, monitor.fold, monitor.triggers, acks, off)
    roster = await list_roster(database, monitor.name, inactive=True, limit=MOST_ENTITIES)
    labels = {each["entity"]: each["labels"] for each in roster}
    own_changes: dict[str, list[Any]] = {}
    for change in changes:
        own_changes.setdefault(change["entity"], []).append(change)
    silent = {entity for entity, own in own_changes.items() if added_ticks(own)}
    ticks = TickIndex(MonitorTick(*each) for each in await read_ticks(database, monitor.name, since, until))
    async for entity, events in _with_silent(_by_entity(database, monitor.name, -1e12, until), silent):
        report.entities += 1
        report.events += len(events)
        arrivals: dict[int, list[Event]] = {}
        for event in events:
            arrivals.setdefault(event.tick, []).append(event)
        own, now = own_changes.get(entity, []), labels.get(entity)
        history = history_of(own, {} if now is None else decode(now))
        entity_state = EntityState(entity, label_history=history, added=added_ticks(own))
        try:
            outcome = advance(rules, entity_state, arrivals, ticks, past=events)
        except BaseException as error:  # noqa: BLE001 - user code: the other entities go on
            outcome = EntityOutcome(problems=[EntityProblem("fold", entity, describe(error))])
        _add(report, outcome)
    report.alerts.sort(key=lambda alert: (alert.opened_at, alert.entity, alert.trigger))
    return report


def walk_through(rules: MonitorRules, entity: str, events: Sequence[Event], until: float) -> EntityOutcome:
    """Take one entity through a time span: each event at its time, each timer when it is due. Pure."""
    try:
        try:
            return _walk(rules, EntityState(entity), events, until)
        except PayloadError:
            return _walk(rules, EntityState(entity, check_each=True), events, until)
    except BaseException as error:  # noqa: BLE001 - user code: the other entities go on
        return EntityOutcome(problems=[EntityProblem("fold", entity, describe(error))])


def _walk(rules: MonitorRules, entity_state: EntityState, events: Sequence[Event], until: float) -> EntityOutcome:
    outcome, numbers = EntityOutcome(), count(1)
    groups = [list(group) for _, group in groupby(events, key=lambda event: event.at // STEP)]
    for came in [*groups, []]:
        moment = came[-1].at if came else until
        for _ in range(MOST_LOOKS):
            if entity_state.due is None or entity_state.due > moment or (came and entity_state.due >= moment):
                break
            evaluate_tick(rules, entity_state, (), MonitorTick(next(numbers), entity_state.due), outcome)
        if came:
            evaluate_tick(rules, entity_state, came, MonitorTick(next(numbers), moment), outcome)
            if len(entity_state.since) > MOST_SINCE:
                entity_state.write()  # Limits the work when the fold fails at an event.
    if entity_state.state is not None:
        entity_state.write()  # A state that cannot be stored is found here.
    return outcome


def compare(first: BacktestReport, second: BacktestReport) -> Difference:
    """Compare the alerts of two reports, by key or start time."""
    ones, others = _by_identity(first.alerts), _by_identity(second.alerts)
    return Difference(
        both=[alert for key, alert in ones.items() if key in others],
        only_first=[alert for key, alert in ones.items() if key not in others],
        only_second=[alert for key, alert in others.items() if key not in ones],
    )


def _by_identity(alerts: Iterable[AlertRecord]) -> dict[tuple[Any, ...], AlertRecord]:
    """Alerts by entity, trigger and key or start time; several with the same start are numbered."""
    found: dict[tuple[Any, ...], AlertRecord] = {}
    seen: Counter[tuple[Any, ...]] = Counter()
    for alert in alerts:
        about = (alert.entity, alert.trigger, alert.key if alert.key is not None else round(alert.started_at, 3))
        seen[about] += 1
        found[(*about, seen[about])] = alert
    return found


def _add(report: BacktestReport, outcome: EntityOutcome) -> None:
    seen: set[tuple[str, str]] = set()
    for alert in outcome.opened:
        if alert.key is not None:
            if (alert.trigger, alert.key) in seen:
                continue
            seen.add((alert.trigger, alert.key))
        report.alerts.append(alert)
    report.problems += outcome.problems


async def _by_entity(
    database: Database, name: str, since: float, until: float
) -> AsyncIterator[tuple[str, list[Event]]]:
    current: str | None = None
    gathered: list[Event] = []
    async for row in read_span(database, name, since, until):
        if row["entity"] != current:
            if current is not None:
                yield current, sorted(gathered, key=lambda event: event.place)
            current, gathered = row["entity"], []
        gathered.append(read_event(row))
    if current is not None:
        yield current, sorted(gathered, key=lambda event: event.place)


async def _with_silent(
    entities: AsyncIterator[tuple[str, list[Event]]], silent: set[str]
) -> AsyncIterator[tuple[str, list[Event]]]:
    """All entities with events, and those that were added and have none."""
    async for entity, events in entities:
        silent.discard(entity)
        yield entity, events
    for entity in sorted(silent):
        yield entity, []


def as_identity(alerts: Iterable[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    """Stored alerts in a form that can be compared with a replay."""
    return sorted(
        (
            alert["entity"],
            alert["trigger"],
            alert["key"] or "",
            alert["tick"],
            alert["started_at"].timestamp(),
            alert["opened_at"].timestamp(),
        )
        for alert in alerts
    )


def identity(report: BacktestReport) -> list[tuple[Any, ...]]:
    """The alerts of a replay in a form that can be compared with stored ones."""
    return sorted((a.entity, a.trigger, a.key or "", a.tick, a.started_at, a.opened_at) for a in report.alerts)
