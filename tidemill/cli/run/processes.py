"""What each process of a deployment runs: `tidemill worker`, `maintenance`, `server`, and one for each other shape.

Each function is the whole life of a process and returns its exit status. `given` are the options that name a database.
Commands call them, and so do copies of a supervisor, which has parsed no command: nothing here loads what parses them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import structlog

from tidemill.app import App
from tidemill.cli.open_database import opened, require_database
from tidemill.cli.run.process_tree import child
from tidemill.cli.run.role_process import Part, application, run_role
from tidemill.core.errors import ConfigError
from tidemill.engine.settings import Settings, load_settings
from tidemill.engine.telemetry.logs import writes_json
from tidemill.roles import jobs_role, maintenance_roles, monitors_role, runs_role
from tidemill.store.database import Database

if TYPE_CHECKING:
    from tidemill.engine.worker.isolation import ClusterProcesses

log = structlog.get_logger("tidemill.server")


def run_maintenance(app: str | None, *, given: Mapping[str, str], metrics: str | None = None) -> int:
    """Maintenance and schedules."""

    def make() -> Part:
        known = application(app, given, metrics=metrics) if app else None
        settings = known.settings if known else load_settings(**given, metrics=metrics)
        database = Database(settings.database(), label="tidemill maintenance")
        declared = known.declarations if known else None
        return Part(maintenance_roles(database, settings, declared), database, settings)

    return run_role(make)


def run_worker(
    app: str,
    only: Literal["jobs", "runs"],
    *,
    given: Mapping[str, str],
    queues: Sequence[str] | None = None,
    max_concurrency: int | None = None,
    ray: str | None = None,
    quarantine: bool = False,
    metrics: str | None = None,
) -> int:
    """Jobs, or runs."""
    options = job_options(queues, max_concurrency, ray)
    words = ("worker", app, "--only", only, "--quarantine", *options)
    apart = None if quarantine else child(f"quarantine of {only}", given, *words)

    def make() -> Part:
        known = application(app, given, metrics=metrics)
        require_database(known.settings)
        declared = known.declarations
        if only == "runs":
            database = known.database(label=f"tidemill run worker {known.name}")
            role = runs_role(declared, database=database, quarantine=apart, is_quarantine=quarantine)
            return Part(role, database, known.settings, patience=None)
        database = known.database(label=f"tidemill worker {known.name}")
        role = jobs_role(
            declared,
            served_queues(known, queues, max_concurrency),
            max_concurrency=max_concurrency,
            database=database,
            cluster=None if ray is None else _ray_cluster(ray, declared.source, max_concurrency),
            quarantine=apart,
            is_quarantine=quarantine,
        )
        return Part(role, database, known.settings, patience=None)

    return run_role(make)


def run_pipelines(app: str, *, given: Mapping[str, str]) -> int:
    """All pipelines of an application."""

    def make() -> Part:
        known = application(app, given)
        require_database(known.settings)
        database = Database(known.settings.database(), label="tidemill pipeline")
        role = known.pipelines.runner(database, known.settings)
        return Part(role, database, known.settings, patience=known.settings.grace_seconds)

    return run_role(make)


def run_monitors(app: str, *, given: Mapping[str, str], metrics: str | None = None) -> int:
    """All monitors of an application."""

    def make() -> Part:
        known = load_monitors(app, given, metrics)
        database = known.database(label=f"tidemill monitor {known.name}")
        return Part(monitors_role(known.declarations, database=database), database, known.settings)

    return run_role(make)


def run_stream(app: str, name: str, *, given: Mapping[str, str]) -> int:
    """The dispatcher of a stream of an application; it starts the engines."""

    def make() -> Part:
        known = application(app, given)
        return stream_part(known.streams.declared[name], app, known.settings)

    return run_role(make)


def stream_part(stream: Any, target: str, settings: Settings) -> Part:
    """The role that dispatches a stream."""
    from tidemill.server.stream_endpoint.serve import serving_stream
    from tidemill.streams.runner.role import dispatcher_role

    database = Database(settings.database(), label=f"tidemill stream {stream.name}")
    role = dispatcher_role(
        stream,
        database,
        target=target,
        serve=serving_stream,
        lease_seconds=settings.lease_seconds,
        heartbeat_seconds=settings.heartbeat_seconds,
    )
    return Part(role, database, settings, patience=None)


def run_server(
    apps: Sequence[str],
    *,
    given: Mapping[str, str],
    settings: Any,
    all_applications: bool = False,
    with_maintenance: bool = False,
) -> int:
    """The server with these `ServerSettings`, and maintenance in the same process if that is asked for."""

    def make() -> Part:
        from tidemill.engine.roles.role import Role, RoleGroup
        from tidemill.server.fair_pool import FairDatabase
        from tidemill.server.local_socket import socket_path
        from tidemill.server.role import ApiServer, serving_others
        from tidemill.server.settings import ServerSettings

        wanted = msgspec.convert(settings, ServerSettings)

        if not all_applications and len(apps) != 1:
            raise ConfigError("name one application, or serve every application of the database with --all")
        if all_applications and wanted.grpc is not None:
            raise ConfigError("gRPC serves one application: start a server of its own for it, without --all")
        known = [application(each, given) for each in apps] or [_without_code(given)]
        first = known[0]
        require_database(first.settings)
        database = FairDatabase(first.settings.database(), label=f"tidemill server {first.name}")
        socket = None if all_applications else str(socket_path(first.settings.directory, first.name))
        served = msgspec.structs.replace(wanted, socket=socket)
        others = serving_others(known, served, partial(_bare, given)) if all_applications else None
        role = Role(ApiServer(first, database, served, on_url=_print_url, others=others), database)
        if not with_maintenance:
            return Part(role, database, first.settings)
        sweeping = Database(first.settings.database(), label="tidemill maintenance", listens_with=database)
        maintaining = maintenance_roles(sweeping, first.settings, first.declarations)
        return Part(RoleGroup("server", maintaining, role), database, first.settings, others=(sweeping,))

    return run_role(make)


def load_monitors(app: str, given: Mapping[str, str], metrics: str | None) -> App:
    """An application that declares monitors."""
    known = application(app, given, metrics=metrics)
    require_database(known.settings)
    if not known.monitors:
        raise ConfigError(
            f"{known.declarations.source} declares no monitor: declare one with app.monitor(Monitor(...))"
        )
    return known


def served_queues(known: App, queues: Sequence[str] | None, max_concurrency: int | None) -> tuple[str, ...]:
    """The queues that a worker would serve, after checking that it could be made."""
    wanted = tuple(queues or known.declarations.served_queues())
    if not wanted:
        raise ConfigError(f"{known.declarations.source} declares no work: put @app.task above a function")
    return known.settings.worker(wanted, max_concurrency).validate().queues


def _ray_cluster(address: str, source: str | None, most: int | None) -> ClusterProcesses:
    from tidemill.integrations.ray.cluster import connect

    return connect(address, source, most=most)


def job_options(queues: Sequence[str] | None, max_concurrency: int | None, ray: str | None = None) -> list[str]:
    """The options of a worker's jobs, for the command line of another process."""
    options = [f"--queue={queue}" for queue in queues or ()]
    options += [] if ray is None else [f"--ray={ray}"]
    return options if max_concurrency is None else [*options, f"--max-concurrency={max_concurrency}"]


def _without_code(given: Mapping[str, str]) -> App:
    """The first application of the database."""

    async def names() -> list[str]:
        async with opened(load_settings(**given)) as database:
            return list(database.applications or ())

    found = asyncio.run(names())
    if not found:
        raise ConfigError("the database has no application yet: start a worker of one, or name its code")
    return _bare(given, given.get("application") or found[0])


def _bare(given: Mapping[str, str], name: str) -> App:
    """An application whose code is elsewhere: what it does can be seen and controlled, and nothing be started."""
    known = App(name)
    known.declarations.source = None
    known.declarations.configure(**{**given, "application": name})
    return known


def _print_url(url: str, link: str | None) -> None:
    if writes_json():  # Programs that read the log do not read what is printed.
        log.info("serving", url=url)
    print(f"serving {url}", flush=True)
    if link is not None:
        from tidemill.server.settings import PORT

        again = "tidemill token link" if url.endswith(f":{PORT}") else f"tidemill token link --url {url}"
        print(f"open {link} (logs one browser in; `{again}` makes another)", flush=True)
