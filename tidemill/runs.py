"""The runs of one application: which workflows and dags it declares, and how their runs are started, found, forked."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from tidemill.core.check_given import check_kind
from tidemill.core.codec import decode, encode
from tidemill.core.did_you_mean import did_you_mean, refuse_unknown
from tidemill.core.duration import Duration
from tidemill.core.errors import ConfigError, PayloadError
from tidemill.core.jobs.job import Origin, check_name
from tidemill.dags.definition.model import Dag, input_node, node, queues_of
from tidemill.dags.definition.run_args import args_of_run, declared_args, read_args
from tidemill.dags.runner.dag_handle import DagHandle
from tidemill.dags.runner.runner import DagInput, DagKind
from tidemill.engine.application.connections import Connections, OpenConnection
from tidemill.engine.application.hooks import Hooks
from tidemill.engine.application.lifespan import Lifespan
from tidemill.engine.application.middleware import surrounded
from tidemill.engine.jobs.task import Call, Task, TaskRegistry
from tidemill.engine.runs.durable_run import RunKind, WorkEnd
from tidemill.engine.runs.run_rate import RateOptions, RunRate
from tidemill.engine.runs.start_options import START_OPTIONS, refuse_job_options, with_start_options
from tidemill.engine.telemetry.run_trace import starting, traced_origin
from tidemill.engine.telemetry.tracing import is_tracing
from tidemill.flows.definition.declared import declared
from tidemill.flows.definition.events import Event, StartEvent
from tidemill.flows.definition.signature import StepSpec
from tidemill.flows.definition.start_fields import (
    check_start_event,
    check_start_fields,
    start_defaults,
    start_field_names,
)
from tidemill.flows.definition.workflow import AnyWorkflow, Workflow, WorkflowOptions
from tidemill.flows.encoding.classes import qualified_name
from tidemill.flows.encoding.events import encode_event
from tidemill.flows.runner.children import JobGatherer, child_end
from tidemill.flows.runner.durable import FlowKind
from tidemill.flows.runner.fork import fork
from tidemill.flows.runner.run_handle import RunHandle
from tidemill.flows.runner.steps.current_step import find_step
from tidemill.flows.runner.steps.queued_step import step_tasks
from tidemill.store.connection.caller_connection import run_async, run_sync
from tidemill.store.database import Database
from tidemill.store.jobs.declared import WorkTemplate
from tidemill.store.jobs.schedules.schedules import RunTemplate
from tidemill.store.runs.claims import DAG_KIND
from tidemill.store.runs.run_turn import NewRun
from tidemill.store.runs.runs import show_run, start_statements, store_run
from tidemill.store.runs.starts import start_together
from tidemill.store.transaction import transaction

if TYPE_CHECKING:
    from tidemill.engine.runs.run_store import PostgresRunStore
    from tidemill.engine.runs.run_worker import RunWorker

_NOT_BOTH = "start was given {} and the keyword {!r}: give one of them"


def _run_id(_: Mapping[str, Any]) -> str:
    step = find_step()
    return "" if step is None else step[0].run_id


class DurableWorkflowOptions(WorkflowOptions, RateOptions, total=False):
    """The options of `app.workflow`."""


class _Start(msgspec.Struct):
    """A run that is ready to be stored, and how it begins in this process."""

    new: NewRun
    dag_kind: DagKind | None = None
    flow_kind: FlowKind | None = None
    event: Any = None

    @property
    def may_begin_here(self) -> bool:
        return self.new.is_plain and (self.flow_kind is None or self.flow_kind.max_runs is None)

    def begin(self, run_worker: RunWorker, number: int) -> Any:
        if self.flow_kind is not None:
            return self.flow_kind.begin(run_worker, number, self.event, self.new)
        assert self.dag_kind is not None  # noqa: S101 - it is one of the two
        return self.dag_kind.begin(run_worker, number, self.new)


class Runs:
    """What an application knows of runs."""

    def __init__(
        self,
        connections: Connections,
        origin: Callable[[], Origin],
        tasks: TaskRegistry,
        hooks: Hooks,
        lifespan: Lifespan,
        gatherer: JobGatherer | None,
    ) -> None:
        self._lifespan = lifespan
        self._gatherer = gatherer
        self.flows: dict[str, FlowKind] = {}
        self.dags: dict[str, Dag] = {}
        self.rates: dict[str, RunRate] = {}
        """How fast runs of a workflow or dag may begin, by its name."""
        self.dag_kind = DagKind(tasks, hooks.ref_resolver, named=hooks.invoke_context is not None)
        self.run_workers: dict[asyncio.AbstractEventLoop, RunWorker] = {}
        self._connections = connections
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

    def declare_given(self, workflow: Any, name: str | None, options: dict[str, Any]) -> Any:
        """Declare a class of workflows with the options of its constructor, or an object."""
        _check_workflow(workflow)
        rate: Any = {each: options.pop(each) for each in RateOptions.__annotations__ if each in options}
        made, name = workflow, name or (workflow if isinstance(workflow, type) else type(workflow)).__name__
        if isinstance(workflow, type):
            made = workflow(**options)
        elif options:
            raise ConfigError(
                f"app.workflow({type(workflow).__name__}(...)): {', '.join(options)} cannot be set on a workflow that "
                "exists; give it to its constructor"
            )
        self.declare(made, name)
        self._limit(f"workflow {name}", name, start_field_names(made) or None, rate)
        return workflow

    def _limit(self, what: str, name: str, arguments: Collection[str] | None, rate: RateOptions) -> None:
        if (found := RunRate.of(what, arguments, **rate)) is not None:
            self.rates[name] = found

    def declare(self, workflow: AnyWorkflow, name: str) -> None:
        """A workflow whose runs may be durable; its steps on queues become tasks."""
        if check_name("workflow", name) in self.flows:
            raise ConfigError(f"two workflows are called {name!r}: give one of them another name=")
        declared(workflow).validate()
        declared(workflow).surround(partial(self._surrounded, name))
        for task in step_tasks(name, workflow, self._reach_runs):
            self._tasks.add(task)
        self.flows[name] = FlowKind(name, workflow, self._start_child, gatherer=self._gatherer)

    def _surrounded(self, workflow: str, spec: StepSpec) -> StepSpec:
        function = surrounded(self._lifespan, "step", f"{workflow}.{spec.name}", spec.function, _run_id)
        return spec if function is spec.function else msgspec.structs.replace(spec, function=function)

    async def _reach(self) -> Database:
        return (await self._connections.open()).database

    async def _reach_runs(self) -> PostgresRunStore:
        from tidemill.engine.runs.run_store import PostgresRunStore

        return PostgresRunStore(await self._reach())

    def declare_dag(self, dag: Dag, rate: RateOptions) -> Dag:
        """A dag that can be started by its name."""
        check_kind("app.dag", dag, Dag, "a Dag, such as load_dag('nightly.yaml')")
        if dag.name in self.dags or dag.name in self.flows:
            raise ConfigError(f"two dags or workflows are called {dag.name!r}: give one of them another name")
        self._limit(f"dag {dag.name}", dag.name, None if dag.args is None else declared_args(dag), rate)
        self.dags[dag.name] = dag
        return dag

    def is_startable(self, what: Any) -> bool:
        """Whether something can name a run: a workflow, a dag, or the name of one."""
        return isinstance(what, str | Dag | Workflow) or (isinstance(what, type) and issubclass(what, Workflow))

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

    async def new_run(self, what: Dag | str, args: dict[str, Any], origin: Origin) -> NewRun:
        """A run of a dag, or of a declared flow or dag by its name, ready to be stored."""
        dag = await self.find_dag(what)
        if dag is not None:
            return self._new_dag_run(dag, args, origin)
        kind = self.flows.get(what) if isinstance(what, str) else None
        if kind is None:
            raise self._unknown(str(what))
        check_start_fields(kind.workflow, args)
        return self._new_flow_run(kind, declared(kind.workflow).start_event(None, args), origin)

    async def start(self, what: Any, given: Any, conn: Any, more: dict[str, Any]) -> Any:
        """Start a durable run of a workflow or dag: see `App.start`."""
        if not is_tracing():
            return await self._start(what, given, conn, more)
        with starting(what):
            return await self._start(what, given, conn, more)

    async def _start(self, what: Any, given: Any, conn: Any, more: dict[str, Any]) -> Any:
        found = await self._prepare(what, given, more, traced_origin(self._origin()))
        if conn is not None:
            unopened = self._connections.unopened
            number, created = await run_async(unopened, conn, start_statements(unopened, found.new))
            return self._handle(found, await self._reach(), number, created)
        run_worker = self.run_workers.get(asyncio.get_running_loop())
        if run_worker is not None and found.may_begin_here and not run_worker.is_stopping:
            run = await run_worker.begin(lambda number: found.begin(run_worker, number))
            if run is not None:
                return self._handle(found, await self._reach(), run.number, True, near=run.result)
        database = await self._reach()
        if found.new.is_plain:
            return self._handle(found, database, await start_together(database, found.new), True)
        return self._handle(found, database, *await store_run(database, found.new))

    def start_sync(self, what: Any, given: Any, conn: Any, more: dict[str, Any]) -> Any:
        """`start` for plain code."""
        with starting(what):
            return self._start_sync(what, given, conn, more)

    def _start_sync(self, what: Any, given: Any, conn: Any, more: dict[str, Any]) -> Any:
        connections, origin = self._connections, traced_origin(self._origin())

        async def reach(opened: OpenConnection) -> tuple[_Start, Database]:
            return await self._prepare(what, given, more, origin), opened.database

        found, database = connections.call(reach)
        if conn is not None:
            stored = run_sync(connections.unopened, conn, start_statements(connections.unopened, found.new))
        else:
            stored = connections.call(lambda opened: store_run(opened.database, found.new))
        return self._handle(found, database, *stored)

    async def _prepare(self, what: Any, given: Any, more: dict[str, Any], origin: Origin) -> _Start:
        """The run that `start` was asked for: keywords that are options go to the run, all others to its input."""
        dag = await self.find_dag(what)
        options = {name: more.pop(name) for name in more.keys() & START_OPTIONS}
        if dag is not None:
            fields = declared_args(dag) if given is None else set()
            read = read_args(dag) if dag.args is None and given is None else fields
            refuse_job_options(more, more if read is None else read)
            if given is not None and more:
                refuse_unknown("start", more, {*START_OPTIONS, *declared_args(dag), "conn"})
                raise ConfigError(_NOT_BOTH.format("its arguments as one object", min(more)))
            _refuse_ambiguous(options, fields, f"dag {dag.name}")
            made = self._new_dag_run(dag, args_of_run(more if given is None else given), origin)
            return _Start(with_start_options(made, options), dag_kind=self.dag_kind)
        kind = self.flow(what)
        fields = set(start_field_names(kind.workflow)) if given is None else set[str]()
        refuse_job_options(more, fields)
        if given is not None and more:
            refuse_unknown("start", more, {*START_OPTIONS, *start_field_names(kind.workflow), "conn"})
            raise ConfigError(_NOT_BOTH.format("the start event", min(more)))
        check_start_event(kind.workflow, given)
        if given is None:
            _refuse_ambiguous(options, fields, f"workflow {kind.name}")
        check_start_fields(kind.workflow, more, are_keywords=True)
        event = declared(kind.workflow).start_event(given, more)
        return _Start(with_start_options(self._new_flow_run(kind, event, origin), options), flow_kind=kind, event=event)

    def _handle(
        self, found: _Start, database: Database, number: int, created: bool, *, near: asyncio.Future[Any] | None = None
    ) -> Any:
        if found.flow_kind is None:
            return DagHandle(database, self.dag_kind, number, created=created, near=near)
        return RunHandle(
            database, number, created=created, near=near, find_workflow=self._workflow, connections=self._connections
        )

    async def wait(self, run: Any, *, timeout: Duration | None = None) -> Any:
        """The result of a run, once it has ended."""
        return await (await self.get(run if isinstance(run, int) else run.id)).result(timeout=timeout)

    async def ask(
        self, name: str, questions: Iterable[Any], task: str, args: Mapping[str, Any], progress: Any, key: str
    ) -> int:
        """Start a run that asks people, and then runs a task with `args`, `progress` and the answers by their names.

        The texts are arguments of the run, because a prompt is a template.
        """
        every = list(questions)
        asked = [
            input_node(each.name, prompt=f"{{{{$.run.prompts.{each.name}}}}}", schema=each.schema) for each in every
        ]
        answers = {each.name: {"$from": each.name} for each in every}
        given = {each: {"$from": f"run.args.{each}"} for each in args}
        resumed = {"progress": {"$from": "run.progress"}, "answers": answers}
        dag = Dag(name, [*asked, node("continue", task, args={**given, "resumed": resumed})])
        prompts = {each.name: each.prompt for each in every}
        run_args = {"prompts": prompts, "args": dict(args), "progress": progress}
        return (await self.start(dag, run_args, None, {"unique_key": key})).id

    async def _start_child(
        self,
        workflow: type[AnyWorkflow] | AnyWorkflow | str,
        fields: dict[str, Any],
        key: str,
        parent: tuple[int, int],
    ) -> WorkEnd | None:
        kind, database = self.flow(workflow), await self._reach()
        check_start_fields(kind.workflow, fields)
        event = declared(kind.workflow).start_event(None, fields)
        new = msgspec.structs.replace(self._new_flow_run(kind, event, traced_origin(self._origin())), key=key)
        number, created = await store_run(database, new, parent=parent)
        if created:
            return None
        row = await show_run(database, number)
        return child_end(number, row) if row["state"] not in ("running", "needs_attention") else None

    async def get(self, number: int) -> Any:
        """A handle on a run that was started before, by any process."""
        database = await self._reach()
        row = await show_run(database, number)
        if row["kind"] == DAG_KIND:
            return DagHandle(database, self.dag_kind, number, created=False)
        return RunHandle(database, number, created=False, find_workflow=self._workflow, connections=self._connections)

    async def fork(self, run: RunHandle | int, *, at: int, event: Event | None = None) -> RunHandle:
        """A new run that begins where another was after tick `at`."""
        database = await self._reach()
        source = run if isinstance(run, int) else run.id
        row = await show_run(database, source)
        if row["kind"] == DAG_KIND:
            raise ConfigError(f"run r{source} is of a dag: repeat it with `tidemill dag rerun`, or handle.rerun()")
        kind = self.flow(row["workflow"])
        origin = self._origin()
        async with transaction(database, by=origin.by) as tx:
            number = await fork(tx, kind.workflow, source, at=at, origin=encode(origin), event=event)
        return RunHandle(database, number, find_workflow=self._workflow, connections=self._connections)

    def template(self, what: Any, given: Any = None) -> RunTemplate:
        """The run that a schedule starts each time: of a declared workflow or dag, with its input checked."""
        found: Any = self.dags.get(what, what) if isinstance(what, str) else what
        if isinstance(found, Dag):
            new = self._new_dag_run(found, args_of_run({} if given is None else given), self._origin())
        else:
            kind = self.flow(found)
            fields = given if isinstance(given, dict) else {}
            event = None if isinstance(given, dict) else given
            check_start_event(kind.workflow, event)
            check_start_fields(kind.workflow, fields)
            new = self._new_flow_run(kind, declared(kind.workflow).start_event(event, fields), self._origin())
        return _template_of(new)

    def renewed(self, run: RunTemplate) -> RunTemplate | None:
        """The run that a stored schedule starts as its workflow or dag is declared now; None if it is not."""
        if run.kind == DAG_KIND:
            dag = self.dags.get(run.workflow)
            return None if dag is None else self.template(dag, decode(bytes(run.input), DagInput).args)
        kind = self.flows.get(run.workflow)
        if kind is None:
            return None
        return _template_of(self._rated(NewRun(kind.name, kind.name, kind.version, bytes(run.input))))

    def templates(self) -> list[WorkTemplate]:
        """What a run of each workflow and dag is like, for the SQL function `start`."""
        flows = [WorkTemplate("flow", kind.name, self._flow_template(kind)) for kind in self.flows.values()]
        return flows + [WorkTemplate("dag", dag.name, self._dag_template(dag)) for dag in self.dags.values()]

    def _flow_template(self, kind: FlowKind) -> bytes:
        event, rate = _start_type(kind), self._rate_template(kind.name, start_defaults(kind.workflow))
        return encode({"kind": kind.name, "version": kind.version, "type": event, **rate})

    def _dag_template(self, dag: Dag) -> bytes:
        data = dag.to_json()
        version, rate = self.dag_kind.program(data).version, self._rate_template(dag.name, {})
        return encode({"kind": DAG_KIND, "version": version, "dag": msgspec.Raw(data), **rate})

    def _new_dag_run(self, dag: Dag, args: dict[str, Any], origin: Origin) -> NewRun:
        self.dag_kind.check_args(dag, args)
        data, version = dag.to_json(), self.dag_kind.program(dag.to_json()).version
        given = encode(DagInput(msgspec.Raw(data), args))
        return self._rated(NewRun(DAG_KIND, dag.name, version, given, encode(origin)))

    def _new_flow_run(self, kind: FlowKind, event: StartEvent, origin: Origin) -> NewRun:
        return self._rated(NewRun(kind.name, kind.name, kind.version, encode_event(event), encode(origin)))

    def _rated(self, new: NewRun) -> NewRun:
        """A new run with the rate that its workflow or dag declares."""
        rate = self.rates.get(new.workflow)
        return new if rate is None else rate.limit(new)

    def _rate_template(self, name: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
        """The rate of runs for the SQL function `start`."""
        if (rate := self.rates.get(name)) is None:
            return {"defaults": defaults}
        return {"rate_key": rate.key, "key_rate": rate.rate, "key_burst": rate.burst, "defaults": defaults}

    def flow(self, workflow: type[AnyWorkflow] | AnyWorkflow | str) -> FlowKind:
        """The declared workflow of this class, object or name."""
        found = [kind for kind in self.flows.values() if _is_meant(kind, workflow)]
        if len(found) == 1:
            return found[0]
        if not self.is_startable(workflow):
            raise self._not_startable(workflow)
        wanted = workflow if isinstance(workflow, str) else _class_of(workflow).__name__
        if wanted in self.flows and self.flows[wanted] in found:  # Another was declared under a name of its own.
            return self.flows[wanted]
        if found:
            names = ", ".join(kind.name for kind in found)
            raise ConfigError(f"{len(found)} declared workflows are a {wanted}: say which by its name: {names}")
        raise self._unknown(wanted, is_class=not isinstance(workflow, str))

    def _not_startable(self, given: Any) -> ConfigError:
        if isinstance(given, Call):
            given.is_used = True
            given = given.task
        if isinstance(given, Task):
            name = given.name
            return ConfigError(f"{name!r} is a task, and not a workflow or dag: enqueue it with `app.enqueue(...)`")
        return ConfigError(f"start takes a workflow, a dag, or the name of one, and not {given!r:.100}")

    def _workflow(self, name: str) -> AnyWorkflow:
        return self.flow(name).workflow

    def _unknown(self, wanted: str, *, is_class: bool = False) -> ConfigError:
        if wanted in self._tasks:
            return ConfigError(f"{wanted!r} is a task, and not a workflow or dag: enqueue it with `app.enqueue(...)`")
        known = [*self.flows, *self.dags]
        message = f"there is no workflow or dag {wanted!r}; this application declares: {', '.join(known) or 'none'}"
        if is_class and wanted in known:
            return ConfigError(
                f"this {wanted} is not the workflow that the application declares: start it by its name, {wanted!r}"
            )
        declare = f"; declare it: app.workflow({wanted})" if is_class else ""
        return ConfigError(message + (declare or did_you_mean(wanted, known)))


def _check_workflow(given: object) -> None:
    """Raise a `ConfigError` unless this is a class of workflows, or an object of one."""
    if isinstance(given, type) and not issubclass(given, Workflow):
        name = given.__name__
        raise ConfigError(f"app.workflow takes a workflow, and {name} is none: write class {name}(Workflow)")
    if not isinstance(given, type | Workflow):
        raise ConfigError(f"app.workflow takes a workflow, and not {given!r:.100}")


def _refuse_ambiguous(options: dict[str, Any], fields: set[str], what: str) -> None:
    """Refuse an option of `start` that is also a field of what is started."""
    if ambiguous := options.keys() & fields:
        name = min(ambiguous)
        raise PayloadError(
            f"{what}: {name!r} is both an argument of it and an option of start: give the arguments as one object, and "
            "the options beside it"
        )


def _template_of(new: NewRun) -> RunTemplate:
    rate = (new.rate_key, new.key_rate, new.key_burst)
    return RunTemplate(new.kind, new.workflow, new.version, msgspec.Raw(new.input), *rate)


def _is_meant(kind: FlowKind, workflow: type[AnyWorkflow] | AnyWorkflow | str) -> bool:
    if isinstance(workflow, str):
        return kind.name == workflow
    return type(kind.workflow) is workflow or kind.workflow is workflow


def _class_of(workflow: type[AnyWorkflow] | AnyWorkflow) -> type[AnyWorkflow]:
    return workflow if isinstance(workflow, type) else type(workflow)


def _start_type(kind: FlowKind) -> str:
    return qualified_name(declared(kind.workflow).start_event_class)
