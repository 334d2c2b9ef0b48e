"""The roles of a deployment, each in a process of its own: `tidemill worker`, `tidemill maintenance`.

SIGTERM or Ctrl-C lets the role end in its own time, a second one makes it end at once. Exit status: 0 when it
was stopped, 70 when its lease was lost, 75 and 76 when a watchdog ended it.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import psutil
import structlog
from cyclopts import Parameter

from tidemill.app import App
from tidemill.cli.arguments import Application, Metrics
from tidemill.cli.connection_options import HERE, ConnectionOptions, open_or_fail, require_database
from tidemill.cli.main import run as run_command
from tidemill.core.errors import ConfigError, LeaseLostError, StoreError
from tidemill.engine.application.load_app import load_app
from tidemill.engine.application.workflow_access import grant_access
from tidemill.engine.containment.exit_status import EXIT_FENCED, EXIT_MISCONFIGURED, exit_now
from tidemill.engine.containment.quarantine import announcer
from tidemill.engine.roles.forking import ask_copy
from tidemill.engine.roles.role import Runnable
from tidemill.engine.roles.supervisor import PYTHON, ChildSpec, Supervisor, end_with_supervisor
from tidemill.engine.settings import Settings
from tidemill.engine.telemetry.endpoint import serving_metrics
from tidemill.engine.telemetry.logs import configure_logs
from tidemill.engine.telemetry.sampler import sampling
from tidemill.engine.telemetry.tracing import configure_tracing
from tidemill.engine.worker.isolation import ClusterProcesses
from tidemill.roles import jobs_role, maintenance_roles, runs_role
from tidemill.store.database import Database
from tidemill.store.maintenance.work_left import count_running, count_work
from tidemill.store.migrate import Chain, migrate

try:
    from uvloop import run as run_loop
except ImportError:
    from asyncio import run as run_loop

log = structlog.get_logger("tidemill.cli")

STOP_PATIENCE = 5.0  # for what a role does last, unless it has jobs to wait for
LAST_CALL = 10.0  # after a second signal
IDLE_POLL = 0.5  # between looks for work that is left, with --until-idle
STRAGGLERS = 0.5  # for threads to end, before the process ends without them


class Part(NamedTuple):
    """A role, ready to be played; `patience` is how long it may take to stop, None for as long as it needs."""

    role: Runnable
    database: Database
    settings: Settings
    patience: float | None = STOP_PATIENCE
    others: tuple[Database, ...] = ()
    """What it uses besides its database: closed with it."""


class ProcessTree(msgspec.Struct, frozen=True):
    """The processes that a command keeps running, and their settings: what is known once the application is loaded."""

    settings: Settings
    specs: list[ChildSpec]
    label: str
    grace: float | None = None


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
    place: ConnectionOptions = HERE,
) -> int:
    """Migrate the schema, keep the tables in order (leases, dead workers, retention), and fire schedules."""

    def make() -> Part:
        known = application(app, place, metrics=metrics) if app else None
        settings = known.settings if known else place.settings(metrics=metrics)
        database = Database(settings.database(), label="tidemill maintenance")
        declared = known.declarations if known else None
        return Part(maintenance_roles(database, settings, declared), database, settings)

    return run_role(make)


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
    place: ConnectionOptions = HERE,
) -> int:
    """Run the jobs and the durable runs of an application, each in a process that is started again when it dies."""
    if until_idle and only is not None:
        raise ConfigError("--until-idle is about jobs and runs together: leave out --only")
    if quarantine and only is None:
        raise ConfigError("--quarantine is for one kind of work: add --only jobs or --only runs")
    if only == "runs" and (queue or max_concurrency is not None or ray is not None):
        raise ConfigError("--queue, --max-concurrency and --ray are about jobs: leave out --only runs")

    apart: ChildSpec | None = None

    def make() -> Part:
        known = application(app, place, metrics=metrics)
        require_database(known.settings)
        declared = known.declarations
        if only == "runs":
            database = known.database(label=f"tidemill run worker {known.name}")
            role = runs_role(declared, database=database, quarantine=apart, is_quarantine=quarantine)
            return Part(role, database, known.settings, patience=None)
        database = known.database(label=f"tidemill worker {known.name}")
        queues = served_queues(known, queue, max_concurrency)
        role = jobs_role(
            declared,
            queues,
            max_concurrency=max_concurrency,
            database=database,
            cluster=None if ray is None else _ray_cluster(ray, declared.source, max_concurrency),
            quarantine=apart,
            is_quarantine=quarantine,
        )
        return Part(role, database, known.settings, patience=None)

    if only is not None:
        options = job_options(queue, max_concurrency, ray)
        arguments = ("worker", app, "--only", only, "--quarantine", *options)
        apart = None if quarantine else child(f"quarantine of {only}", place, *arguments)
        return run_role(make)

    def load() -> ProcessTree:
        known = application(app, place, metrics=metrics)
        require_database(known.settings)
        specs = worker_processes(known, app, queue, max_concurrency, place, ray=ray)
        return ProcessTree(known.settings, specs, f"tidemill worker {known.name}")

    tree = ask_copy(load, ProcessTree)
    idle = partial(wait_until_idle, queues=queue, calm=2 * tree.settings.heartbeat_seconds) if until_idle else None
    return run_supervised(tree, until=idle)


def worker_processes(
    known: App,
    app: str,
    queues: list[str] | None,
    max_concurrency: int | None,
    place: ConnectionOptions,
    *,
    workers: int = 1,
    ray: str | None = None,
) -> list[ChildSpec]:
    """The processes of a worker: some for jobs, unless there can be none, and one for runs."""
    command = ("worker", app, "--only")
    found: list[ChildSpec] = []
    if known.declarations.has_work or queues or not declares_shapes(known):
        served_queues(known, queues, max_concurrency)
        options = job_options(queues, max_concurrency, ray)
        names = ["jobs"] if workers == 1 else [f"jobs-{number}" for number in range(1, workers + 1)]
        found += [child(name, place, *command, "jobs", *options) for name in names]
    return [*found, child("runs", place, *command, "runs")]


def _ray_cluster(address: str, source: str | None, most: int | None) -> ClusterProcesses:
    from tidemill.integrations.ray.cluster import connect

    return connect(address, source, most=most)


def job_options(queues: list[str] | None, max_concurrency: int | None, ray: str | None = None) -> list[str]:
    """The options of a worker's jobs, for the command line of another process."""
    options = [f"--queue={queue}" for queue in queues or ()]
    options += [] if ray is None else [f"--ray={ray}"]
    return options if max_concurrency is None else [*options, f"--max-concurrency={max_concurrency}"]


