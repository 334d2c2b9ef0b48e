"""Decides what follows for one entity from the events and timers of a tick, live and in replays and backtests. Pure.

`advance` takes one entity through ticks in order. At each tick it folds the new events, calls the fold's `on_tick`, and
checks every trigger. A tick without new events counts only if the entity's timer is due. All times come from the ticks,
so that the same log gives the same alerts whenever it is read.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from tidemill.core.errors import PayloadError
from tidemill.monitors.definition.event import Event, MonitorTick
from tidemill.monitors.reducer.entity_state import EntityProblem, EntityState
from tidemill.monitors.reducer.fold import take_events
from tidemill.monitors.reducer.rules import EntityOutcome, MonitorRules
from tidemill.monitors.reducer.settings_history import SettingHistory, switched_on
from tidemill.monitors.reducer.trigger_check import check_triggers, forget_occurrences, resolve

SWITCHED_OFF = "its trigger was switched off"

T = TypeVar("T")


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
    state is encoded as it will be stored. If that is not possible, the ticks are repeated without the guilty events.
    """
    before = msgspec.structs.replace(
        entity_state,
        since=[*entity_state.since],
        marks=msgspec.structs.replace(entity_state.marks, triggers=_copies(entity_state.marks.triggers)),
        alerts=_copies(entity_state.alerts),
    )
    try:
        return _advance(rules, entity_state, arrivals, ticks, past)
    except PayloadError:
        for name in before.__struct_fields__:
            setattr(entity_state, name, getattr(before, name))
        entity_state.state = None if before.raw is None else rules.fold.read(before.raw)
        entity_state.check_each = True
        return _advance(rules, entity_state, arrivals, ticks, past)


def _copies(structs: Mapping[str, T]) -> dict[str, T]:
    return {name: msgspec.structs.replace(each) for name, each in structs.items()}  # pyright: ignore[reportArgumentType]


def _advance(
    rules: MonitorRules,
    entity_state: EntityState,
    arrivals: Mapping[int, Sequence[Event]],
    ticks: TickIndex,
    past: Sequence[Event],
) -> EntityOutcome:
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
        if any(done < number <= tick.number for number in entity_state.added):
            entity_state.marks.expected_from = tick.at
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
    check_triggers(rules, entity_state, tick, outcome, came)


def _switch_off(rules: MonitorRules, entity_state: EntityState, after: int, upto: int, outcome: EntityOutcome) -> None:
    """Resolve the open alerts of triggers that were switched off during these ticks."""
    for step in rules.off.between(after, upto):
        for name in step.value:
            if (alert := entity_state.alerts.get(name)) is not None:
                resolve(entity_state, alert, max(step.at, alert.opened_at), SWITCHED_OFF, outcome)


def rebuild(rules: MonitorRules, entity_state: EntityState, history: Sequence[Event]) -> list[EntityProblem]:
    """Rebuild a state from events that were evaluated before; no alert follows from them."""
    if not history:
        return []
    last, seen = entity_state.place, entity_state.last_at
    tick = MonitorTick(entity_state.folded, history[-1].at)
    try:
        problems = _take_again(rules, entity_state, history, tick)
    except PayloadError:
        entity_state.check_each = True
        problems = _take_again(rules, entity_state, history, tick)
    entity_state.last_at = seen
    if (
        last is not None
        and entity_state.at is not None
        and entity_state.place is not None
        and entity_state.place < last
    ):
        entity_state.at, _, entity_state.id = last
    return problems


def _take_again(
    rules: MonitorRules, entity_state: EntityState, history: Sequence[Event], tick: MonitorTick
) -> list[EntityProblem]:
    entity_state.state, entity_state.raw, entity_state.count, entity_state.checkpoints = None, None, 0, []
    entity_state.at, entity_state.since = None, []
    problems, _ = take_events(rules.fold, entity_state, history, tick)
    forget_occurrences(rules, entity_state)
    entity_state.write()
    return problems
