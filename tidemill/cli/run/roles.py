"""The roles of a deployment, each in a process of its own: `tidemill worker`, `tidemill maintenance`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from cyclopts import Parameter

from tidemill.app import App
from tidemill.cli.arguments import Application, Metrics
from tidemill.cli.connection_options import HERE, ConnectionOptions
from tidemill.cli.open_database import require_database
from tidemill.cli.run.process_tree import ProcessTree, child, run_processes
from tidemill.cli.run.processes import job_options, run_maintenance, run_worker, served_queues
from tidemill.cli.run.role_process import application
from tidemill.core.errors import ConfigError
from tidemill.engine.roles.supervisor import ChildSpec


def maintenance(
    app: Annotated[
        str | None,
        Parameter(
            help="The application whose settings, migrations and schedules to use: app.py, app.py:name "
            "or package.module."
        ),
    ] = None,
    /,
    *,
    metrics: Metrics = None,
    connection: ConnectionOptions = HERE,
) -> int:
    """Migrate the schema, keep the tables in order (leases, dead workers, retention), and fire schedules."""
    return run_maintenance(app, given=connection.arguments(), metrics=metrics)


def worker(
    app: Application,
    /,
    *,
    only: Annotated[
        Literal["jobs", "runs"] | None,
        Parameter(help="Run only jobs, or only runs of workflows and dags, in this very process."),
    ] = None,
    queue: Annotated[
        list[str] | None, Parameter(help="A queue to serve; may be repeated. All that the tasks name, if not given.")
    ] = None,
    max_concurrency: Annotated[int | None, Parameter(help="How many jobs to run at once.")] = None,
    ray: Annotated[
        str | None,
        Parameter(
            help="Run the jobs on the Ray cluster at this address, as many as it has room for; auto finds the cluster "
            "of this machine. Needs tidemill[ray]."
        ),
    ] = None,
    until_idle: Annotated[
        bool, Parameter(help="End when no job and no run is due or running, as a job of Kubernetes or of cron should.")
    ] = False,
    quarantine: Annotated[
        bool,
        Parameter(
            help="Run only suspects, apart from all other work, and end when there are none: see "
            "docs/containment.md. Workers start this process themselves."
        ),
    ] = False,
    metrics: Metrics = None,
    connection: ConnectionOptions = HERE,
) -> int:
    """Run the jobs and the durable runs of an application, each in a process that is started again when it dies."""
    if until_idle and only is not None:
        raise ConfigError("--until-idle is about jobs and runs together: leave out --only")
    if quarantine and only is None:
        raise ConfigError("--quarantine is for one kind of work: add --only jobs or --only runs")
    if only == "runs" and (queue or max_concurrency is not None or ray is not None):
        raise ConfigError("--queue, --max-concurrency and --ray are about jobs: leave out --only runs")

    given = connection.arguments()
    if only is not None:
        return run_worker(
            app,
            only,
            given=given,
            queues=queue,
            max_concurrency=max_concurrency,
            ray=ray,
            quarantine=quarantine,
            metrics=metrics,
        )

    def load() -> ProcessTree:
        known = application(app, given, metrics=metrics)
        require_database(known.settings)
        specs = worker_processes(known, app, queue, max_concurrency, given, ray=ray)
        label = f"tidemill worker {known.name}"
        return ProcessTree(known.settings, specs, label, until_idle=until_idle, queues=queue)

    return run_processes(load)


def worker_processes(
    known: App,
    app: str,
    queues: list[str] | None,
    max_concurrency: int | None,
    given: Mapping[str, str],
    *,
    workers: int = 1,
    ray: str | None = None,
) -> list[ChildSpec]:
    """The processes of a worker: some for jobs, unless there can be none, and one for runs."""
    command = ("worker", app, "--only")
    found: list[ChildSpec] = []
    if known.declarations.has_work or queues or not declares_shapes(known):
        served_queues(known, queues, max_concurrency)
        words = (*command, "jobs", *job_options(queues, max_concurrency, ray))
        values = {"app": app, "only": "jobs", "queues": queues, "max_concurrency": max_concurrency, "ray": ray}
        names = ["jobs"] if workers == 1 else [f"jobs-{number}" for number in range(1, workers + 1)]
        found += [child(name, given, *words, call=("run_worker", values)) for name in names]
    return [*found, child("runs", given, *command, "runs", call=("run_worker", {"app": app, "only": "runs"}))]


def declares_shapes(known: App) -> bool:
    """Whether an application declares anything but tasks."""
    return bool(known.runs.declares_any or known.pipelines.declared or known.streams.declared or known.monitors)
