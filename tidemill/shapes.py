"""An application's shapes: the workflows, dags, pipelines, streams and monitors that it declares, and their runs.

Each is loaded when it is first used: a process that has only jobs to do starts at once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from tidemill.engine.hooks import Hooks
from tidemill.engine.jobs.task import Periodic, Task
from tidemill.jobs import Jobs
from tidemill.store.database import Database

if TYPE_CHECKING:
    from tidemill.dags.definition.model import Dag
    from tidemill.dags.runner.dag_handle import DagHandle
    from tidemill.flows.definition.events import Event, StartEvent
    from tidemill.flows.definition.workflow import Workflow
    from tidemill.flows.runner.run_handle import RunHandle
    from tidemill.monitors.definition.declared import Monitors
    from tidemill.monitors.definition.monitor import Monitor
    from tidemill.pipelines.definition.declared import Pipelines
    from tidemill.pipelines.definition.pipeline import Pipeline
    from tidemill.pipelines.workflows import TriggerWorkflow
    from tidemill.runs import Runs
    from tidemill.streaming import Streams
    from tidemill.streams.definition.stream import Stream

W = TypeVar("W", bound="Workflow")


class Shapes(Jobs):
    """The part of an application that deals with everything but plain jobs."""

    hooks: Hooks
    periodics: dict[str, Periodic]

    async def _reach(self) -> Database:
        raise NotImplementedError

    def _workflow_folder(self) -> str | None:
        raise NotImplementedError

    @cached_property
    def runs(self) -> Runs:
        """The workflows and dags of this application, and their runs."""
        from tidemill.runs import Runs

        return Runs(self._reach, self._origin, self.tasks, self.hooks)

    @cached_property
    def monitors(self) -> Monitors:
        """The monitors of this application, by name."""
        from tidemill.monitors.definition.declared import Monitors

        return Monitors(self.tasks, self._reach)

    @cached_property
    def pipelines(self) -> Pipelines:
        """The pipelines of this application."""
        from tidemill.pipelines.definition.declared import Pipelines

        return Pipelines(self.tasks, self._reach, self._workflow_folder)

    @cached_property
    def streams(self) -> Streams:
        """The streams of this application."""
        from tidemill.streaming import Streams

        return Streams(self._reach, self.pipelines)

    def uses(self, shape: Literal["runs", "monitors", "pipelines", "streams"]) -> bool:
        """Whether anything of a shape was declared or asked for, which is when it is loaded."""
        return shape in vars(self)

    # -- declaring --------------------------------------------------------------------------------

    @overload
    def workflow(self, cls: type[W], /, *, name: str | None = None, **options: Any) -> type[W]: ...

    @overload
    def workflow(self, /, *, name: str | None = None, **options: Any) -> Callable[[type[W]], type[W]]: ...

    def workflow(self, cls: type[W] | None = None, /, *, name: str | None = None, **options: Any) -> Any:
        """Declare a workflow whose runs may be durable: `@app.workflow`, or with options `@app.workflow(timeout=None)`.

        `options` are those of the workflow's constructor. Its name, by which runs remember it, is that of its class.
        """
        if cls is None:
            return partial(self.workflow, name=name, **options)
        self.runs.declare(cls(**options), name or cls.__name__)
        return cls

    def stream(self, stream: Stream) -> Stream:
        """Declare a stream: messages of many topics through plans."""
        return self.streams.declare(stream)

    def monitor(self, watch: Monitor, /) -> Monitor:
        """Declare a monitor, which `tidemill monitor run` and `tidemill up` follow."""
        return self.monitors.declare(watch)

    def dag(self, dag: Dag, /) -> Dag:
        """Declare a dag, so that its runs can be started by its name."""
        return self.runs.declare_dag(dag)

    def pipeline(self, pipeline: Pipeline, /) -> Pipeline:
        """Declare a pipeline, with all its stages: `tidemill up` and `app.running()` keep it up to date."""
        return self.pipelines.declare(pipeline)

    def trigger(self, workflow: TriggerWorkflow, /) -> Task[Any, Any]:
        """Declare a workflow file that runs once for each event: of `POST /api/v1/triggers/NAME`, and its schedules."""
        task = self.pipelines.declare_trigger(workflow)
        for at, spec in enumerate(workflow.schedules):
            name = task.name if at == 0 else f"{task.name}#{at + 1}"
            args = task.signature.bind((), {"payload": {"schedule": name}})
            self.periodics[name] = Periodic(name, task.name, spec, args, catchup="one", jitter=0.0)
        return task

    # -- starting runs ----------------------------------------------------------------------------

    @overload
    async def start(self, what: Dag, /, *, unique_key: str | None = None, **fields: Any) -> DagHandle: ...

    @overload
    async def start(
        self,
        what: type[Workflow],
        /,
        *,
        start_event: StartEvent | None = None,
        unique_key: str | None = None,
        **fields: Any,
    ) -> RunHandle: ...

    @overload
    async def start(
        self,
        what: str,
        /,
        *,
        start_event: StartEvent | None = None,
        unique_key: str | None = None,
        **fields: Any,
    ) -> Any: ...

    async def start(
        self,
        what: type[Workflow] | Dag | str,
        /,
        *,
        start_event: StartEvent | None = None,
        unique_key: str | None = None,
        **fields: Any,
    ) -> RunHandle | DagHandle:
        """Start a durable run of a workflow or a dag: once this returns, it survives any crash.

        The fields of the start event, or the arguments of the dag's run, are given by name. With a `unique_key`, a
        second start of the same workflow or dag gives the run that has the key: `handle.created` is False.
        """
        dag = await self.runs.find_dag(what)
        if dag is not None:
            return await self.runs.start_dag(dag, fields, unique_key)
        return await self.runs.start(what, start_event, unique_key, fields)  # pyright: ignore[reportArgumentType]

    async def fork(self, run: RunHandle | int, *, at: int, event: Event | None = None) -> RunHandle:
        """A new run that begins where another was after tick `at`; with `event`, that tick brought this one instead."""
        return await self.runs.fork(run, at=at, event=event)

    async def run(self, number: int) -> Any:
        """A handle on a run that was started before, by any process."""
        return await self.runs.find(number)
