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

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from tidemill.flows.definition.batch_depth import covered_steps, event_levels, levels_of
from tidemill.flows.definition.events import (
    HumanResponseEvent,
    InputRequiredEvent,
    StartEvent,
    StepFailedEvent,
    StopEvent,
)
from tidemill.flows.definition.resource import ConfigResource, ResourceDescriptor, check_for_cycles
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
    return _the_only(StartEvent, taken, f"workflow {workflow}", "is taken by its steps", "is taken by any step")


def find_stop_class(steps: Steps, workflow: str) -> type[StopEvent]:
    """Return the only class of stop event that the steps return."""
    given = (cls for spec in steps.values() for cls in spec.return_types)
    return _the_only(StopEvent, given, f"workflow {workflow}", "is returned by its steps", "is returned by any step")


def find_state_type(steps: Steps) -> Any:
    """Return the most derived state type that a step declares; None if no step declares one."""
    declared = {spec.context_state_type: None for spec in steps.values() if isinstance(spec.context_state_type, type)}
    for candidate in declared:
        if all(issubclass(candidate, other) for other in declared):
            return candidate
    if declared:
        names = ", ".join(sorted(one.__name__ for one in declared))
        raise StateTypeError(
            f"the steps declare state types that are not subclasses of each other: {names}; use one of them"
        )
    return None


def check_names(skip_graph_checks: Collection[str]) -> None:
    """Raise if the name of a graph check is unknown."""
    if unknown := sorted(set(skip_graph_checks) - GRAPH_CHECKS):
        known = ", ".join(sorted(GRAPH_CHECKS))
        raise WorkflowValidationError(
            f"skip_graph_checks: there is no check {', '.join(unknown)}; the checks are {known}"
        )


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
                raise WorkflowValidationError(f"error handler {handler.name} is for a step {name} that does not exist")
            if steps[name].is_handler:
                raise WorkflowValidationError(f"error handler {handler.name} is for {name}, which is a handler itself")
            if name in claimed:
                raise WorkflowValidationError(
                    f"failures of step {name} would go to two handlers, {claimed[name]} and {handler.name}; keep one"
                )
            claimed[name] = handler.name
    if len(wildcards) > 1:
        raise WorkflowValidationError(
            f"{', '.join(wildcards)} all handle the failures of any step; keep one, or give for_steps"
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
                    problems.append(f"step {spec.name}, parameter {definition.name}: {error}")
    if problems:
        raise WorkflowValidationError("resources cannot be configured:\n  " + "\n  ".join(problems))


def check_resource_cycles(steps: Steps) -> None:
    """Raise a `ResourceCycleError` if a resource depends on itself."""
    for spec in steps.values():
        for definition in spec.resources:
            check_for_cycles(definition.resource)


def _the_only(base: Any, classes: Iterable[EventClass], where: str, many: str, none: str) -> Any:
    found = {cls: None for cls in classes if issubclass(cls, base)}
    if len(found) == 1:
        return next(iter(found))
    if not found:
        raise WorkflowConfigurationError(f"{where}: no {base.__name__} {none}")
    names = ", ".join(cls.__name__ for cls in found)
    raise WorkflowConfigurationError(f"{where}: more than one class of {base.__name__} {many}: {names}; keep one")


def _check_stop_is_final(steps: Steps) -> None:
    for spec in steps.values():
        for cls in spec.accepted_events:
            if issubclass(cls, StopEvent):
                raise WorkflowValidationError(
                    f"step {spec.name} takes {cls.__name__}, but the run ends when that is returned; "
                    "use an event of your own"
                )


def _check_produced_and_taken(steps: Steps) -> None:
    produced = {cls: None for spec in steps.values() for cls in spec.return_types}
    taken = {cls: None for spec in steps.values() for cls in spec.accepted_events}
    tolerant = tuple(cls for spec in steps.values() if spec.accept_event_subclasses for cls in spec.accepted_events)
    from_outside = (StartEvent, HumanResponseEvent, StepFailedEvent)
    missing = [
        cls
        for cls in taken
        if cls not in produced
        and not issubclass(cls, from_outside)
        and not (cls in tolerant and any(issubclass(other, cls) for other in produced))
    ]
    if missing:
        raise WorkflowValidationError(
            f"no step returns {_names(missing)}, but there are steps that take it; "
            "if a step sends it with ctx.send_event, add it to what that step returns"
        )
    to_outside = (StopEvent, InputRequiredEvent, HumanResponseEvent)  # the graph checks cover the last one
    unused = [cls for cls in produced if cls not in taken and not issubclass(cls, (*to_outside, *tolerant))]
    if unused:
        raise WorkflowValidationError(f"no step takes {_names(unused)}, but there are steps that return it")


def _check_joins(steps: Steps) -> None:
    levels = event_levels(steps)
    for spec in steps.values():
        if spec.collection_param:
            name, members = spec.collection_param
            alone = [cls for cls in members if not any(levels_of(spec, [cls], levels))]
            if alone:
                raise WorkflowValidationError(
                    f"step {spec.name}, parameter {name}: no step returns a list from which {_names(alone)} follows, "
                    "so there is no batch to collect; return a list, or use ctx.collect_events"
                )
        elif spec.collect_params:
            places = {name: levels_of(spec, [cls], levels) for name, cls in spec.collect_params}
            if not set.intersection(*places.values()):
                levels_text = "; ".join(f"{name} {_describe_levels(levels)}" for name, levels in places.items())
                raise WorkflowValidationError(
                    f"step {spec.name} takes events that belong to different batches and never meet: {levels_text}"
                )


def _check_graph(steps: Steps, skipped: frozenset[str]) -> None:
    problems = []
    if "reachability" not in skipped:
        reached = _reached(steps)
        if lost := [name for name in steps if name not in reached and not _skips(steps[name], "reachability")]:
            problems.append(f"[reachability] nothing leads from a start or a human response to: {', '.join(lost)}")
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
            problems.append(f"[terminal_event] returned, but taken by no step: {_names(loose)}")
    if "dead_end" not in skipped:
        ending = _ending(steps)
        stuck = [
            name
            for name, spec in steps.items()
            if spec.return_types and name not in ending and not _skips(spec, "dead_end")
        ]
        if stuck:
            problems.append(f"[dead_end] nothing leads to a stop or to an input request from: {', '.join(stuck)}")
    if problems:
        raise WorkflowValidationError("the graph of the steps is invalid:\n  " + "\n  ".join(problems))


def _reached(steps: Steps) -> set[str]:
    """Return the steps that a start event, a human response or a failure can reach."""
    taken = {cls for spec in steps.values() for cls in spec.accepted_events}
    arriving = {cls for cls in taken if issubclass(cls, StartEvent | HumanResponseEvent)}
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
