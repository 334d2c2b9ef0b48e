"""Folds events into a state, in the order of their times. Pure.

An event for which the fold raises is skipped and reported. The fold may have changed half of the state by then, so the
state is rebuilt from the last good one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidemill.monitors.definition.event import Event, Place, Tick, place_of
from tidemill.monitors.definition.monitor import Fold
from tidemill.monitors.reducer.entity_state import RECENT, Checkpoint, Problem, Standing
from tidemill.monitors.reducer.state import write_state

CHECKPOINT_EVERY = 64
CHECKPOINTS = 2


def describe(error: BaseException) -> str:
    """An error of user code in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:500]


def fold_all(fold: Fold, state: Any, events: Sequence[Event]) -> tuple[Any, list[Problem]]:
    """The state after these events, which must be in order, and a problem if one of them failed."""
    try:
        for event in events:
            state = fold.on_event(state, event)
        return state, []
    except Exception:  # noqa: BLE001 - `fold_carefully` finds the event
        return None, [Problem("fold", events[0].entity, "")]


def fold_carefully(fold: Fold, before: bytes | None, events: Sequence[Event]) -> tuple[Any, list[Problem]]:
    """Fold one event at a time from a stored state, skipping those that fail."""
    good: list[Event] = []
    problems: list[Problem] = []
    state = fold.start() if before is None else fold.read(before)
    for event in events:
        try:
            state = fold.on_event(state, event)
            good.append(event)
        except Exception as error:  # noqa: BLE001 - user code
            problems.append(Problem("fold", event.entity, f"event {event.id} was skipped: {describe(error)}"))
            state = fold.start() if before is None else fold.read(before)
            for again in good:
                state = fold.on_event(state, again)
    return state, problems


def take_events(
    fold: Fold, standing: Standing, events: Sequence[Event], tick: Tick, *, past: Sequence[Event] = ()
) -> tuple[list[Problem], bool]:
    """Fold new events into an entity; returns the problems, and whether some events were late.

    `past` are the events after the newest checkpoint before a late event: they are folded again.
    """
    ordered = sorted(events, key=lambda event: event.place)
    place = standing.place
    late = place is not None and ordered[0].place < place
    if late:
        problems = _fold_anew(fold, standing, ordered, [event for event in past if event.tick <= tick.number])
    else:
        problems = _fold_on(fold, standing, ordered)
    newest = ordered[-1]
    if place is None or newest.place > place:
        standing.at, standing.id = newest.at, newest.id
    # A source whose clock is ahead must not hide that an entity is silent.
    standing.last_at = max(standing.last_at or 0.0, min(newest.at, tick.complete_at))
    recent = [*standing.marks.recent, *((event.id, event.at) for event in ordered[-RECENT:])]
    if late:
        recent.sort(key=lambda seen: place_of(seen[1], seen[0]))
    standing.marks.recent = recent[-RECENT:]
    return problems, late


def _fold_on(fold: Fold, standing: Standing, ordered: Sequence[Event]) -> list[Problem]:
    state = fold.start() if standing.state is None else standing.state
    state, problems = fold_all(fold, state, ordered)
    if problems:
        state, problems = fold_carefully(fold, standing.raw, [*standing.since, *ordered])
    standing.state = state
    standing.since += ordered
    last = standing.count
    standing.count += len(ordered)
    standing.at, standing.id = ordered[-1].at, ordered[-1].id
    if standing.count // CHECKPOINT_EVERY != last // CHECKPOINT_EVERY:
        made = Checkpoint(standing.at, standing.id, standing.count, write_state(state))
        standing.checkpoints = [*standing.checkpoints, made][-CHECKPOINTS:]
    return problems


def _fold_anew(fold: Fold, standing: Standing, ordered: Sequence[Event], past: Sequence[Event]) -> list[Problem]:
    base = base_before(standing.checkpoints, ordered[0].place)
    standing.checkpoints = [] if base is None else [*(c for c in standing.checkpoints if c.place <= base.place)]
    after = None if base is None else base.place
    known = {event.id: event for event in (*past, *ordered) if after is None or event.place > after}
    events = sorted(known.values(), key=lambda event: event.place)
    before = None if base is None else base.state
    state, problems = fold_all(fold, fold.start() if before is None else fold.read(before), events)
    if problems:
        state, problems = fold_carefully(fold, before, events)
    standing.state = state
    standing.raw, standing.since = before, events
    standing.count = (0 if base is None else base.count) + len(events)
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
