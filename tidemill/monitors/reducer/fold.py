"""Folds events into a state, in the order of their times. Pure.

An event for which the fold raises, or after which the state cannot be stored, is skipped and reported. The fold may
have changed half of the state by then, so the state is rebuilt from the last good one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidemill.core.errors import PayloadError
from tidemill.monitors.definition.event import Event, MonitorTick, Place, place_of
from tidemill.monitors.definition.monitor import Fold
from tidemill.monitors.reducer.entity_state import RECENT, Checkpoint, EntityProblem, EntityState
from tidemill.monitors.reducer.state import write_state

CHECKPOINT_EVERY = 64
CHECKPOINTS = 2


def describe(error: BaseException) -> str:
    """An error of user code in one line."""
    try:
        text = " ".join(str(error).split())
    except BaseException:  # noqa: BLE001 - its text is user code, too
        text = "its text cannot be read"
    return f"{type(error).__name__}: {text}"[:500]


def fold_all(fold: Fold, state: Any, events: Sequence[Event]) -> tuple[Any, bool]:
    """The state after these events, which must be in order, and whether all of them were folded."""
    try:
        for event in events:
            state = fold.on_event(state, event)
        return state, True
    except BaseException:  # noqa: BLE001 - `fold_one_by_one` finds the event
        return None, False


def fold_one_by_one(
    fold: Fold, before: bytes | None, events: Sequence[Event], *, check: bool = False
) -> tuple[Any, list[Event], list[EntityProblem]]:
    """Fold one event at a time from a stored state: the state, the folded events, and a problem for each skipped one.

    With `check`, an event after which the state cannot be stored is skipped as well.
    """
    kept: list[Event] = []
    since: list[Event] = []
    problems: list[EntityProblem] = []
    base = before
    state = _state_from(fold, base)
    for event in events:
        try:
            state = fold.on_event(state, event)
            if check:
                base, since = write_state(state), []
            else:
                since.append(event)
            kept.append(event)
        except BaseException as error:  # noqa: BLE001 - user code
            why = (
                f"the state cannot be stored: {describe(error)}" if isinstance(error, PayloadError) else describe(error)
            )
            problems.append(EntityProblem("fold", event.entity, f"event {event.id} was skipped: {why}"))
            state = _state_from(fold, base)
            for again in since:
                state = fold.on_event(state, again)
            base, since = write_state(state), []
    return state, kept, problems


def _state_from(fold: Fold, data: bytes | None) -> Any:
    return fold.start() if data is None else fold.read(data)


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
        problems = _fold_again(fold, entity_state, ordered, [event for event in past if event.tick <= tick.number])
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


def restore_state(fold: Fold, entity_state: EntityState) -> None:
    """Fold the state again from the last encoded one: user code has changed half of it."""
    entity_state.state, entity_state.since, _ = fold_one_by_one(fold, entity_state.raw, entity_state.since)


def _fold(
    fold: Fold, entity_state: EntityState, before: bytes | None, events: Sequence[Event], state: Any
) -> tuple[Any, list[Event], list[EntityProblem]]:
    """Fold events into a state: the new state, what was folded since `before`, and a problem for each skipped event."""
    if not entity_state.check_each:
        folded, is_done = fold_all(fold, state, events)
        if is_done:
            entity_state.since += events
            return folded, entity_state.since, []
    return fold_one_by_one(fold, before, [*entity_state.since, *events], check=entity_state.check_each)


def _fold_on(fold: Fold, entity_state: EntityState, ordered: Sequence[Event]) -> list[EntityProblem]:
    state = fold.start() if entity_state.state is None else entity_state.state
    state, kept, problems = _fold(fold, entity_state, entity_state.raw, ordered, state)
    entity_state.state, entity_state.since = state, kept
    if entity_state.check_each:
        entity_state.write()
    last = entity_state.count
    entity_state.count += len(ordered)
    entity_state.at, entity_state.id = ordered[-1].at, ordered[-1].id
    if entity_state.count // CHECKPOINT_EVERY != last // CHECKPOINT_EVERY:
        made = Checkpoint(entity_state.at, entity_state.id, entity_state.count, write_state(state))
        entity_state.checkpoints = [*entity_state.checkpoints, made][-CHECKPOINTS:]
    return problems


def _fold_again(
    fold: Fold, entity_state: EntityState, ordered: Sequence[Event], past: Sequence[Event]
) -> list[EntityProblem]:
    base = base_before(entity_state.checkpoints, ordered[0].place)
    entity_state.checkpoints = [] if base is None else [*(c for c in entity_state.checkpoints if c.place <= base.place)]
    after = None if base is None else base.place
    known = {event.id: event for event in (*past, *ordered) if after is None or event.place > after}
    events = sorted(known.values(), key=lambda event: event.place)
    before = None if base is None else base.state
    entity_state.since = []
    state, kept, problems = _fold(fold, entity_state, before, events, _state_from(fold, before))
    entity_state.state = state
    entity_state.raw, entity_state.since = before, kept
    if entity_state.check_each:
        entity_state.write()
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
