"""Validate the declaration of a workflow before it runs.

A workflow must have exactly one class of `StartEvent` and one of `StopEvent`; otherwise its creation raises a
`WorkflowConfigurationError`. These rules raise a `WorkflowValidationError`:

- every event that is produced is taken by a step, and every event that a step takes is produced;
- a step takes lists or sets of events only if a batch can contain them;
- each step can be reached and leads to an end (`reachability`, `dead_end`, `terminal_event`: these three
  can be switched off, for a workflow or for a step);
- no two error handlers handle the same step;
- configuration files of resources exist and fit their models.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from tidemill.flows.definition.batch_depth import covered_steps, event_levels, levels_of
from tidemill.flows.definition.events import (
    CompensationEvent,
    HumanResponseEvent,
    InputRequiredEvent,
    StartEvent,
    StepFailedEvent,
    StopEvent,
)
from tidemill.flows.definition.resource import ConfigResource, ResourceDescriptor, ResourceManager
from tidemill.flows.definition.signature import EventClass, StepSpec
from tidemill.flows.errors import (
    ResourceFileError,
    StateTypeError,
    WorkflowConfigurationError,
    WorkflowValidationError,
)

GRAPH_CHECKS = frozenset({"reachability", "dead_end", "terminal_event"})

Steps = Mapping[str, StepSpec]


def find_start_class(steps: Steps, workflow: str) -> type[StartEvent]:
    """Return the only class of start event that the steps take."""
    taken = (cls for spec in steps.values() for cls in spec.accepted_events)
    return _the_only(StartEvent, taken, workflow, "received by")


def find_stop_class(steps: Steps, workflow: str) -> type[StopEvent]:
    """Return the only class of stop event that the steps return."""
    given = (cls for spec in steps.values() for cls in spec.return_types)
    return _the_only(StopEvent, given, workflow, "returned by")


def find_state_type(steps: Steps) -> Any:
    """Return the most derived state type that a step declares; None if no step declares one."""
    kinds = (spec.context_state_type for spec in steps.values())
    declared = {kind: None for kind in kinds if isinstance(kind, type) and kind is not Any}
    for candidate in declared:
        if all(issubclass(candidate, other) for other in declared):
            return candidate
    if declared:
        names = ", ".join(sorted(one.__name__ for one in declared))
        raise StateTypeError(
            "Multiple state types are not in a compatible inheritance hierarchy: the steps declare "
            f"{names}; use one of them, or make one a subclass of the others"
        )
    return None


def check_names(skip_graph_checks: Collection[str]) -> None:
    """Raise if the name of a graph check is unknown."""
    if unknown := sorted(set(skip_graph_checks) - GRAPH_CHECKS):
        known = ", ".join(sorted(GRAPH_CHECKS))
        raise WorkflowValidationError(f"Unknown graph check names: {', '.join(unknown)}. Valid names are: {known}")


def validate_steps(steps: Steps, skip_graph_checks: Collection[str] = ()) -> bool:
    """Raise a `WorkflowValidationError` for the first problem; returns True if the workflow asks for human input."""
    check_handlers(steps)
    _check_stop_is_final(steps)
    _check_produced_and_taken(steps)
    _check_joins(steps)
    _check_graph(steps, frozenset(skip_graph_checks))
    return any(issubclass(cls, InputRequiredEvent) for spec in steps.values() for cls in spec.return_types) or any(
        issubclass(cls, HumanResponseEvent) for spec in steps.values() for cls in spec.accepted_events
    )


def check_renames(steps: Steps) -> None:
    """Raise if a former name of a step is the name of another step, or the former name of two."""
    claimed: dict[str, str] = {}
    for spec in steps.values():
        for old in spec.renamed_from:
            if old in steps:
                raise WorkflowValidationError(
                    f"Step '{spec.name}' was renamed from '{old}', but the workflow has a step '{old}' as well; "
                    "give one of them another name"
                )
            if old in claimed:
                raise WorkflowValidationError(
                    f"Steps '{claimed[old]}' and '{spec.name}' are both renamed from '{old}'; keep one"
                )
            claimed[old] = spec.name


def check_handlers(steps: Steps) -> None:
    """Raise if an error handler names an invalid step, or if two handlers would handle the same failure."""
    wildcards: list[str] = []
    claimed: dict[str, str] = {}
    for handler in steps.values():
        if not handler.is_handler:
            continue
        if handler.catch_error_for_steps is None:
            wildcards.append(handler.name)
        for name in handler.catch_error_for_steps or ():
            if name not in steps:
                raise WorkflowValidationError(
                    f"@catch_error handler '{handler.name}' lists unknown step '{name}' in for_steps"
                )
            if steps[name].is_handler:
                raise WorkflowValidationError(
                    f"@catch_error handler '{handler.name}' cannot cover another handler step '{name}'"
                )
            if name in claimed:
                raise WorkflowValidationError(
                    f"Step '{name}' is claimed by two @catch_error handlers: '{claimed[name]}' and "
                    f"'{handler.name}'; keep one"
                )
            claimed[name] = handler.name
    if len(wildcards) > 1:
        raise WorkflowValidationError(
            f"Only one wildcard @catch_error handler is allowed per workflow, found {len(wildcards)}: "
            f"{', '.join(wildcards)}; keep one, or give for_steps"
        )


def validate_resource_configs(steps: Steps) -> None:
    """Raise if a configuration file that a step needs cannot be read."""
    problems = []
    for spec in steps.values():
        for definition in spec.resources:
            for config in _configs_behind(definition.resource):
                try:
                    config.load()
                except (ResourceFileError, ValidationError) as error:
                    problems.append(f"In step '{spec.name}', parameter '{definition.name}': {error}")
    if problems:
        raise WorkflowValidationError("Resource config validation failed:\n  - " + "\n  - ".join(problems))


def validate_resources(steps: Steps, manager: ResourceManager) -> None:
    """Raise unless every resource that a step needs can be created; creates them."""
    problems: list[tuple[str, Exception]] = []

    async def create_all() -> None:
        for spec in steps.values():
            for definition in spec.resources:
                try:
                    await manager.get(definition.resource)
                except Exception as error:  # noqa: BLE001 - a factory is user code
                    problems.append((f"In step '{spec.name}', parameter '{definition.name}': {error}", error))

    # In a thread, because the caller may be in an event loop and this is a plain function.
    creating = threading.Thread(target=lambda: asyncio.run(create_all()))
    creating.start()
    creating.join()
    if problems:
        lines = "\n  - ".join(line for line, _ in problems)
        raise WorkflowValidationError(f"Resource validation failed:\n  - {lines}") from problems[0][1]


def _the_only(base: Any, classes: Iterable[EventClass], workflow: str, used: str) -> Any:
    found = {cls: None for cls in classes if issubclass(cls, base)}
    if len(found) == 1:
        return next(iter(found))
    if not found:
        raise WorkflowConfigurationError(
            f"At least one Event of type {base.__name__} must be {used} any step: workflow '{workflow}' has none"
        )
    names = ", ".join(cls.__name__ for cls in found)
    raise WorkflowConfigurationError(
        f"Only one type of {base.__name__} is allowed per workflow, found {len(found)}: {names} in workflow "
        f"'{workflow}'; keep one"
    )


def _check_stop_is_final(steps: Steps) -> None:
    for spec in steps.values():
        for cls in spec.accepted_events:
            if issubclass(cls, StopEvent):
                raise WorkflowValidationError(
                    f"Step '{spec.name}' cannot accept {cls.__name__}: the run ends when a StopEvent is returned; "
                    "use an event of your own"
                )


def _check_produced_and_taken(steps: Steps) -> None:
    produced = {cls: None for spec in steps.values() for cls in spec.return_types}
    taken = {cls: None for spec in steps.values() for cls in spec.accepted_events}
    tolerant = tuple(cls for spec in steps.values() if spec.accept_event_subclasses for cls in spec.accepted_events)
    from_outside = (StartEvent, HumanResponseEvent, StepFailedEvent, CompensationEvent)
    missing = [
        cls
        for cls in taken
        if cls not in produced
        and not issubclass(cls, from_outside)
        and not (cls in tolerant and any(issubclass(other, cls) for other in produced))
    ]
    if missing:
        raise WorkflowValidationError(
            f"The following events are consumed but never produced: {_names(missing)}; "
            "if a step sends it with ctx.send_event, add it to what that step returns"
        )
    to_outside = (StopEvent, InputRequiredEvent, HumanResponseEvent)  # the graph checks cover the last one
    unused = [cls for cls in produced if cls not in taken and not issubclass(cls, (*to_outside, *tolerant))]
    if unused:
        raise WorkflowValidationError(
            f"The following events are produced but never consumed: {_names(unused)}; no step takes them"
        )


def _check_joins(steps: Steps) -> None:
    levels = event_levels(steps)
    for spec in steps.values():
        if spec.collection_param:
            name, members = spec.collection_param
            alone = [cls for cls in members if not any(levels_of(spec, [cls], levels))]
            if alone:
                raise WorkflowValidationError(
                    f"Step '{spec.name}' parameter '{name}' collects list[{_names(alone)}], but no returned-list "
                    "producer creates a batch of them; return a list, or use ctx.collect_events"
                )
        elif spec.collect_params:
            places = {name: levels_of(spec, [cls], levels) for name, cls in spec.collect_params}
            if not set.intersection(*places.values()):
                levels_text = "; ".join(f"{name} {_describe_levels(levels)}" for name, levels in places.items())
                raise WorkflowValidationError(
                    f"Step '{spec.name}' joins event parameters that are never produced at a common stream level: "
                    f"{levels_text}"
                )


def _check_graph(steps: Steps, skipped: frozenset[str]) -> None:
    problems = []
    if "reachability" not in skipped:
        reached = _reached(steps)
        if lost := [name for name in steps if name not in reached and not _skips(steps[name], "reachability")]:
            problems.append(
                f"[reachability] Unreachable steps: {', '.join(lost)}; nothing leads there from a start or a response"
            )
    if "terminal_event" not in skipped:
        loose = {
            cls: None
            for spec in steps.values()
            for cls in spec.return_types
            if not issubclass(cls, StopEvent | InputRequiredEvent)
            and not any(one.accepts(cls) for one in steps.values())
            and not _skips(spec, "terminal_event")
        }
        if loose:
            problems.append(f"[terminal_event] Events produced but never consumed: {_names(loose)}; no step takes them")
    if "dead_end" not in skipped:
        ending = _ending(steps)
        stuck = [
            name
            for name, spec in steps.items()
            if spec.return_types and name not in ending and not _skips(spec, "dead_end")
        ]
        if stuck:
            problems.append(
                f"[dead_end] Dead-end steps: {', '.join(stuck)}; nothing leads from there to a stop or an input request"
            )
    if problems:
        raise WorkflowValidationError("Graph validation failed:\n  - " + "\n  - ".join(problems))


def _reached(steps: Steps) -> set[str]:
    """Return the steps that a start event, a human response or a failure can reach."""
    taken = {cls for spec in steps.values() for cls in spec.accepted_events}
    arriving = {cls for cls in taken if issubclass(cls, StartEvent | HumanResponseEvent | CompensationEvent)}
    reached: set[str] = set()
    found = True
    while found:
        found = {
            name
            for name, spec in steps.items()
            if name not in reached
            and (
                not (covered := covered_steps(spec, steps)) or any(one in reached for one in covered)
                if spec.is_handler
                else any(spec.accepts(cls) for cls in arriving)
            )
        }
        reached |= found
        arriving |= {cls for name in found for cls in steps[name].return_types}
    return reached


def _ending(steps: Steps) -> set[str]:
    """Return the steps from which a stop event or a request for input can be reached."""
    ending: set[str] = set()
    found = True
    while found:
        found = {
            name
            for name, spec in steps.items()
            if name not in ending
            and any(
                issubclass(cls, StopEvent | InputRequiredEvent) or any(steps[one].accepts(cls) for one in ending)
                for cls in spec.return_types
            )
        }
        ending |= found
    return ending


def _configs_behind(resource: ResourceDescriptor) -> Iterable[ConfigResource]:
    seen: set[Any] = set()
    waiting = [resource]
    while waiting:
        one = waiting.pop()
        if one.key in seen:
            continue
        seen.add(one.key)
        if isinstance(one, ConfigResource):
            yield one
        waiting.extend(needed.resource for needed in one.dependencies())


def _skips(spec: StepSpec, check: str) -> bool:
    return check in spec.skip_graph_checks


def _names(classes: Iterable[type]) -> str:
    return ", ".join(cls.__name__ for cls in classes)


def _describe_levels(levels: set[tuple[str, ...]]) -> str:
    if not levels:
        return "is never produced"
    return "comes " + " or ".join(
        sorted("from no batch" if not one else f"in the batch of {one[-1]}" for one in levels)
    )
