"""Which batch an event belongs to, as far as the declarations tell.

A step that returns a list opens a batch; the steps behind it work inside, and a `list[E]` parameter closes it. The
level of an event is the path of steps whose batches it is in: `()` for what is in none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidemill.flows.definition.events import HumanResponseEvent, StartEvent
from tidemill.flows.definition.signature import EventClass, StepSpec

Level = tuple[str, ...]


def event_levels(steps: Mapping[str, StepSpec]) -> dict[EventClass, set[Level]]:
    """The levels at which each event class is produced."""
    levels: dict[EventClass, set[Level]] = {}
    for spec in steps.values():
        for cls in spec.accepted_events:
            if issubclass(cls, StartEvent | HumanResponseEvent):
                levels.setdefault(cls, set()).add(())
    while _spread(steps, levels):
        pass
    return levels


def levels_of(spec: StepSpec, classes: Iterable[EventClass], levels: Mapping[EventClass, set[Level]]) -> set[Level]:
    """The levels at which a step may get events of these classes."""
    classes = tuple(classes)
    found: set[Level] = set()
    for cls, places in levels.items():
        if issubclass(cls, classes) if spec.accept_event_subclasses else cls in classes:
            found |= places
    return found


def input_levels(spec: StepSpec, steps: Mapping[str, StepSpec], levels: Mapping[EventClass, set[Level]]) -> set[Level]:
    """The levels at which a step may run. An error handler runs where the step that failed did."""
    if spec.is_handler:
        covered = [steps[name] for name in covered_steps(spec, steps)]
        return set().union(*(input_levels(one, steps, levels) for one in covered))
    if spec.collection_param:
        return {level[:-1] for level in levels_of(spec, spec.accepted_events, levels) if level}
    return levels_of(spec, spec.accepted_events, levels)


def covered_steps(handler: StepSpec, steps: Mapping[str, StepSpec]) -> list[str]:
    """The steps whose failures come to an error handler."""
    if handler.catch_error_for_steps is not None:
        return [name for name in handler.catch_error_for_steps if name in steps and not steps[name].is_handler]
    claimed = {name for one in steps.values() if one.is_handler for name in one.catch_error_for_steps or ()}
    return [name for name, one in steps.items() if not one.is_handler and name not in claimed]


def _spread(steps: Mapping[str, StepSpec], levels: dict[EventClass, set[Level]]) -> bool:
    """Carry the levels one step further; whether anything was new."""
    changed = False
    for spec in steps.values():
        for level in input_levels(spec, steps, levels):
            # A batch inside a batch of the same step, in a loop, is no deeper than the first: else there is no end.
            inside = level if spec.name in level else (*level, spec.name)
            # What a step with batches returns alone counts for both: its declaration does not tell when it does which.
            for cls, place in (
                *((cls, level) for cls in spec.bare_return_types),
                *((cls, inside) for cls in (spec.return_types if spec.is_fan_out else ())),
            ):
                known = levels.setdefault(cls, set())
                if place not in known:
                    known.add(place)
                    changed = True
    return changed
