"""The base class of workflows: a workflow is a class whose steps are methods that take and return events.

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
from typing import TYPE_CHECKING, Any, Generic, TypedDict

from typing_extensions import TypeVar

from tidemill.flows.definition.declared import PLACE, Shown, WorkflowDeclaration, declared
from tidemill.flows.definition.decorators import attach_step
from tidemill.flows.definition.events import Event, StartEvent, StopEvent
from tidemill.flows.definition.resource import ResourceManager
from tidemill.flows.definition.timeouts import RUN_TIMEOUT_IN_MEMORY
from tidemill.flows.runner.in_memory import FlowRun
from tidemill.flows.runner.steps.context import Context
from tidemill.flows.runner.workflow_handler import WorkflowHandler

StopEventT = TypeVar("StopEventT", bound=StopEvent)
StartT = TypeVar("StartT", bound=StartEvent, default=StartEvent)
ResultT = TypeVar("ResultT", default=Any)


class WorkflowOptions(TypedDict, total=False):
    """The options of a workflow's constructor."""

    timeout: float | None
    disable_validation: bool
    verbose: bool
    resource_manager: ResourceManager | None
    num_concurrent_runs: int | None
    runtime: Any
    workflow_name: str | None
    skip_graph_checks: Collection[str] | None
    serializer: Any


class Workflow(Generic[StartT, ResultT]):
    """The base class of workflows: subclass it, declare steps, and call `run`.

    `class Article(Workflow[Topic, str])` tells type checkers that it starts with a `Topic` and returns a `str`.
    """

    def __init__(
        self,
        timeout: float | None = RUN_TIMEOUT_IN_MEMORY,
        disable_validation: bool = False,
        verbose: bool = False,
        resource_manager: ResourceManager | None = None,
        num_concurrent_runs: int | None = None,
        runtime: Any = None,
        workflow_name: str | None = None,
        skip_graph_checks: Collection[str] | None = None,
        serializer: Any = None,
    ) -> None:
        vars(self)[PLACE] = WorkflowDeclaration(
            type(self),
            timeout=timeout,
            disable_validation=disable_validation,
            verbose=verbose,
            resource_manager=resource_manager,
            num_concurrent_runs=num_concurrent_runs,
            runtime=runtime,
            workflow_name=workflow_name,
            skip_graph_checks=skip_graph_checks or (),
            serializer=serializer,
        )

    if TYPE_CHECKING:
        runtime: Any
        serializer: Any
        workflow_name: str
        start_event_class: type[StartEvent]
        stop_event_class: type[StopEvent]
        events: list[type[Event]]
    else:
        runtime = Shown()
        serializer = Shown()
        workflow_name = Shown()
        start_event_class = Shown()
        stop_event_class = Shown()
        events = Shown()

    @classmethod
    def add_step(cls, func: Any) -> None:
        """Add a free function, decorated with `@step`, to the steps of this workflow."""
        attach_step(cls, func)

    def validate(self, *, validate_resource_configs: bool = True, validate_resources: bool = False) -> bool:
        """Validate the graph of steps and events; returns True if the workflow asks for human input."""
        return declared(self).validate(resource_configs=validate_resource_configs, resources=validate_resources)

    def run(
        self,
        ctx: Context[Any] | None = None,
        start_event: StartT | None = None,
        run_id: str | None = None,
        **kwargs: Any,
    ) -> WorkflowHandler[ResultT]:
        """Start a run in memory, with the fields of the start event as keywords or with the event itself."""
        known = declared(self)
        known.check_once(known.validate if "validate" in known.steps else self.validate)
        context = ctx or Context(self)
        saved = context._saved
        event = known.start_event(start_event, kwargs) if saved is None else None
        run = context._begin_run(run_id or secrets.token_urlsafe(8)[:10], self)
        begin = run.resume if event is None else partial(run.start, event)
        if known.room is None:
            begin()
        else:
            run.opener = asyncio.create_task(_begin_in_turn(known.room, run, begin))
        return WorkflowHandler(run, context)


#: A workflow with any start event and result.
AnyWorkflow = Workflow[Any, Any]


async def _begin_in_turn(room: asyncio.Semaphore, run: FlowRun, begin: Callable[[], None]) -> None:
    """Start a run when the concurrency limit allows it, and hold its slot until the run has ended."""
    async with room:
        begin()
        await asyncio.wait([run.result])
