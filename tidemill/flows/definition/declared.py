"""The declaration of a workflow object, stored in one private attribute.

A user's class may use any attribute and step names (`steps`, `timeout`, `events`), because Tidemill adds only this one
attribute; the rest of Tidemill reads it with `declared(workflow)`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any

from tidemill.engine.runs.control_loop import Adapter
from tidemill.flows.definition.decorators import additions, is_count, migration_of, steps_of
from tidemill.flows.definition.events import Event, StartEvent, StopEvent
from tidemill.flows.definition.resource import ResourceManager
from tidemill.flows.definition.signature import StepSpec
from tidemill.flows.definition.topology import Topology
from tidemill.flows.definition.validate import (
    check_handlers,
    check_names,
    check_renames,
    find_start_class,
    find_stop_class,
    validate_resource_configs,
    validate_resources,
    validate_steps,
)
from tidemill.flows.encoding.models import wrong_fields
from tidemill.flows.errors import WorkflowConfigurationError, WorkflowRuntimeError, WorkflowValidationError
from tidemill.flows.reducer.reducer import FlowProgram
from tidemill.flows.runner.runtime import basic_runtime, get_current_runtime

PLACE = "_Workflow__declared"


class WorkflowDeclaration:
    """The steps and the options of one workflow object."""

    def __init__(
        self,
        cls: type,
        *,
        timeout: float | None,
        disable_validation: bool,
        verbose: bool,
        resource_manager: ResourceManager | None,
        num_concurrent_runs: int | None,
        runtime: Any,
        workflow_name: str | None,
        skip_graph_checks: Collection[str],
        serializer: Any,
    ) -> None:
        if num_concurrent_runs is not None and not is_count(num_concurrent_runs):
            raise WorkflowValidationError(
                f"num_concurrent_runs must be an integer greater than 0 or None, not {num_concurrent_runs!r}"
            )
        check_names(skip_graph_checks)
        self.timeout = timeout
        self.verbose = verbose
        self.resource_manager = resource_manager or ResourceManager()
        if runtime is not None and not callable(getattr(runtime, "around", None)):
            raise WorkflowConfigurationError(
                f"runtime={runtime!r} is not a runtime: pass a BasicRuntime with the decorators that you want"
            )
        self.runtime = runtime or get_current_runtime()
        self.serializer = serializer
        self.workflow_name = workflow_name or f"{cls.__module__}.{cls.__qualname__}"
        self._class = cls
        self._additions = additions()
        self.steps: dict[str, StepSpec] = steps_of(cls)
        self.start_event_class: type[StartEvent] = find_start_class(self.steps, cls.__name__)
        self.stop_event_class: type[StopEvent] = find_stop_class(self.steps, cls.__name__)
        self.migration = migration_of(cls)
        """The name of the method that migrates runs of older versions, if there is one."""
        self.num_concurrent_runs = num_concurrent_runs
        self.room = None if num_concurrent_runs is None else asyncio.Semaphore(num_concurrent_runs)
        self._disable_validation = disable_validation
        self._skip_graph_checks = tuple(skip_graph_checks)
        self._checked = False
        self._topology: Topology | None = None
        self._programs: dict[bool, FlowProgram] = {}
        self._surround: Callable[[StepSpec], StepSpec] | None = None

    def surround(self, around: Callable[[StepSpec], StepSpec]) -> None:
        """Call the steps within the middleware of the application that declares the workflow."""
        self._surround = around
        self.steps = {name: around(spec) for name, spec in self.steps.items()}

    @property
    def topology(self) -> Topology:
        if self._topology is None:
            self._topology = Topology(self.steps, self.timeout)
        return self._topology

    def program(self, *, durable: bool) -> FlowProgram:
        """Return the program of its runs; all runs share it."""
        known = self._programs.get(durable)
        if known is None or known.topology is not self.topology:
            known = self._programs[durable] = FlowProgram(self.topology, narrates=not durable, durable=durable)
        return known

    @property
    def events(self) -> list[type[Event]]:
        """Return all event classes that the steps take or return."""
        found = (cls for spec in self.steps.values() for cls in (*spec.accepted_events, *spec.return_types))
        return list(dict.fromkeys(found))

    def validate(self, *, resource_configs: bool = True, resources: bool = False) -> bool:
        """Validate the graph of steps and events; returns True if the workflow asks for human input."""
        check_handlers(self.steps)
        check_renames(self.steps)
        asks = validate_steps(self.steps, self._skip_graph_checks)
        if resource_configs:
            validate_resource_configs(self.steps)
        if resources:
            validate_resources(self.steps, self.resource_manager)
        return asks

    def around(self, run: Adapter) -> Adapter:
        """Return the adapter for the control loop: the run, wrapped in the decorators of its runtime."""
        return run if self.runtime is basic_runtime else self.runtime.around(run, self.workflow_name)

    def check_once(self, validate: Callable[[], Any]) -> None:
        """Validate before the first run, unless disabled, and again after steps were added."""
        if self._additions != additions():
            self._additions, self.steps = additions(), steps_of(self._class)
            if self._surround is not None:
                self.steps = {name: self._surround(spec) for name, spec in self.steps.items()}
            self._topology, self._checked = None, False
        if self._checked:
            return
        if self._disable_validation:
            check_handlers(self.steps)
            check_renames(self.steps)
        else:
            validate()
        self._checked = True

    def start_event(self, given: StartEvent | None, fields: dict[str, Any]) -> StartEvent:
        """Return the start event of a run: the given one, or one created from these fields."""
        if given is not None:
            if not isinstance(given, StartEvent):
                raise ValueError(
                    f"The 'start_event' argument must be an instance of 'StartEvent', not a {type(given).__name__}"
                )
            return given
        try:
            return self.start_event_class(**fields)
        except Exception as error:
            raise WorkflowRuntimeError(
                f"Failed creating a start event of type '{self.start_event_class.__name__}' with the keyword "
                f"arguments: {fields}: {wrong_fields(error)}"
            ) from error


def declared(workflow: object) -> WorkflowDeclaration:
    """Return the declaration of a workflow object."""
    found = vars(workflow).get(PLACE)
    if found is None:
        name = type(workflow).__name__
        raise WorkflowConfigurationError(
            f"{name} defines an __init__ that does not call super().__init__(): call it there, "
            "with the options of the workflow (timeout=, verbose=, ...) if it takes any"
        )
    return found


class Shown:
    """A property of a workflow that reads its declaration, unless the user's class or object defines the name."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, workflow: object | None, owner: type | None = None) -> Any:
        return self if workflow is None else getattr(declared(workflow), self._name)
