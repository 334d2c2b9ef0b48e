"""Lookup tables over the steps of a workflow: which step takes, joins or handles what."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from pydantic import BaseModel

from tidemill.flows.definition.batch_depth import covered_steps, event_levels, levels_of
from tidemill.flows.definition.collect import Take
from tidemill.flows.definition.events import CompensationEvent, HumanResponseEvent, StartEvent
from tidemill.flows.definition.signature import EventClass, StepSpec
from tidemill.flows.definition.timeouts import durable_timeout
from tidemill.flows.definition.validate import find_state_type


class Topology:
    """Everything that depends only on the declarations; computed once per workflow class."""

    def __init__(self, steps: Mapping[str, StepSpec], timeout: float | None = None) -> None:
        self.steps = dict(steps)
        self.timeout = timeout
        self.durable_timeout = durable_timeout(timeout)
        self.joins_of_batch = _joins_of_batch(steps)
        self.handler_of = _handlers(steps)
        self.queues_work = any(spec.queue is not None for spec in steps.values())
        self.answers = _answers(steps)
        self.takes_from_outside = _takes_from_outside(steps)
        self.renamed = {old: spec.name for spec in steps.values() for old in spec.renamed_from}
        """The steps by the names that they had in earlier versions."""
        self._accepting: dict[type, tuple[StepSpec, ...]] = {}

    @cached_property
    def version(self) -> str:
        """A hash of everything that decides how ticks are reduced and stored values are read."""
        return _version(self.steps)

    @cached_property
    def state_type(self) -> Any:
        """The declared state type of a run; None if no step declares one."""
        return find_state_type(self.steps)

    def accepting(self, kind: type) -> tuple[StepSpec, ...]:
        """Return the steps that take events of this class, in order of declaration."""
        known = self._accepting.get(kind)
        if known is None:
            known = tuple(spec for spec in self.steps.values() if spec.role == "step" and spec.accepts(kind))
            self._accepting[kind] = known
        return known


def taken_of_batch(spec: StepSpec) -> int | None:
    """Return how many events of a batch a joining step takes; None for all."""
    policy = spec.collection_policy
    return policy.cardinality.n if policy is not None and isinstance(policy.cardinality, Take) else None


def _joins_of_batch(steps: Mapping[str, StepSpec]) -> dict[str, tuple[str, ...]]:
    """Return, for each step that opens batches, the joining steps that take from them."""
    levels = event_levels(steps)
    joins: dict[str, list[str]] = {}
    for spec in steps.values():
        if spec.collection_param is not None:
            for level in levels_of(spec, spec.collection_param[1], levels):
                if level and spec.name not in joins.setdefault(level[-1], []):
                    joins[level[-1]].append(spec.name)
    return {name: tuple(found) for name, found in joins.items()}


def _handlers(steps: Mapping[str, StepSpec]) -> dict[str, StepSpec]:
    """Return the error handler of each step; a handler that names the step takes precedence over a general one."""
    found: dict[str, StepSpec] = {}
    handlers = [spec for spec in steps.values() if spec.role != "step"]
    for handler in sorted(handlers, key=lambda spec: spec.catch_error_for_steps is None):
        for name in covered_steps(handler, steps):
            found.setdefault(name, handler)
    return found


def _answers(steps: Mapping[str, StepSpec]) -> tuple[tuple[str, EventClass], ...]:
    """Return the steps that take a human response, each with its event class."""
    return tuple(
        (spec.name, kind)
        for spec in steps.values()
        if spec.role == "step" and spec.collection_param is None and not spec.collect_params
        for kind in [next((each for each in spec.accepted_events if issubclass(each, HumanResponseEvent)), None)]
        if kind is not None
    )


def _takes_from_outside(steps: Mapping[str, StepSpec]) -> bool:
    """Return whether a step takes an event that no step returns, so that it comes from outside of the run."""
    made = tuple({kind for spec in steps.values() for kind in spec.return_types})
    taken = {kind for spec in steps.values() if spec.role == "step" for kind in spec.accepted_events}
    inner = {kind for kind in taken if any(issubclass(each, kind) for each in made)}
    inner |= {kind for kind in taken if issubclass(kind, StartEvent | CompensationEvent)}
    return any(issubclass(kind, HumanResponseEvent) for kind in taken) or bool(taken - inner)


def _version(steps: Mapping[str, StepSpec]) -> str:
    facts: list[Any] = []
    for spec in sorted(steps.values(), key=lambda spec: spec.name):
        joins = [name for name, _ in spec.collect_params], spec.collection_param and spec.collection_param[0]
        events = [_shapes(each) for each in (spec.accepted_events, spec.return_types, spec.listed_return_types)]
        handles = (spec.catch_error_for_steps, spec.catch_error_max_recoveries) if spec.is_handler else ()
        how = (spec.num_workers, spec.role, spec.accept_event_subclasses, spec.queue)
        facts.append((spec.name, events, joins, taken_of_batch(spec), how, handles, _shape(spec.context_state_type)))
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _shapes(classes: Iterable[type]) -> list[Any]:
    return sorted(map(_shape, classes))


def _shape(cls: Any) -> tuple[str, list[tuple[str, str, bool]]]:
    """Return the name and the fields of a class, without modules: that of a program is `__main__` when it is run."""
    if not isinstance(cls, type):
        return "", []
    fields = cls.__pydantic_fields__ if issubclass(cls, BaseModel) else {}
    named = [
        (name, _MODULES.sub("", repr(field.annotation)), field.is_required()) for name, field in sorted(fields.items())
    ]
    return cls.__qualname__, named


_MODULES = re.compile(r"\b(?:\w+\.)+")
