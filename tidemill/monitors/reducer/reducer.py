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
from tidemill.monitors.definition.event import Event, Tick
from tidemill.monitors.definition.monitor import Fold
from tidemill.monitors.definition.triggers import Absent, Momentary, Sustained, Trigger
from tidemill.monitors.reducer.entity_state import AlertRecord, Mark, Problem, Standing
from tidemill.monitors.reducer.fold import describe, take_events
from tidemill.monitors.reducer.settings_history import Steps, switched_on
from tidemill.monitors.reducer.state import write_state

SWITCHED_OFF = "its trigger was switched off"
MOST_EXPLAINED = 20_000


class Rules(msgspec.Struct, frozen=True):
    """The fold and the triggers of a monitor."""

    monitor: str
    fold: Fold
    triggers: tuple[Trigger, ...]
    acks: Mapping[tuple[str, str, int], float] = {}
    """For a replay: when the alert of an entity and trigger that a tick opened was acknowledged."""
    off: Steps = Steps(())
    """Which triggers are switched off at each tick."""


class Ticks:
    """Ticks in order, with lookup by number and by time."""

    def __init__(self, ticks: Iterable[Tick]) -> None:
        self._ticks = sorted(ticks)
        self.numbers = [tick.number for tick in self._ticks]
        self.times = [tick.at for tick in self._ticks]

    def __len__(self) -> int:
        return len(self._ticks)

    def __getitem__(self, position: int) -> Tick:
        return self._ticks[position]


class Outcome(msgspec.Struct):
    """What must be stored for one entity."""

    opened: list[AlertRecord] = []
    resolved: list[AlertRecord] = []
    problems: list[Problem] = []
    late: int = 0


class Verdict(msgspec.Struct, frozen=True):
    """Whether the condition of a trigger holds now, since when, and when to check it again."""

    holds: bool
    since: float | None = None
    due: float | None = None


def advance(
    rules: Rules,
    standing: Standing,
    arrivals: Mapping[int, Sequence[Event]],
    ticks: Ticks,
    *,
    past: Sequence[Event] = (),
) -> Outcome:
    """Take an entity through ticks, up to the last of them.

    `arrivals` are its events by the number of their tick; `ticks` are all ticks that count, in order. At the end the
    state is encoded as it will be stored.
    """
    outcome = Outcome()
    position, stop = bisect_right(ticks.numbers, standing.folded), 0
    last = ticks.numbers[-1] if len(ticks) else standing.folded
    looks = {number for number in arrivals if number > standing.folded}
    looks.update(switched_on(rules.off, standing.folded, last))
    turns = standing.turns or Steps(standing.labels)
    looks.update(step.tick for step in turns.between(standing.folded, last))
    stops = sorted({bisect_left(ticks.numbers, number) for number in looks})
    done = standing.folded
    while True:
        at = stops[stop] if stop < len(stops) else len(ticks)
        if standing.due is not None:
            at = min(at, bisect_left(ticks.times, standing.due, lo=position))
        if at >= len(ticks):
            break
        tick = ticks[at]
        _switch_off(rules, standing, done, tick.number, outcome)
        done = tick.number
        standing.labels = turns.at(tick.number)
        look(rules, standing, arrivals.get(tick.number, ()), tick, outcome, past=past)
        if stop < len(stops) and at == stops[stop]:
            stop += 1
        position = at + 1
    _switch_off(rules, standing, done, last, outcome)
    if standing.state is not None:
        standing.write()
    standing.folded = max(standing.folded, last)
    return outcome


def look(
    rules: Rules,
    standing: Standing,
    came: Sequence[Event],
    tick: Tick,
    outcome: Outcome,
    *,
    past: Sequence[Event] = (),
) -> None:
    """One tick of one entity: fold the new events, then check every trigger."""
    if came:
        problems, late = take_events(rules.fold, standing, came, tick, past=past)
        outcome.problems += problems
        outcome.late += late
    settle(rules, standing, tick, outcome, folded=bool(came))


def _switch_off(rules: Rules, standing: Standing, after: int, upto: int, outcome: Outcome) -> None:
    """Resolve the open alerts of triggers that were switched off during these ticks."""
    for step in rules.off.between(after, upto):
        for name in step.value:
            if (alert := standing.alerts.get(name)) is not None:
                _resolve(standing, alert, max(step.at, alert.opened_at), SWITCHED_OFF, outcome)


