"""`tidemill up`: database, maintenance, workers and server as one process tree, with live output."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated

import msgspec
from cyclopts import Parameter

from tidemill.app import App
from tidemill.cli.arguments import Application, Metrics
from tidemill.cli.connection_options import HERE, ConnectionOptions
from tidemill.cli.run.process_tree import ProcessTree, TerminalView, child, run_processes
from tidemill.cli.run.role_process import application
from tidemill.cli.run.roles import worker_processes
from tidemill.core.errors import ConfigError
from tidemill.engine.roles.supervisor import ChildSpec
from tidemill.server.listening import listen
from tidemill.server.settings import PORT, ServerSettings


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
    keys: Annotated[str, Parameter(show=False)] = "Ctrl-C stops it",  # `tidemill dev` has more of them
    listening: Annotated[int | None, Parameter(show=False)] = None,  # the server's socket, from `tidemill dev`
    connection: ConnectionOptions = HERE,
) -> int:
    """Start everything: database, maintenance, workers, server. Ctrl-C stops it."""
    if workers < 1:
        raise ConfigError(f"--workers {workers}: at least one worker is needed to run anything")
    if grpc is not None and not server:
        raise ConfigError("--grpc is served by the server: leave out --no-server")
    if not ServerSettings(grpc=grpc).is_local:
        raise ConfigError(f"--grpc {grpc}: other machines can reach that, and are served by `tidemill server --grpc`")

    given = connection.arguments()
    served = ServerSettings(
        port=PORT if port is None else port,
        or_any_port=port is None,
        listening=listening,
        read_only=read_only,
        trust_local=trust_local,
        grpc=grpc,
    )

    if server and port is not None and listening is None:
        listen(served).close()  # A port that is taken is said before anything starts.

    def load() -> ProcessTree:
        known = application(app, given, metrics=metrics)
        children = tree(known, app, worker_processes(known, app, queue, max_concurrency, given, workers=workers), given)
        # The server runs code of the application only in its pages: without them, one process serves and maintains.
        is_shared = server and not known.declarations.pages
        if not is_shared:
            call = ("run_maintenance", {"app": app})
            children.insert(0, child("maintenance", given, "maintenance", app, call=call))
        if server:
            serving = _server(app, served, given, with_maintenance=is_shared)
            children.insert(0 if is_shared else len(children), serving)
        queues = tuple(queue or known.declarations.served_queues())
        view = TerminalView(known.name, queues, hint(known), keys)
        return ProcessTree(known.settings, children, "tidemill up", view=view)

    return run_processes(load)


def tree(known: App, app: str, workers: list[ChildSpec], given: Mapping[str, str]) -> list[ChildSpec]:
    """The processes that run code of the application."""
    alone = {"pipeline": known.pipelines.are_kept, "monitor": bool(known.monitors)}
    return [
        *workers,
        *(
            child(name, given, name, "run", app, "--no-supervise", call=(f"run_{name}s", {"app": app}))
            for name, is_declared in alone.items()
            if is_declared
        ),
        *(
            child(
                f"stream-{stream.name}",
                given,
                *("stream", "run", app, stream.name, "--no-supervise"),
                grace=max(known.settings.grace_seconds, stream.drain),
                call=("run_stream", {"app": app, "name": stream.name}),
            )
            for stream in known.streams.declared.values()
        ),
    ]


def _server(app: str, settings: ServerSettings, given: Mapping[str, str], *, with_maintenance: bool) -> ChildSpec:
    options = ["--or-any-port"] if settings.or_any_port else [f"--port={settings.port}"]
    files: tuple[int, ...] = ()
    if settings.listening is not None:
        options.append(f"--listening={settings.listening}")
        files = (settings.listening,)
    if settings.read_only:
        options.append("--read-only")
    if settings.trust_local:
        options.append("--trust-local")
    if settings.grpc is not None:
        options.append(f"--grpc={settings.grpc}")
    if with_maintenance:
        options.append("--with-maintenance")
    values = {"apps": [app], "settings": msgspec.to_builtins(settings), "with_maintenance": with_maintenance}
    # The command reads the settings of a provider from its environment.
    asks_provider = any(name.startswith("TIDEMILL_OIDC_") for name in os.environ)
    call = None if asks_provider else ("run_server", values)
    return child("server", given, "server", app, *options, files=files, call=call)


def hint(app: App) -> str:
    """What to try first: how to enqueue the first task."""
    name = next(iter(app.declarations.tasks), None)
    if name is None:
        return ""
    arguments = ", ".join(f'"{each}": ...' for each in app.declarations.tasks[name].signature.names)
    place = os.path.relpath(app.declarations.source) if app.declarations.source else "app.py"
    return f"nothing to do now: tidemill enqueue {place} {name} '{{{arguments}}}'"
