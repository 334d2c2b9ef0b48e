"""Starting anything by its name: a task becomes a job, a flow or dag a run."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from tidemill.core.did_you_mean import did_you_mean
from tidemill.core.errors import ConfigError
from tidemill.declarations import Declarations
from tidemill.engine.jobs.enqueue_options import OPTIONS
from tidemill.engine.runs.start_options import refuse_job_options
from tidemill.ops.jobs.job_options import OptionsOfOne
from tidemill.ops.jobs.jobs import EnqueueJob, enqueue_job
from tidemill.ops.operator.operation import ListOf, Nothing, doc, operation
from tidemill.ops.runs.runs import StartRun, start_run
from tidemill.store.transaction import Reader, Transaction


class StartWork(OptionsOfOne, frozen=True, kw_only=True):
    """What to start: the name of a task, flow or dag, its arguments, and options. Some are for tasks only."""

    name: Annotated[str, doc("The name of the task, flow or dag.")]
    args: Annotated[dict[str, Any], doc("Its arguments.")] = msgspec.field(default_factory=dict)


class Startable(msgspec.Struct, frozen=True):
    """A task, flow or dag that can be started by its name."""

    name: str
    kind: Literal["task", "flow", "dag"]
    schema: Annotated[Any, doc("The JSON Schema of its arguments; null if it declares none.")] = None


class WorkStarted(msgspec.Struct, frozen=True):
    """The job or run; `created` is false when one with this unique key existed already."""

    kind: Literal["job", "run"]
    id: int
    created: Annotated[bool, doc("False when a job or run with this unique key existed already.")]


@operation("GET /start", role="viewer")
async def list_startable(at: Reader, args: Nothing, declared: Declarations) -> ListOf[Startable]:
    """List the tasks, flows and dags of the application, with the arguments that they take."""
    from tidemill.flows.runner.steps.human_input import schema_of_start

    tasks = [Startable(task.name, "task", task.signature.schema) for task in declared.tasks.values()]
    runs = declared.runs
    flows = [Startable(name, "flow", schema_of_start(kind.workflow)) for name, kind in runs.flows.items()]
    return ListOf([*tasks, *flows, *(Startable(name, "dag", dag.args) for name, dag in runs.dags.items())])


@operation("POST /start", role="operator", status=201)
async def start_work(tx: Transaction, args: StartWork, declared: Declarations) -> WorkStarted:
    """Start a task, flow or dag by its name; the job or run is stored when this returns."""
    options = {name: value for name in OPTIONS if (value := getattr(args, name)) is not None}
    tasks, runs = declared.tasks, [*declared.runs.flows, *declared.runs.dags]
    if args.name in tasks and args.name in runs:
        raise ConfigError(f"a task and a workflow are called {args.name!r}: use `tidemill enqueue`, or POST /runs")
    if args.name in tasks:
        job = await enqueue_job.run(tx, EnqueueJob(task=args.name, args=args.args, **options), declared)
        return WorkStarted("job", job.id, job.created)
    if args.name not in runs and await declared.runs.find_dag(args.name) is None:
        known = [*tasks, *runs]
        raise ConfigError(
            f"there is no task, flow or dag {args.name!r}; this application declares: {', '.join(known) or 'none'}"
            f"{did_you_mean(args.name, known)}"
        )
    refuse_job_options(options)
    run = await start_run.run(tx, StartRun(workflow=args.name, args=args.args, **options), declared)
    return WorkStarted("run", run.id, run.created)