def rebuild(rules: Rules, standing: Standing, history: Sequence[Event]) -> list[Problem]:
    """Rebuild a state from events that were evaluated before; no alert follows from them."""
    if not history:
        return []
    standing.state, standing.raw, standing.count, standing.checkpoints = None, None, 0, []
    last, seen = standing.place, standing.last_at
    standing.at = None
    problems, _ = take_events(rules.fold, standing, history, Tick(standing.folded, history[-1].at))
    standing.last_at = seen
    if last is not None and standing.at is not None and standing.place is not None and standing.place < last:
        standing.at, standing.id = last[0], last[2]
    forget_occurrences(rules, standing)
    standing.write()
    return problems


def settle(rules: Rules, standing: Standing, tick: Tick, outcome: Outcome, *, folded: bool) -> None:
    """Call the fold's `on_tick`, check every trigger, and set the next timer."""
    now = tick.at
    if standing.state is None:
        standing.state = rules.fold.start()
    dues: list[float | None] = []
    off = rules.off.at(tick.number)
    if folded:
        try:
            dues.append(rules.fold.on_tick(standing.state, now))
        except Exception as error:  # noqa: BLE001 - user code
            outcome.problems.append(Problem("fold", standing.entity, f"on_tick: {describe(error)}"))
    for trigger in rules.triggers:
        if trigger.name in off:
            continue
        try:
            if isinstance(trigger, Momentary):
                _raise_occurrences(rules, standing, trigger, tick, outcome)
            elif isinstance(trigger, Sustained | Absent):
                dues.append(_follow(rules, standing, trigger, tick, outcome, folded=folded))
        except Exception as error:  # noqa: BLE001 - user code: the other triggers go on
            outcome.problems.append(Problem(f"trigger {trigger.name}", standing.entity, describe(error)))
    forget_occurrences(rules, standing)
    later = [due for due in dues if due is not None and due > now]
    standing.due = min(later, default=None)


def forget_occurrences(rules: Rules, standing: Standing) -> None:
    """Clear the lists of occurrences: all of them have been checked."""
    for trigger in rules.triggers:
        if isinstance(trigger, Momentary):
            try:
                seen = trigger.of(standing.state)
            except Exception:  # noqa: BLE001, S112 - reported where the trigger was checked
                continue
            if isinstance(seen, list):
                seen.clear()


def _raise_occurrences(rules: Rules, standing: Standing, trigger: Momentary, tick: Tick, outcome: Outcome) -> None:
    for occurrence in list(trigger.of(standing.state) or ()):
        if trigger.when is not None and not trigger.when(occurrence):
            continue
        moment = trigger.moment_of(occurrence)
        alert = _alert(rules, standing, trigger, tick, tick.at if moment is None else moment, about=occurrence)
        alert.key = trigger.key_of(occurrence)
        alert.resolved_at, alert.resolution = tick.at, "momentary"
        outcome.opened.append(alert)


def _follow(
    rules: Rules, standing: Standing, trigger: Sustained | Absent, tick: Tick, outcome: Outcome, *, folded: bool
) -> float | None:
    """Open, keep or resolve the alert of a lasting condition; returns when to check again."""
    now = tick.at
    verdict = judge(trigger, standing, now, folded=folded)
    mark = standing.marks.triggers.setdefault(trigger.name, Mark())
    alert = standing.alerts.get(trigger.name)
    due = verdict.due
    if verdict.holds:
        mark.clear = None
        if mark.since is None:
            mark.since, mark.began = now, verdict.since
        if alert is None:
            if now < mark.since + trigger.hold:
                return _soonest(due, mark.since + trigger.hold)
            began = now if mark.began is None else min(mark.began, tick.complete_at)
            alert = standing.alerts[trigger.name] = _alert(rules, standing, trigger, tick, began)
            outcome.opened.append(alert)
        elif alert.realert_at is not None and alert.realert_at <= now:
            _resolve(standing, alert, now, "still so after its acknowledgement", outcome)
            fresh = standing.alerts[trigger.name] = _alert(rules, standing, trigger, tick, alert.started_at)
            fresh.again_after = alert.id or None
            outcome.opened.append(fresh)
            alert = fresh
        return _soonest(due, alert.realert_at)
    mark.since = mark.began = None
    if alert is None:
        standing.marks.triggers.pop(trigger.name, None)
        return due
    if trigger.clear:
        mark.clear = now if mark.clear is None else mark.clear
        if now < mark.clear + trigger.clear:
            return _soonest(due, mark.clear + trigger.clear)
    standing.marks.triggers.pop(trigger.name, None)
    _resolve(standing, alert, now, "cleared", outcome)
    return due


