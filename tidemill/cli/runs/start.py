"""`tidemill start`: start a task, flow or dag by its name."""

from __future__ import annotations

import sys
from typing import Annotated

import msgspec
from cyclopts import Parameter

from tidemill.cli.arguments import AppOption, Json, options_of
from tidemill.cli.connection_options import ANYWHERE, ServerOptions
from tidemill.cli.jobs.enqueue import read_arguments, read_time
from tidemill.cli.render import print_json
from tidemill.core.errors import ConfigError
from tidemill.ops.runs.start import StartWork, start_work


@options_of(StartWork, positional=("name",), without=("args", "tags"))
def start(
    new: StartWork,
    arguments: Annotated[str, Parameter(help="Its arguments as a JSON object.")] = "{}",
    /,
    *,
    at: Annotated[str | None, Parameter(help="Not before this date and time: 2030-01-31T12:00:00+01:00.")] = None,
    tag: Annotated[list[str] | None, Parameter(help="A tag to find it by; may be repeated.")] = None,
    app: AppOption = None,
    json: Json = False,
    connection: ServerOptions = ANYWHERE,
) -> None:
    """Start a task, flow or dag of the application by its name, and print the id of the job or run."""
    if app is None and connection.server_url is None:
        raise ConfigError("name the application that has it: --app app.py, or --server URL")
    args = msgspec.structs.replace(new, args=read_arguments(arguments), at=read_time(at), tags=tag)
    started = connection.do(start_work, args, app=app)
    if json:
        print_json(started)
        return
    id = f"r{started.id}" if started.kind == "run" else str(started.id)
    print(id, flush=True)
    if not started.created:
        sys.stderr.write(f"nothing new: {started.kind} {id} has this unique key\n")