def declares_shapes(known: App) -> bool:
    """Whether an application declares anything but tasks."""
    return bool(known.runs.declares_any or known.pipelines.declared or known.streams.declared or known.monitors)


def application(target: str, place: ConnectionOptions, **settings: Any) -> App:
    """The application that a command names, with the command's options on top of its own settings."""
    known: App = load_app(target)
    if place.application not in (None, known.name):
        raise ConfigError(f"{target} is the application {known.name!r}, and not {place.application!r}")
    known.declarations.configure(**place.arguments(), **settings)
    return known


def served_queues(known: App, queues: list[str] | None, max_concurrency: int | None) -> tuple[str, ...]:
    """The queues that a worker would serve, after checking that it could be made."""
    wanted = tuple(queues or known.declarations.served_queues())
    if not wanted:
        raise ConfigError(f"{known.declarations.source} declares no task: put @app.task above a function")
    return known.settings.worker(wanted, max_concurrency).validate().queues


def child(
    name: str, place: ConnectionOptions, *arguments: str, grace: float | None = None, files: tuple[int, ...] = ()
) -> ChildSpec:
    """A command in a process of its own, on the same database; `files` are those of ours that it has too."""
    command = (*PYTHON, *arguments, *place.options())
    return ChildSpec(name, command, grace, place.environment(), files)


def run_role(make: Callable[[], Part]) -> int:
    """A role's whole life, alone or as a supervisor's child; returns the exit status."""
    supervised = end_with_supervisor()
    status = 0
    end_tracing: Callable[[], None] | None = None
    try:
        part = make()
        if supervised is not None and supervised.piped:
            sys.stdout.reconfigure(line_buffering=True)  # pyright: ignore[reportAttributeAccessIssue]
            form = "human" if part.settings.log_format == "auto" else part.settings.log_format
            configure_logs(part.settings.log_level, form, colours=True)
        else:
            configure_logs(part.settings.log_level, part.settings.log_format)
        grant_access(part.settings, part.database)
        end_tracing = configure_tracing(part.role.name)
        run_loop(_run_role(part, supervised=supervised is not None))
    except LeaseLostError as error:
        sys.stderr.write(f"error: {error}\n")
        status = EXIT_FENCED
    except ConfigError as error:
        if supervised is None:
            raise
        sys.stderr.write(f"error: {error}\n")
        status = EXIT_MISCONFIGURED
    finally:
        if end_tracing is not None:
            end_tracing()
    exit_despite_threads(status)
    return status


