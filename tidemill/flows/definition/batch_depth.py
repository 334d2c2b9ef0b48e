"""The batches that each event class can belong to, derived from the declarations.

A step that returns a list opens a batch; the steps after it run inside the batch, and a `list[E]` parameter closes it.
The level of an event is the path of the steps whose batches it is in: `()` if it is in no batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidemill.flows.definition.events import CompensationEvent, HumanResponseEvent, StartEvent
from tidemill.flows.definition.signature import EventClass, StepSpec

Level = tuple[str, ...]


def event_levels(steps: Mapping[str, StepSpec]) -> dict[EventClass, set[Level]]:
    """Return the levels at which each event class is produced."""
    levels: dict[EventClass, set[Level]] = {}
    for spec in steps.values():
        for cls in spec.accepted_events:
            if issubclass(cls, StartEvent | HumanResponseEvent | CompensationEvent):
                levels.setdefault(cls, set()).add(())
    while _spread(steps, levels):
        pass
    return levels


def levels_of(spec: StepSpec, classes: Iterable[EventClass], levels: Mapping[EventClass, set[Level]]) -> set[Level]:
    """Return the levels at which a step may receive events of these classes."""
    classes = tuple(classes)
    found: set[Level] = set()
    for cls, places in levels.items():
        if issubclass(cls, classes) if spec.accept_event_subclasses else cls in classes:
            found |= places
    return found


def input_levels(spec: StepSpec, steps: Mapping[str, StepSpec], levels: Mapping[EventClass, set[Level]]) -> set[Level]:
    """Return the levels at which a step may run. An error handler runs at the level of the failed step."""
    if spec.is_handler:
        covered = [steps[name] for name in covered_steps(spec, steps)]
        return set().union(*(input_levels(one, steps, levels) for one in covered))
    if spec.collection_param:
        return {level[:-1] for level in levels_of(spec, spec.accepted_events, levels) if level}
    return levels_of(spec, spec.accepted_events, levels)


def covered_steps(handler: StepSpec, steps: Mapping[str, StepSpec]) -> list[str]:
    """Return the steps whose failures an error handler handles."""
    if handler.catch_error_for_steps is not None:
        return [name for name in handler.catch_error_for_steps if name in steps and not steps[name].is_handler]
    claimed = {name for one in steps.values() if one.is_handler for name in one.catch_error_for_steps or ()}
    return [name for name, one in steps.items() if not one.is_handler and name not in claimed]


def _spread(steps: Mapping[str, StepSpec], levels: dict[EventClass, set[Level]]) -> bool:
    """Propagate the levels by one step; returns whether anything changed."""
    changed = False
    for spec in steps.values():
        for level in input_levels(spec, steps, levels):
            # In a loop, a batch inside a batch of the same step has the same level; otherwise levels never end.
            inside = level if spec.name in level else (*level, spec.name)
            # A single event of such a step counts for both levels: the declaration does not say which one it is.
            for cls, place in (
                *((cls, level) for cls in spec.bare_return_types),
                *((cls, inside) for cls in (spec.return_types if spec.is_fan_out else ())),
            ):
                known = levels.setdefault(cls, set())
                if place not in known:
                    known.add(place)
                    changed = True
    return changed