def judge(trigger: Sustained | Absent, standing: Standing, now: float, *, folded: bool) -> Verdict:
    """Whether a lasting condition holds now, since when, and when this may change without an event."""
    if isinstance(trigger, Absent):
        return _judge_absence(trigger, standing, now)
    due = None if trigger.recheck is None else now + trigger.recheck
    if not trigger.when(standing.state, now):
        return Verdict(False, due=due)
    since = None if trigger.since is None else trigger.since(standing.state)
    if since is None:
        since = standing.at if folded and standing.at is not None else now
    return Verdict(True, since, due)


def _judge_absence(trigger: Absent, standing: Standing, now: float) -> Verdict:
    if standing.last_at is None or standing.labels.get("present") is False:
        return Verdict(False)
    moment = standing.last_at + trigger.after
    end = None
    if trigger.hours is not None:
        stretch = trigger.hours.around(standing.last_at)
        if stretch is None or moment >= stretch[1] or now >= stretch[1]:
            return Verdict(False)
        end = stretch[1]
    if now < moment:
        return Verdict(False, due=moment)
    if trigger.only_while is not None and not trigger.only_while(standing.state, now):
        return Verdict(False)
    return Verdict(True, moment, end)


def _alert(
    rules: Rules, standing: Standing, trigger: Trigger, tick: Tick, began: float, *, about: Any = None
) -> AlertRecord:
    alert = AlertRecord(
        monitor=rules.monitor,
        trigger=trigger.name,
        entity=standing.entity,
        kind=trigger.kind,
        severity=trigger.severity,
        started_at=began,
        opened_at=max(tick.at, min(began, tick.complete_at)),
        tick=tick.number,
        realert=getattr(trigger, "realert", None),
        realert_from=getattr(trigger, "realert_from", "ack"),
        owner=trigger.owner,
        explain=_explain(rules, standing, trigger, tick, about),
    )
    acked = rules.acks.get((standing.entity, trigger.name, tick.number))
    if acked is not None:
        alert.acknowledge(acked)
    return alert


def _resolve(standing: Standing, alert: AlertRecord, now: float, why: str, outcome: Outcome) -> None:
    alert.resolved_at, alert.resolution = max(now, alert.opened_at), why
    standing.alerts.pop(alert.trigger, None)
    if not any(alert is opened for opened in outcome.opened):
        outcome.resolved.append(alert)


def _explain(rules: Rules, standing: Standing, trigger: Trigger, tick: Tick, about: Any) -> bytes:
    """Why an alert was opened: the events, the state, and the rule. It is stored with the alert."""
    said: dict[str, Any] = {
        "rule": trigger.rule(),
        "tick": tick.number,
        "at": tick.at,
        "version": rules.fold.version,
        "events": [{"id": id, "at": at} for id, at in standing.marks.recent],
    }
    if about is not None:
        said["occurrence"] = about
    for name, ask in (("evidence", trigger.evidence), ("features", rules.fold.explain)):
        if ask is not None:
            try:
                said[name] = ask(standing.state)
            except Exception as error:  # noqa: BLE001 - an explanation must not prevent an alert
                said[name] = f"not available: {describe(error)}"
    try:
        state = write_state(standing.state)
        said["state"] = msgspec.Raw(state) if len(state) <= MOST_EXPLAINED else f"too large: {len(state)} bytes"
        return encode(said)
    except PayloadError as error:
        return encode({"rule": trigger.rule(), "tick": tick.number, "at": tick.at, "untold": str(error)})


def _soonest(*moments: float | None) -> float | None:
    return min((moment for moment in moments if moment is not None), default=None)
