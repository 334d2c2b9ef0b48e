"""Decides what follows for one entity from the events and timers of a tick, live and in replays and backtests. Pure.

`advance` takes one entity through ticks in order. At each tick it folds the new events, calls the fold's `on_tick`, and
checks every trigger. A tick without new events counts only if the entity's timer is due. All times come from the ticks,
so that the same log gives the same alerts whenever it is read.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from tidemill.core.codec import encode
from tidemill.core.errors import PayloadError
from tidemill.monitors.definition.event import Event, MonitorTick
from tidemill.monitors.definition.monitor import Fold
from tidemill.monitors.definition.triggers import Absent, Momentary, Sustained, Trigger
from tidemill.monitors.reducer.entity_state import AlertRecord, EntityProblem, EntityState, EventMark
from tidemill.monitors.reducer.fold import describe, take_events
from tidemill.monitors.reducer.settings_history import SettingHistory, switched_on
from tidemill.monitors.reducer.state import write_state

SWITCHED_OFF = "its trigger was switched off"
MOST_EXPLAINED = 20_000


class MonitorRules(msgspec.Struct, frozen=True):
    """The fold and the triggers of a monitor."""

    monitor: str
    fold: Fold
    triggers: tuple[Trigger, ...]
    acks: Mapping[tuple[str, str, int], float] = {}
    """For a replay: when the alert of an entity and trigger that a tick opened was acknowledged."""
    off: SettingHistory = SettingHistory(())
    """Which triggers are switched off at each tick."""


class TickIndex:
    """TickIndex in order, with lookup by number and by time."""

    def __init__(self, ticks: Iterable[MonitorTick]) -> None:
        self._ticks = sorted(ticks)
        self.numbers = [tick.number for tick in self._ticks]
        self.times = [tick.at for tick in self._ticks]

    def __len__(self) -> int:
        return len(self._ticks)

    def __getitem__(self, position: int) -> MonitorTick:
        return self._ticks[position]


class EntityOutcome(msgspec.Struct):
    """What must be stored for one entity."""

    opened: list[AlertRecord] = []
    resolved: list[AlertRecord] = []
    problems: list[EntityProblem] = []
    late: int = 0


class TriggerVerdict(msgspec.Struct, frozen=True):
    """Whether the condition of a trigger holds now, since when, and when to check it again."""

    holds: bool
    since: float | None = None
    due: float | None = None


def advance(
    rules: MonitorRules,
    entity_state: EntityState,
    arrivals: Mapping[int, Sequence[Event]],
    ticks: TickIndex,
    *,
    past: Sequence[Event] = (),
) -> EntityOutcome:
    """Take an entity through ticks, up to the last of them.

    `arrivals` are its events by the number of their tick; `ticks` are all ticks that count, in order. At the end the
    state is encoded as it will be stored.
    """
    outcome = EntityOutcome()
    position, stop = bisect_right(ticks.numbers, entity_state.folded), 0
    last = ticks.numbers[-1] if len(ticks) else entity_state.folded
    due_ticks = {number for number in arrivals if number > entity_state.folded}
    due_ticks.update(switched_on(rules.off, entity_state.folded, last))
    label_history = entity_state.label_history or SettingHistory(entity_state.labels)
    due_ticks.update(step.tick for step in label_history.between(entity_state.folded, last))
    stops = sorted({bisect_left(ticks.numbers, number) for number in due_ticks})
    done = entity_state.folded
    while True:
        at = stops[stop] if stop < len(stops) else len(ticks)
        if entity_state.due is not None:
            at = min(at, bisect_left(ticks.times, entity_state.due, lo=position))
        if at >= len(ticks):
            break
        tick = ticks[at]
        _switch_off(rules, entity_state, done, tick.number, outcome)
        done = tick.number
        entity_state.labels = label_history.at(tick.number)
        evaluate_tick(rules, entity_state, arrivals.get(tick.number, ()), tick, outcome, past=past)
        if stop < len(stops) and at == stops[stop]:
            stop += 1
        position = at + 1
    _switch_off(rules, entity_state, done, last, outcome)
    if entity_state.state is not None:
        entity_state.write()
    entity_state.folded = max(entity_state.folded, last)
    return outcome


def evaluate_tick(
    rules: MonitorRules,
    entity_state: EntityState,
    came: Sequence[Event],
    tick: MonitorTick,
    outcome: EntityOutcome,
    *,
    past: Sequence[Event] = (),
) -> None:
    """One tick of one entity: fold the new events, then check every trigger."""
    if came:
        problems, late = take_events(rules.fold, entity_state, came, tick, past=past)
        outcome.problems += problems
        outcome.late += late
    check_triggers(rules, entity_state, tick, outcome, folded=bool(came))


def _switch_off(rules: MonitorRules, entity_state: EntityState, after: int, upto: int, outcome: EntityOutcome) -> None:
    """Resolve the open alerts of triggers that were switched off during these ticks."""
    for step in rules.off.between(after, upto):
        for name in step.value:
            if (alert := entity_state.alerts.get(name)) is not None:
                _resolve(entity_state, alert, max(step.at, alert.opened_at), SWITCHED_OFF, outcome)


def rebuild(rules: MonitorRules, entity_state: EntityState, history: Sequence[Event]) -> list[EntityProblem]:
    """Rebuild a state from events that were evaluated before; no alert follows from them."""
    if not history:
        return []
    entity_state.state, entity_state.raw, entity_state.count, entity_state.checkpoints = None, None, 0, []
    last, seen = entity_state.place, entity_state.last_at
    entity_state.at = None
    problems, _ = take_events(rules.fold, entity_state, history, MonitorTick(entity_state.folded, history[-1].at))
    entity_state.last_at = seen
    if (
        last is not None
        and entity_state.at is not None
        and entity_state.place is not None
        and entity_state.place < last
    ):
        entity_state.at, entity_state.id = last[0], last[2]
    forget_occurrences(rules, entity_state)
    entity_state.write()
    return problems


def check_triggers(
    rules: MonitorRules, entity_state: EntityState, tick: MonitorTick, outcome: EntityOutcome, *, folded: bool
) -> None:
    """Call the fold's `on_tick`, check every trigger, and set the next timer."""
    now = tick.at
    if entity_state.state is None:
        entity_state.state = rules.fold.start()
    dues: list[float | None] = []
    off = rules.off.at(tick.number)
    if folded:
        try:
            dues.append(rules.fold.on_tick(entity_state.state, now))
        except Exception as error:  # noqa: BLE001 - user code
            outcome.problems.append(EntityProblem("fold", entity_state.entity, f"on_tick: {describe(error)}"))
    for trigger in rules.triggers:
        if trigger.name in off:
            continue
        try:
            if isinstance(trigger, Momentary):
                _raise_occurrences(rules, entity_state, trigger, tick, outcome)
            elif isinstance(trigger, Sustained | Absent):
                dues.append(_follow(rules, entity_state, trigger, tick, outcome, folded=folded))
        except Exception as error:  # noqa: BLE001 - user code: the other triggers go on
            outcome.problems.append(EntityProblem(f"trigger {trigger.name}", entity_state.entity, describe(error)))
    forget_occurrences(rules, entity_state)
    later = [due for due in dues if due is not None and due > now]
    entity_state.due = min(later, default=None)