def handle_signals(stop: Callable[[], None]) -> None:
    """Call `stop` on each SIGTERM, Ctrl-C and hang-up, where those are not ignored."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, stop)


def exit_despite_threads(status: int) -> None:
    """End the process now if threads of abandoned jobs would keep it from ending."""
    give_up = time.monotonic() + STRAGGLERS
    for thread in threading.enumerate():
        if thread is threading.current_thread() or thread.daemon:
            continue
        thread.join(max(0.0, give_up - time.monotonic()))
        if thread.is_alive():
            exit_now(status)


async def _run_role(part: Part, *, supervised: bool) -> None:
    """Run a role until a signal stops it."""
    loop = asyncio.get_running_loop()
    role = part.role
    ready = asyncio.ensure_future(role.wait_ready())
    signals = 0
    life = asyncio.ensure_future(_live(part, supervised=supervised, is_ready=lambda: ready.done() and not signals))

    def on_signal() -> None:
        nonlocal signals
        signals += 1
        role.stop()
        if not ready.done():
            life.cancel()  # It waits for a database or a schema: there is nothing to finish.
        elif signals == 2:
            loop.call_later(LAST_CALL, exit_now, 1)
        elif part.patience is not None:
            loop.call_later(part.patience, life.cancel)

    handle_signals(on_signal)
    try:
        await life
    except asyncio.CancelledError:
        if not signals:
            raise
    finally:
        ready.cancel()
        for database in (*part.others, part.database):
            await database.close()


async def _live(part: Part, *, supervised: bool, is_ready: Callable[[], bool]) -> None:
    # Probes are answered while it waits for the database: else it would be taken for dead, and be killed.
    async with serving_metrics(part.database, None if supervised else part.settings.metrics, is_ready):
        await open_or_fail(part.database, patience=None)
        async with sampling(part.database, every=part.settings.sample_every, when=part.role.wait_ready):
            await part.role.run()


async def opened_for_role(database: Database) -> bool:
    """Wait for the database, however long it is away; False if a signal ended the wait."""
    opening = asyncio.ensure_future(open_or_fail(database, patience=None))

    def give_up() -> None:
        opening.cancel()

    handle_signals(give_up)
    try:
        await opening
    except asyncio.CancelledError:
        if not opening.cancelled():
            raise
        return False
    return True


def run_supervised(
    tree: ProcessTree,
    *,
    chain: Chain | None = None,
    until: Callable[[Database], Awaitable[None]] | None = None,
) -> int:
    """Be the parent of these processes until a signal, or until `until` returns; returns the exit status.

    `chain` is migrated first.
    """
    configure_logs(tree.settings.log_level, tree.settings.log_format, is_copied=True)
    return asyncio.run(_run_supervised(tree, chain, until))


async def _run_supervised(
    tree: ProcessTree, chain: Chain | None, until: Callable[[Database], Awaitable[None]] | None
) -> int:
    """Hold the embedded server here, so that the end of a child is not the database's."""
    database = Database(tree.settings.database(), label=tree.label)

    async def opened() -> bool:
        if not await opened_for_role(database):
            return False
        if chain is not None:
            await migrate(database, chain)
        return True

    try:
        return await supervise(tree, database, until=until, opened=opened)
    finally:
        await database.close()


async def supervise(
    tree: ProcessTree,
    database: Database,
    *,
    until: Callable[[Database], Awaitable[None]] | None = None,
    opened: Callable[[], Awaitable[bool]] | None = None,
) -> int:
    """Keep these processes running until a signal, or until `until` returns.

    `opened` opens the database first, if it is not open; probes are answered meanwhile.
    """
    supervisor = make_supervisor(tree, database)
    is_open = opened is None
    async with serving_metrics(database, tree.settings.metrics, lambda: is_open and not supervisor.stopping):
        if opened is not None:
            if not await opened():
                return 0
            is_open = True
        handle_signals(supervisor.stop)
        ending = asyncio.ensure_future(_stop_after(until(database), supervisor)) if until is not None else None
        try:
            return await supervisor.run()
        finally:
            if ending is not None:
                ending.cancel()


def make_supervisor(
    tree: ProcessTree, database: Database, on_line: Callable[[str, str], None] | None = None
) -> Supervisor:
    """What keeps these processes running; `on_line` is given what they print."""
    return Supervisor(
        tree.specs,
        grace=tree.settings.grace_seconds if tree.grace is None else tree.grace,
        on_line=on_line,
        on_death=announcer(database),
        silence=tree.settings.lease_seconds,
        run_command=run_command,
    )


async def _stop_after(end: Awaitable[None], supervisor: Supervisor) -> None:
    await end
    supervisor.stop()


async def wait_until_idle(database: Database, *, queues: list[str] | None, calm: float) -> None:
    """Return when nothing has been due for `calm` seconds, in which the children have reported that nothing runs."""
    calm_since: float | None = None
    while True:
        await asyncio.sleep(IDLE_POLL)
        try:
            left = await count_work(database, queues)
            pids = [child.pid for child in psutil.Process().children()]
            running = await count_running(database, socket.gethostname(), pids)
        except StoreError:  # The database is away: what is due is unknown.
            calm_since = None
            continue
        if left.jobs or left.runs or left.messages or running:
            calm_since = None
        elif calm_since is None:
            calm_since = time.monotonic()
        elif time.monotonic() - calm_since >= calm:
            return
