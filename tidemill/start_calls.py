"""The types of calls that start runs of workflows and dags, now or on a schedule: wrong calls are errors."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Protocol, overload

from typing_extensions import Unpack

if TYPE_CHECKING:
    from tidemill.core.duration import Duration
    from tidemill.dags.definition.model import ArgsT, Dag
    from tidemill.dags.runner.dag_handle import DagHandle
    from tidemill.engine.jobs.task import Call, ScheduleOptions
    from tidemill.engine.runs.start_options import StartOptions
    from tidemill.flows.definition.workflow import AnyWorkflow, ResultT, StartT, Workflow
    from tidemill.flows.runner.run_handle import RunHandle


class StartSync(Protocol):
    """`app.start_sync`: the handle of the run."""

    @overload
    def __call__(
        self, dag: Dag[ArgsT], args: ArgsT, /, *, conn: Any = None, **options: Unpack[StartOptions]
    ) -> DagHandle: ...

    @overload
    def __call__(self, dag: Dag[Any], /, *, conn: Any = None, **more: Any) -> DagHandle: ...

    @overload
    def __call__(
        self,
        workflow: type[Workflow[StartT, ResultT]] | Workflow[StartT, ResultT],
        start_event: StartT,
        /,
        *,
        conn: Any = None,
        **options: Unpack[StartOptions],
    ) -> RunHandle[ResultT]: ...

    @overload
    def __call__(
        self, workflow: type[Workflow[Any, ResultT]] | Workflow[Any, ResultT], /, *, conn: Any = None, **more: Any
    ) -> RunHandle[ResultT]: ...

    @overload
    def __call__(self, name: str, given: Any = None, /, *, conn: Any = None, **more: Any) -> Any: ...


class StartWithin(Protocol):
    """`start` of a block of `app.atomic`: the handle of the run, awaited."""

    @overload
    def __call__(self, dag: Dag[ArgsT], args: ArgsT, /, **options: Unpack[StartOptions]) -> Awaitable[DagHandle]: ...

    @overload
    def __call__(self, dag: Dag[Any], /, **more: Any) -> Awaitable[DagHandle]: ...

    @overload
    def __call__(
        self,
        workflow: type[Workflow[StartT, ResultT]] | Workflow[StartT, ResultT],
        start_event: StartT,
        /,
        **options: Unpack[StartOptions],
    ) -> Awaitable[RunHandle[ResultT]]: ...

    @overload
    def __call__(
        self, workflow: type[Workflow[Any, ResultT]] | Workflow[Any, ResultT], /, **more: Any
    ) -> Awaitable[RunHandle[ResultT]]: ...

    @overload
    def __call__(self, name: str, given: Any = None, /, **more: Any) -> Awaitable[Any]: ...


class DeclareSchedule(Protocol):
    """`app.schedule`: a call of a task, or a workflow or dag with its input."""

    @overload
    def __call__(
        self,
        name: str,
        call: Call[Any],
        /,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> None: ...

    @overload
    def __call__(
        self,
        name: str,
        dag: Dag[ArgsT],
        args: ArgsT | dict[str, Any],
        /,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> None: ...

    @overload
    def __call__(
        self,
        name: str,
        workflow: type[Workflow[StartT, Any]] | Workflow[StartT, Any],
        start_event: StartT | dict[str, Any],
        /,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> None: ...

    @overload
    def __call__(
        self,
        name: str,
        what: Dag[Any] | type[AnyWorkflow] | AnyWorkflow,
        /,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> None: ...