def forget_occurrences(rules: MonitorRules, entity_state: EntityState) -> None:
    """Clear the lists of occurrences: all of them have been checked."""
    for trigger in rules.triggers:
        if isinstance(trigger, Momentary):
            try:
                seen = trigger.of(entity_state.state)
            except Exception:  # noqa: BLE001, S112 - reported where the trigger was checked
                continue
            if isinstance(seen, list):
                seen.clear()


def _raise_occurrences(
    rules: MonitorRules, entity_state: EntityState, trigger: Momentary, tick: MonitorTick, outcome: EntityOutcome
) -> None:
    for occurrence in list(trigger.of(entity_state.state) or ()):
        if trigger.when is not None and not trigger.when(occurrence):
            continue
        moment = trigger.moment_of(occurrence)
        alert = _alert(rules, entity_state, trigger, tick, tick.at if moment is None else moment, about=occurrence)
        alert.key = trigger.key_of(occurrence)
        alert.resolved_at, alert.resolution = tick.at, "momentary"
        outcome.opened.append(alert)


def _follow(
    rules: MonitorRules,
    entity_state: EntityState,
    trigger: Sustained | Absent,
    tick: MonitorTick,
    outcome: EntityOutcome,
    *,
    folded: bool,
) -> float | None:
    """Open, keep or resolve the alert of a lasting condition; returns when to check again."""
    now = tick.at
    verdict = check_condition(trigger, entity_state, now, folded=folded)
    mark = entity_state.marks.triggers.setdefault(trigger.name, EventMark())
    alert = entity_state.alerts.get(trigger.name)
    due = verdict.due
    if verdict.holds:
        mark.clear = None
        if mark.since is None:
            mark.since, mark.began = now, verdict.since
        if alert is None:
            if now < mark.since + trigger.hold:
                return _soonest(due, mark.since + trigger.hold)
            began = now if mark.began is None else min(mark.began, tick.complete_at)
            alert = entity_state.alerts[trigger.name] = _alert(rules, entity_state, trigger, tick, began)
            outcome.opened.append(alert)
        elif alert.realert_at is not None and alert.realert_at <= now:
            _resolve(entity_state, alert, now, "still so after its acknowledgement", outcome)
            fresh = entity_state.alerts[trigger.name] = _alert(rules, entity_state, trigger, tick, alert.started_at)
            fresh.again_after = alert.id or None
            outcome.opened.append(fresh)
            alert = fresh
        return _soonest(due, alert.realert_at)
    mark.since = mark.began = None
    if alert is None:
        entity_state.marks.triggers.pop(trigger.name, None)
        return due
    if trigger.clear:
        mark.clear = now if mark.clear is None else mark.clear
        if now < mark.clear + trigger.clear:
            return _soonest(due, mark.clear + trigger.clear)
    entity_state.marks.triggers.pop(trigger.name, None)
    _resolve(entity_state, alert, now, "cleared", outcome)
    return due


