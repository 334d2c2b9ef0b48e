"""The runs of one application: which workflows it declares, and how their runs are started, found, forked and
answered."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec

from tidemill.core.codec import encode
from tidemill.core.errors import ConfigError
from tidemill.core.job import Origin, check_name
from tidemill.core.ticks import CancelAsked
from tidemill.dags.definition.model import Dag, queues_of
from tidemill.dags.errors import InputRefusedError
from tidemill.dags.reducer.journal import encode_tick as encode_dag_tick
from tidemill.dags.runner.dag_handle import DagHandle
from tidemill.dags.runner.runner import DAG_KIND, DagInput, DagKind
from tidemill.engine.hooks import Hooks
from tidemill.engine.jobs.task import TaskRegistry
from tidemill.engine.runs.durable_run import RunKind, WorkEnd
from tidemill.engine.runs.run_store import PostgresRunStore
from tidemill.engine.runs.run_worker import RunWorker
from tidemill.flows.definition.declared import declared
from tidemill.flows.definition.events import Event, StartEvent
from tidemill.flows.definition.workflow import Workflow
from tidemill.flows.encoding.events import encode_event
from tidemill.flows.encoding.journal import encode_tick
from tidemill.flows.runner.durable import FlowKind, child_end, restore
from tidemill.flows.runner.fork import fork
from tidemill.flows.runner.human_input import answer
from tidemill.flows.runner.queued_step import step_tasks
from tidemill.flows.runner.run_handle import RunHandle
from tidemill.flows.runner.sending import event_tick
from tidemill.store.audit import write_audit
from tidemill.store.database import Database
from tidemill.store.runs.runs import (
    Within,
    has_arrived,
    is_asked,
    load_run,
    new_token,
    send_to_run,
    show_run,
    start_run,
)
from tidemill.store.runs.turns import NewRun

TAKEN_WITHIN = 3.0  # seconds that somebody who answers a flow waits for the run to take it


class Runs:
    """What an application knows of runs."""

    def __init__(
        self, reach: Callable[[], Awaitable[Database]], origin: Callable[[], Origin], tasks: TaskRegistry, hooks: Hooks
    ) -> None:
        self.flows: dict[str, FlowKind] = {}
        self.dags: dict[str, Dag] = {}
        self.dag_kind = DagKind(tasks, hooks.ref_resolver, named=hooks.invoke_context is not None)
        self.run_workers: dict[asyncio.AbstractEventLoop, RunWorker] = {}
        self._reach = reach
        self._origin = origin
        self._tasks = tasks
        self._provider = hooks.workflow_provider

    @property
    def kinds(self) -> dict[str, RunKind]:
        """All that a run worker of this application can drive."""
        return {**self.flows, DAG_KIND: self.dag_kind}

    @property
    def declares_any(self) -> bool:
        """Whether the application declares workflows or dags."""
        return bool(self.flows or self.dags)

    def queues(self) -> Iterable[str]:
        """The queues that the nodes of declared dags name."""
        return [queue for dag in self.dags.values() for queue in queues_of(dag)]

    def declare(self, workflow: Workflow, name: str) -> None:
        """A workflow whose runs may be durable; its steps on queues become tasks."""
        if check_name("workflow", name) in self.flows:
            raise ConfigError(f"two workflows are called {name!r}: give one of them another name=")
        declared(workflow).validate()
        for task in step_tasks(name, workflow, self._reach_runs):
            self._tasks.add(task)
        self.flows[name] = FlowKind(name, workflow, self._start_child)

    async def _reach_runs(self) -> PostgresRunStore:
        return PostgresRunStore(await self._reach())

    def declare_dag(self, dag: Dag) -> Dag:
        """A dag that can be started by its name."""
        if dag.name in self.dags or dag.name in self.flows:
            raise ConfigError(f"two dags or workflows are called {dag.name!r}: give one of them another name")
        self.dags[dag.name] = dag
        return dag

    async def find_dag(self, what: Any) -> Dag | None:
        """The dag that is meant: itself, or by its name, among those declared or from the host's provider."""
        if isinstance(what, Dag):
            return what
        if not isinstance(what, str) or what in self.flows:
            return None
        found = self.dags.get(what)
        if found is None and self._provider is not None:
            found = self._provider(what)
            if inspect.isawaitable(found):
                found = await found
            if found is not None and not isinstance(found, Dag):
                raise ConfigError(
                    f"the host's workflow provider gave a {type(found).__name__} for {what!r}, and not a Dag"
                )
        return found

    async def start_dag(
        self,
        dag: Dag,
        args: dict[str, Any],
        unique_key: str | None,
        *,
        origin: Origin | None = None,
        database: Database | None = None,
        within: Within | None = None,
    ) -> DagHandle:
        """Start a durable run of a dag."""
        data, who = encode(DagInput(msgspec.Raw(dag.to_json()), args)), encode(origin or self._origin())
        database, version = database or await self._reach(), self.dag_kind.program(dag.to_json()).version
        run_worker = self.run_workers.get(asyncio.get_running_loop())
        if run_worker is not None and unique_key is None and within is None and not run_worker.is_stopping:
            new = NewRun(DAG_KIND, dag.name, version, data, who)
            run = await run_worker.begin(lambda number: self.dag_kind.begin(run_worker, number, new))
            if run is not None:
                return DagHandle(database, self.dag_kind, run.number, near=run.result)
        number, created = await start_run(
            database,
            workflow=dag.name,
            version=version,
            input=data,
            key=unique_key,
            origin=who,
            kind=DAG_KIND,
            within=within,
        )
        return DagHandle(database, self.dag_kind, number, created=created)

    async def start_named(
        self,
        name: str,
        args: dict[str, Any],
        unique_key: str | None,
        *,
        origin: Origin,
        database: Database,
        within: Within,
    ) -> RunHandle | DagHandle:
        """Start a durable run of a flow or a dag by its name, on behalf of somebody else and by their own way.

        `within` is done in the transaction that stores it.
        """
        dag = await self.find_dag(name)
        if dag is not None:
            return await self.start_dag(dag, args, unique_key, origin=origin, database=database, within=within)
        return await self.start(name, None, unique_key, args, origin=origin, database=database, within=within)

    async def start(
        self,
        workflow: type[Workflow] | str,
        start_event: StartEvent | None,
        unique_key: str | None,
        fields: dict[str, Any],
        parent: tuple[int, int] | None = None,
        origin: Origin | None = None,
        database: Database | None = None,
        within: Within | None = None,
    ) -> RunHandle:
        """Start a durable run of a workflow."""
        kind = self.flow(workflow)
        event = declared(kind.workflow).start_event(start_event, fields)
        data, who = encode_event(event), encode(origin or self._origin())
        database = database or await self._reach()
        run_worker = self.run_workers.get(asyncio.get_running_loop())
        alone = unique_key is None and parent is None and within is None
        if run_worker is not None and alone and not run_worker.is_stopping:
            new = NewRun(kind.name, kind.name, kind.version, data, who)
            run = await run_worker.begin(lambda number: kind.begin(run_worker, number, event, new))
            if run is not None:
                return RunHandle(database, run.number, near=run.result)
        number, created = await start_run(
            database,
            workflow=kind.name,
            version=kind.version,
            input=data,
            key=unique_key,
            origin=who,
            parent=parent,
            within=within,
        )
        return RunHandle(database, number, created=created)

    async def _start_child(
        self, workflow: type[Workflow] | str, fields: dict[str, Any], key: str, parent: tuple[int, int]
    ) -> WorkEnd | None:
        handle = await self.start(workflow, None, key, fields, parent)
        if handle.created:
            return None
        row = await show_run(await self._reach(), handle.id)
        return child_end(handle.id, row) if row["state"] not in ("running", "needs_attention") else None

    async def get(self, number: int) -> Any:
        """A handle on a run that was started before, by any process."""
        database = await self._reach()
        row = await show_run(database, number)
        if row["kind"] == DAG_KIND:
            return DagHandle(database, self.dag_kind, number, created=False)
        return RunHandle(database, number, created=False)

    async def fork(self, run: RunHandle | int, *, at: int, event: Event | None = None) -> RunHandle:
        """A new run that begins where another was after tick `at`."""
        database = await self._reach()
        source = run if isinstance(run, int) else run.id
        row = await show_run(database, source)
        if row["kind"] == DAG_KIND:
            raise ConfigError(f"run r{source} is of a dag: repeat it with `tidemill dag rerun`, or handle.rerun()")
        kind = self.flow(row["workflow"])
        number = await fork(database, kind.workflow, source, at=at, origin=encode(self._origin()), event=event)
        return RunHandle(database, number)

    async def submit(
        self, database: Database, number: int, node: str, value: Any, *, by: str, key: str | None = None
    ) -> bool:
        """Answer what a run asks; an answer that does not count raises `InputRefusedError`, which says why.

        To a flow, the answer is the event that it waits for. The same `key` again is the same answer. Returns whether
        the run has taken it; if not, it is stored, and nobody drives the run now.
        """
        row = await show_run(database, number)
        if row["kind"] == DAG_KIND:
            return await DagHandle(database, self.dag_kind, number, created=False).submit(node, value, by=by, key=key)
        workflow, token = self.flow(row["workflow"]).workflow, key or new_token()
        if not await has_arrived(database, number, token):
            _, snapshot, ticks = await load_run(database, number)
            state = restore(workflow, snapshot, ticks)
            asked = await is_asked(database, number, node)
            event = answer(declared(workflow).topology, state, node, value) if asked else None
            if event is None:
                raise InputRefusedError(
                    f"run r{number} does not ask {node!r}, or was answered already: `tidemill inputs --run r{number}`"
                )
            async with database.transaction(patience=30.0) as connection:
                after = {"value": value, "key": token}
                target = f"r{number} {node}"
                await write_audit(database, connection, who=by, action="run.submit", target=target, after=after)
            await send_to_run(database, number, event_tick(event, None, token), token=token)
        give_up = time.monotonic() + TAKEN_WITHIN
        while await is_asked(database, number, node):
            if time.monotonic() > give_up:
                return False
            await asyncio.sleep(0.05)
        return True

    def flow(self, workflow: type[Workflow] | str) -> FlowKind:
        """The declared workflow of this class or name."""
        for name, kind in self.flows.items():
            if workflow == name or type(kind.workflow) is workflow:
                return kind
        wanted = workflow if isinstance(workflow, str) else workflow.__name__
        known = ", ".join(self.flows) or "none"
        raise ConfigError(f"there is no workflow {wanted!r}; this application declares with @app.workflow: {known}")


def cancel_tick(kind: str, reason: str) -> bytes:
    """What goes into the inbox of a run of this kind so that it ends."""
    asked = CancelAsked(time.time(), reason)
    return encode_dag_tick(asked) if kind == DAG_KIND else encode_tick(asked)
