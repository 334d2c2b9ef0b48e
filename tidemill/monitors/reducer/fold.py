"""Folds events into a state, in the order of their times. Pure.

An event for which the fold raises is skipped and reported. The fold may have changed half of the state by then, so the
state is rebuilt from the last good one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidemill.monitors.definition.event import Event, MonitorTick, Place, place_of
from tidemill.monitors.definition.monitor import Fold
from tidemill.monitors.reducer.entity_state import RECENT, Checkpoint, EntityProblem, EntityState
from tidemill.monitors.reducer.state import write_state

CHECKPOINT_EVERY = 64
CHECKPOINTS = 2


def describe(error: BaseException) -> str:
    """An error of user code in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:500]


def fold_all(fold: Fold, state: Any, events: Sequence[Event]) -> tuple[Any, list[EntityProblem]]:
    """The state after these events, which must be in order, and a problem if one of them failed."""
    try:
        for event in events:
            state = fold.on_event(state, event)
        return state, []
    except Exception:  # noqa: BLE001 - `fold_one_by_one` finds the event
        return None, [EntityProblem("fold", events[0].entity, "")]


def fold_one_by_one(fold: Fold, before: bytes | None, events: Sequence[Event]) -> tuple[Any, list[EntityProblem]]:
    """Fold one event at a time from a stored state, skipping those that fail."""
    good: list[Event] = []
    problems: list[EntityProblem] = []
    state = fold.start() if before is None else fold.read(before)
    for event in events:
        try:
            state = fold.on_event(state, event)
            good.append(event)
        except Exception as error:  # noqa: BLE001 - user code
            problems.append(EntityProblem("fold", event.entity, f"event {event.id} was skipped: {describe(error)}"))
            state = fold.start() if before is None else fold.read(before)
            for again in good:
                state = fold.on_event(state, again)
    return state, problems


def take_events(
    fold: Fold, entity_state: EntityState, events: Sequence[Event], tick: MonitorTick, *, past: Sequence[Event] = ()
) -> tuple[list[EntityProblem], bool]:
    """Fold new events into an entity; returns the problems, and whether some events were late.

    `past` are the events after the newest checkpoint before a late event: they are folded again.
    """
    ordered = sorted(events, key=lambda event: event.place)
    place = entity_state.place
    late = place is not None and ordered[0].place < place
    if late:
        problems = _fold_anew(fold, entity_state, ordered, [event for event in past if event.tick <= tick.number])
    else:
        problems = _fold_on(fold, entity_state, ordered)
    newest = ordered[-1]
    if place is None or newest.place > place:
        entity_state.at, entity_state.id = newest.at, newest.id
    # A source whose clock is ahead must not hide that an entity is silent.
    entity_state.last_at = max(entity_state.last_at or 0.0, min(newest.at, tick.complete_at))
    recent = [*entity_state.marks.recent, *((event.id, event.at) for event in ordered[-RECENT:])]
    if late:
        recent.sort(key=lambda seen: place_of(seen[1], seen[0]))
    entity_state.marks.recent = recent[-RECENT:]
    return problems, late


def _fold_on(fold: Fold, entity_state: EntityState, ordered: Sequence[Event]) -> list[EntityProblem]:
    state = fold.start() if entity_state.state is None else entity_state.state
    state, problems = fold_all(fold, state, ordered)
    if problems:
        state, problems = fold_one_by_one(fold, entity_state.raw, [*entity_state.since, *ordered])
    entity_state.state = state
    entity_state.since += ordered
    last = entity_state.count
    entity_state.count += len(ordered)
    entity_state.at, entity_state.id = ordered[-1].at, ordered[-1].id
    if entity_state.count // CHECKPOINT_EVERY != last // CHECKPOINT_EVERY:
        made = Checkpoint(entity_state.at, entity_state.id, entity_state.count, write_state(state))
        entity_state.checkpoints = [*entity_state.checkpoints, made][-CHECKPOINTS:]
    return problems


def _fold_anew(
    fold: Fold, entity_state: EntityState, ordered: Sequence[Event], past: Sequence[Event]
) -> list[EntityProblem]:
    base = base_before(entity_state.checkpoints, ordered[0].place)
    entity_state.checkpoints = [] if base is None else [*(c for c in entity_state.checkpoints if c.place <= base.place)]
    after = None if base is None else base.place
    known = {event.id: event for event in (*past, *ordered) if after is None or event.place > after}
    events = sorted(known.values(), key=lambda event: event.place)
    before = None if base is None else base.state
    state, problems = fold_all(fold, fold.start() if before is None else fold.read(before), events)
    if problems:
        state, problems = fold_one_by_one(fold, before, events)
    entity_state.state = state
    entity_state.raw, entity_state.since = before, events
    entity_state.count = (0 if base is None else base.count) + len(events)
    return problems


def base_before(checkpoints: Sequence[Checkpoint], place: Place) -> Checkpoint | None:
    """The newest checkpoint before a late event."""
    return max((c for c in checkpoints if c.place < place), key=lambda c: c.place, default=None)


def first_late(standing_place: Place | None, batches: Sequence[Sequence[Event]]) -> Place | None:
    """The earliest place of an event in these batches that is behind what was folded before it."""
    late: Place | None = None
    place = standing_place
    for batch in batches:
        places = [event.place for event in batch]
        first, last = min(places), max(places)
        if place is not None and first < place:
            late = first if late is None else min(late, first)
        place = last if place is None else max(place, last)
    return late
