"""The runs of one application: which workflows it declares, and how their runs are started, found and forked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tidemill.core.codec import encode
from tidemill.core.errors import ConfigError
from tidemill.core.job import Origin, check_name
from tidemill.engine.keeper import RunKeeper
from tidemill.engine.stored import RunKind
from tidemill.engine.task import TaskBook
from tidemill.flows.away import step_tasks
from tidemill.flows.declared import declared
from tidemill.flows.durable import FlowKind
from tidemill.flows.events import Event, StartEvent
from tidemill.flows.fork import fork
from tidemill.flows.handle import RunHandle
from tidemill.flows.wire import encode_event
from tidemill.flows.workflow import Workflow
from tidemill.store.database import Database
from tidemill.store.runs import show_run, start_run
from tidemill.store.turns import NewRun


class Runs:
    """What an application knows of runs."""

    def __init__(self, reach: Callable[[], Awaitable[Database]], origin: Callable[[], Origin]) -> None:
        self.flows: dict[str, FlowKind] = {}
        self.keepers: dict[asyncio.AbstractEventLoop, RunKeeper] = {}
        self._reach = reach
        self._origin = origin

    @property
    def kinds(self) -> dict[str, RunKind]:
        """All that a keeper of this application can drive."""
        return {**self.flows}

    def declare(self, workflow: Workflow, name: str, tasks: TaskBook) -> None:
        """A workflow whose runs may be durable; its steps on queues become tasks."""
        if check_name("workflow", name) in self.flows:
            raise ConfigError(f"two workflows are called {name!r}: give one of them another name=")
        declared(workflow).validate()
        for task in step_tasks(name, workflow, self._reach):
            tasks.add(task)
        self.flows[name] = FlowKind(name, workflow, self._start_child)

    async def start(
        self,
        workflow: type[Workflow] | str,
        start_event: StartEvent | None,
        unique_key: str | None,
        fields: dict[str, Any],
        parent: tuple[int, int] | None = None,
    ) -> RunHandle:
        """Start a durable run of a workflow."""
        kind = self._flow(workflow)
        event = declared(kind.workflow).start_event(start_event, fields)
        data, origin = encode_event(event), encode(self._origin())
        database = await self._reach()
        keeper = self.keepers.get(asyncio.get_running_loop())
        if keeper is not None and unique_key is None and parent is None and not keeper.is_stopping:
            new = NewRun(kind.name, kind.name, kind.version, data, origin)
            run = await keeper.begin(lambda number: kind.begin(keeper, number, event, new))
            if run is not None:
                return RunHandle(database, run.number, near=run.result)
        number, created = await start_run(
            database,
            workflow=kind.name,
            version=kind.version,
            input=data,
            key=unique_key,
            origin=origin,
            parent=parent,
        )
        return RunHandle(database, number, created=created)

    async def _start_child(
        self, workflow: type[Workflow] | str, fields: dict[str, Any], key: str, parent: tuple[int, int]
    ) -> None:
        await self.start(workflow, None, key, fields, parent)

    async def find(self, number: int) -> RunHandle:
        """A handle on a run that was started before, by any process."""
        database = await self._reach()
        await show_run(database, number)
        return RunHandle(database, number, created=False)

    async def fork(self, run: RunHandle | int, *, at: int, event: Event | None = None) -> RunHandle:
        """A new run that begins where another was after tick `at`."""
        database = await self._reach()
        source = run if isinstance(run, int) else run.id
        kind = self._flow((await show_run(database, source))["workflow"])
        number = await fork(database, kind.workflow, source, at=at, origin=encode(self._origin()), event=event)
        return RunHandle(database, number)

    def _flow(self, workflow: type[Workflow] | str) -> FlowKind:
        """The declared workflow of this class or name."""
        for name, kind in self.flows.items():
            if workflow == name or type(kind.workflow) is workflow:
                return kind
        wanted = workflow if isinstance(workflow, str) else workflow.__name__
        known = ", ".join(self.flows) or "none"
        raise ConfigError(f"there is no workflow {wanted!r}; this application declares with @app.workflow: {known}")
