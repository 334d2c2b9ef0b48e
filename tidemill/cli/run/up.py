"""`tidemill up`: database, maintenance, workers and server as one process tree, with live output."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from typing import Annotated

import msgspec
from cyclopts import Parameter

from tidemill.app import App
from tidemill.cli.arguments import Application, Metrics
from tidemill.cli.connection_options import HERE, ConnectionOptions
from tidemill.cli.run.roles import (
    ProcessTree,
    application,
    child,
    handle_signals,
    make_supervisor,
    opened_for_role,
    supervise,
    worker_processes,
)
from tidemill.core.errors import ConfigError
from tidemill.engine.roles.forking import ask_copy
from tidemill.engine.roles.supervisor import ChildSpec
from tidemill.engine.telemetry.endpoint import serving_metrics
from tidemill.engine.telemetry.logs import configure_logs
from tidemill.server.settings import ServerSettings
from tidemill.store.database import Database


class LoadedApplication(msgspec.Struct, frozen=True):
    """What `up` knows of an application: its processes, its name and queues, and what to try first."""

    processes: ProcessTree
    name: str
    queues: tuple[str, ...]
    hint: str


def up(
    app: Application,
    /,
    *,
    queue: Annotated[
        list[str] | None, Parameter(help="A queue to serve; may be repeated. All queues of the tasks if not given.")
    ] = None,
    max_concurrency: Annotated[int | None, Parameter(help="How many jobs each worker runs at once.")] = None,
    workers: Annotated[int, Parameter(help="How many worker processes to run.")] = 1,
    server: Annotated[
        bool,
        Parameter(
            help="Serve the console and the HTTP API to this machine; a link to log in is printed. For "
            "other machines, see `tidemill server`.",
            negative="--no-server",
        ),
    ] = True,
    port: Annotated[
        int | None, Parameter(help="The port; the usual one or, if that is taken, any free one if not given.")
    ] = None,
    read_only: Annotated[bool, Parameter(help="Refuse every change through the server.")] = False,
    trust_local: Annotated[
        bool,
        Parameter(help="Let every process on this machine do everything without a token, also those of other users."),
    ] = False,
    grpc: Annotated[
        str | None,
        Parameter(help="Serve gRPC to this machine as well, at this address or port, such as 127.0.0.1:7434."),
    ] = None,
    metrics: Metrics = None,
    keys: Annotated[str, Parameter(show=False)] = "Ctrl-C ends it",  # `tidemill dev` has more of them
    listening: Annotated[int | None, Parameter(show=False)] = None,  # the server's socket, from `tidemill dev`
    place: ConnectionOptions = HERE,
) -> int:
    """Start everything: database, maintenance, workers, server. Ctrl-C ends it."""
    if workers < 1:
        raise ConfigError(f"--workers {workers}: at least one worker is needed to run anything")
    if grpc is not None and not server:
        raise ConfigError("--grpc is served by the server: leave out --no-server")
    if not ServerSettings(grpc=grpc).is_local:
        raise ConfigError(f"--grpc {grpc}: other machines can reach that, and are served by `tidemill server --grpc`")

    def load() -> LoadedApplication:
        known = application(app, place, metrics=metrics)
        children = tree(known, app, worker_processes(known, app, queue, max_concurrency, place, workers=workers), place)
        # The server runs code of the application only in its pages: without them, one process serves and maintains.
        is_shared = server and not known.declarations.pages
        if not is_shared:
            children.insert(0, child("maintenance", place, "maintenance", app))
        if server:
            options = _served(port, read_only, trust_local, grpc, listening)
            options += ["--with-maintenance"] if is_shared else []
            files = () if listening is None else (listening,)
            serving = child("server", place, "server", app, *options, files=files)
            children.insert(0 if is_shared else len(children), serving)
        queues = tuple(queue or known.declarations.served_queues())
        return LoadedApplication(ProcessTree(known.settings, children, "tidemill up"), known.name, queues, hint(known))

    return asyncio.run(_run(ask_copy(load, LoadedApplication), keys))


def tree(known: App, app: str, workers: list[ChildSpec], place: ConnectionOptions) -> list[ChildSpec]:
    """The processes that run code of the application."""
    alone = [name for name, some in (("pipeline", known.pipelines.are_kept), ("monitor", known.monitors)) if some]
    return [
        *workers,
        *(child(name, place, name, "run", app, "--no-supervise") for name in alone),
        *(
            child(
                f"stream-{stream.name}",
                place,
                *("stream", "run", app, stream.name, "--no-supervise"),
                grace=max(known.settings.grace_seconds, stream.drain),
            )
            for stream in known.streams.declared.values()
        ),
    ]


def _served(port: int | None, read_only: bool, trust_local: bool, grpc: str | None, listening: int | None) -> list[str]:
    options = ["--or-any-port"] if port is None else [f"--port={port}"]
    if listening is not None:
        options.append(f"--listening={listening}")
    if read_only:
        options.append("--read-only")
    if trust_local:
        options.append("--trust-local")
    if grpc is not None:
        options.append(f"--grpc={grpc}")
    return options


async def _run(loaded: LoadedApplication, keys: str) -> int:
    processes = loaded.processes
    settings = processes.settings
    database = Database(settings.database(), label=processes.label)
    try:
        # Here and not in a child, so that the end of a child is not the end of the embedded server.
        if not await opened_for_role(database):
            return 0
        if sys.stdout.isatty() and sys.stderr.isatty():
            return await _run_on_terminal(loaded, database, keys)
        configure_logs(settings.log_level, settings.log_format, is_copied=True)
        return await supervise(processes, database)
    finally:
        await database.close()


async def _run_on_terminal(loaded: LoadedApplication, database: Database, keys: str) -> int:
    from tidemill.cli.run.live_footer import Footer, OwnLines  # with what draws on a terminal

    processes = loaded.processes
    settings, wide = processes.settings, max(len(spec.name) for spec in processes.specs)
    footer = Footer(loaded.name, database, loaded.queues, wide=wide, keys=keys, hint=loaded.hint)
    with footer, contextlib.redirect_stderr(OwnLines(footer)):
        configure_logs(settings.log_level, "human", colours=True, is_copied=True)
        supervisor = make_supervisor(processes, database, footer.print_line)

        def stop() -> None:
            footer.set_status(
                "stopping at once"
                if supervisor.stopping
                else f"stopping: running jobs have {settings.grace_seconds:g}s to finish; Ctrl-C again gives them back"
            )
            supervisor.stop()

        handle_signals(stop)
        showing = asyncio.create_task(footer.follow())
        try:
            async with serving_metrics(database, settings.metrics, lambda: not supervisor.stopping):
                return await supervisor.run()
        finally:
            showing.cancel()
            await asyncio.wait([showing])


def hint(app: App) -> str:
    """What to try first: how to enqueue the first task."""
    name = next(iter(app.declarations.tasks), None)
    if name is None:
        return ""
    arguments = ", ".join(f'"{each}": ...' for each in app.declarations.tasks[name].signature.names)
    place = os.path.relpath(app.declarations.source) if app.declarations.source else "app.py"
    return f"nothing to do now: tidemill enqueue {place} {name} '{{{arguments}}}'"
