"""A workflow: a class whose steps are methods that take events and return events.

class Article(Workflow):
    @step
    async def write(self, ev: StartEvent) -> Draft: ...
    @step(num_workers=4)
    async def review(self, ctx: Context, ev: Draft) -> StopEvent: ...

result = await Article(timeout=60).run(topic="tides")
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, TypeVar

from tidemill.flows.context import Context
from tidemill.flows.decorators import attach_step, steps_of
from tidemill.flows.errors import WorkflowRuntimeError, WorkflowValidationError
from tidemill.flows.events import Event, StartEvent, StopEvent
from tidemill.flows.handler import WorkflowHandler
from tidemill.flows.resource import ResourceManager
from tidemill.flows.runner import FlowRun
from tidemill.flows.signature import StepSpec
from tidemill.flows.topology import Topology
from tidemill.flows.validate import (
    check_handlers,
    check_names,
    check_resource_cycles,
    find_start_class,
    find_stop_class,
    validate_resource_configs,
    validate_steps,
)

DEFAULT_TIMEOUT = 45.0

StopEventT = TypeVar("StopEventT", bound=StopEvent)


class Workflow:
    """Subclass it, declare steps, run it."""

    def __init__(
        self,
        timeout: float | None = DEFAULT_TIMEOUT,
        disable_validation: bool = False,
        verbose: bool = False,
        resource_manager: ResourceManager | None = None,
        num_concurrent_runs: int | None = None,
        runtime: Any = None,
        workflow_name: str | None = None,
        skip_graph_checks: Collection[str] | None = None,
        serializer: Any = None,
    ) -> None:
        if num_concurrent_runs is not None and (not isinstance(num_concurrent_runs, int) or num_concurrent_runs < 1):
            raise WorkflowValidationError(
                f"num_concurrent_runs={num_concurrent_runs!r} must be a whole number above 0, or None for no limit"
            )
        check_names(skip_graph_checks or ())
        cls = type(self)
        self.timeout = timeout
        self.verbose = verbose
        self.resource_manager = resource_manager or ResourceManager()
        self.workflow_name = workflow_name or f"{cls.__module__}.{cls.__qualname__}"
        self.runtime = runtime
        self.serializer = serializer
        self.steps: dict[str, StepSpec] = steps_of(cls)
        self.start_event_class: type[StartEvent] = find_start_class(self.steps, cls.__name__)
        self.stop_event_class: type[StopEvent] = find_stop_class(self.steps, cls.__name__)
        self._disable_validation = disable_validation
        self._skip_graph_checks = tuple(skip_graph_checks or ())
        self._checked = False
        self._topology: Topology | None = None
        self._room = None if num_concurrent_runs is None else asyncio.Semaphore(num_concurrent_runs)

    @classmethod
    def add_step(cls, func: Any) -> None:
        """Add a free function, decorated with `@step`, to this workflow's steps."""
        attach_step(cls, func)

    @property
    def topology(self) -> Topology:
        if self._topology is None:
            self._topology = Topology(self.steps, timeout=self.timeout)
        return self._topology

    @property
    def events(self) -> list[type[Event]]:
        """All event classes that the steps take or return."""
        found = (cls for spec in self.steps.values() for cls in (*spec.accepted_events, *spec.return_types))
        return list(dict.fromkeys(found))

    def validate(self, *, validate_resource_configs: bool = True, validate_resources: bool = False) -> bool:
        """Check the graph of steps and events; True if the workflow asks a person for input."""
        check_handlers(self.steps)
        asks = validate_steps(self.steps, self._skip_graph_checks)
        if validate_resource_configs:
            _check_configs(self.steps)
        if validate_resources:
            check_resource_cycles(self.steps)
        return asks

    def run(
        self,
        ctx: Context[Any] | None = None,
        start_event: StartEvent | None = None,
        run_id: str | None = None,
        **kwargs: Any,
    ) -> WorkflowHandler:
        """Start a run in memory. The fields of the start event are given by name, or as the event itself."""
        self._check_once()
        context = ctx or Context(self)
        saved = context._saved
        event = self._start_event(start_event, kwargs) if saved is None else None
        run = context._begin_run(run_id or secrets.token_urlsafe(8)[:10], self)
        begin = run.resume if event is None else partial(run.start, event)
        if self._room is None:
            begin()
        else:
            run.opener = asyncio.create_task(self._begin_in_turn(run, begin))
        return WorkflowHandler(run, context)

    async def _begin_in_turn(self, run: FlowRun, begin: Callable[[], None]) -> None:
        """Begin a run when there is room for it, and hold its place until it has ended."""
        assert self._room is not None  # noqa: S101 - only called where it is
        async with self._room:
            begin()
            await asyncio.wait([run.result])

    def _check_once(self) -> None:
        if self._checked:
            return
        if self._disable_validation:
            check_handlers(self.steps)
        else:
            self.validate()
        self._checked = True

    def _start_event(self, given: StartEvent | None, fields: dict[str, Any]) -> StartEvent:
        if given is not None:
            if not isinstance(given, StartEvent):
                raise ValueError(f"start_event must be a StartEvent, not a {type(given).__name__}")
            return given
        try:
            return self.start_event_class(**fields)
        except Exception as error:
            raise WorkflowRuntimeError(
                f"a {self.start_event_class.__name__} cannot be made from the fields {sorted(fields)}: {error}"
            ) from error


_check_configs = validate_resource_configs