def check_condition(
    trigger: Sustained | Absent, entity_state: EntityState, now: float, *, folded: bool
) -> TriggerVerdict:
    """Whether a lasting condition holds now, since when, and when this may change without an event."""
    if isinstance(trigger, Absent):
        return _check_absence(trigger, entity_state, now)
    due = None if trigger.recheck is None else now + trigger.recheck
    if not trigger.when(entity_state.state, now):
        return TriggerVerdict(False, due=due)
    since = None if trigger.since is None else trigger.since(entity_state.state)
    if since is None:
        since = entity_state.at if folded and entity_state.at is not None else now
    return TriggerVerdict(True, since, due)


def _check_absence(trigger: Absent, entity_state: EntityState, now: float) -> TriggerVerdict:
    if entity_state.last_at is None or entity_state.labels.get("present") is False:
        return TriggerVerdict(False)
    moment = entity_state.last_at + trigger.after
    end = None
    if trigger.hours is not None:
        stretch = trigger.hours.around(entity_state.last_at)
        if stretch is None or moment >= stretch[1] or now >= stretch[1]:
            return TriggerVerdict(False)
        end = stretch[1]
    if now < moment:
        return TriggerVerdict(False, due=moment)
    if trigger.only_while is not None and not trigger.only_while(entity_state.state, now):
        return TriggerVerdict(False)
    return TriggerVerdict(True, moment, end)


def _alert(
    rules: MonitorRules,
    entity_state: EntityState,
    trigger: Trigger,
    tick: MonitorTick,
    began: float,
    *,
    about: Any = None,
) -> AlertRecord:
    alert = AlertRecord(
        monitor=rules.monitor,
        trigger=trigger.name,
        entity=entity_state.entity,
        kind=trigger.kind,
        severity=trigger.severity,
        started_at=began,
        opened_at=max(tick.at, min(began, tick.complete_at)),
        tick=tick.number,
        realert=getattr(trigger, "realert", None),
        realert_from=getattr(trigger, "realert_from", "ack"),
        owner=trigger.owner,
        explain=_explain(rules, entity_state, trigger, tick, about),
    )
    acked = rules.acks.get((entity_state.entity, trigger.name, tick.number))
    if acked is not None:
        alert.acknowledge(acked)
    return alert


def _resolve(entity_state: EntityState, alert: AlertRecord, now: float, why: str, outcome: EntityOutcome) -> None:
    alert.resolved_at, alert.resolution = max(now, alert.opened_at), why
    entity_state.alerts.pop(alert.trigger, None)
    if not any(alert is opened for opened in outcome.opened):
        outcome.resolved.append(alert)


def _explain(rules: MonitorRules, entity_state: EntityState, trigger: Trigger, tick: MonitorTick, about: Any) -> bytes:
    """Why an alert was opened: the events, the state, and the rule. It is stored with the alert."""
    said: dict[str, Any] = {
        "rule": trigger.rule(),
        "tick": tick.number,
        "at": tick.at,
        "version": rules.fold.version,
        "events": [{"id": id, "at": at} for id, at in entity_state.marks.recent],
    }
    if about is not None:
        said["occurrence"] = about
    for name, ask in (("evidence", trigger.evidence), ("features", rules.fold.explain)):
        if ask is not None:
            try:
                said[name] = ask(entity_state.state)
            except Exception as error:  # noqa: BLE001 - an explanation must not prevent an alert
                said[name] = f"not available: {describe(error)}"
    try:
        state = write_state(entity_state.state)
        said["state"] = msgspec.Raw(state) if len(state) <= MOST_EXPLAINED else f"too large: {len(state)} bytes"
        return encode(said)
    except PayloadError as error:
        return encode({"rule": trigger.rule(), "tick": tick.number, "at": tick.at, "untold": str(error)})


def _soonest(*moments: float | None) -> float | None:
    return min((moment for moment in moments if moment is not None), default=None)
