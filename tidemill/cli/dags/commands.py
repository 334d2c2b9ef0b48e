"""`tidemill dag`: check, draw, start and repeat dags, cancel nodes of their runs, and answer what they ask."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import App as Commands, Parameter

from tidemill.cli.arguments import AppOption, Follow, Json, RunId, run_number
from tidemill.cli.connection_options import ANYWHERE, ServerOptions
from tidemill.cli.dags import files
from tidemill.cli.dags.files import find_dag, is_file, unknown_tasks
from tidemill.cli.dags.watch import follow_run
from tidemill.cli.jobs.enqueue import read_arguments
from tidemill.cli.render import print_json
from tidemill.cli.run.role_process import application
from tidemill.cli.runs.inputs import inputs, read_value, submit
from tidemill.core.codec import decode
from tidemill.core.errors import ConfigError
from tidemill.dags.definition.files import load_dag
from tidemill.ops.operator.operation import Nothing, Operator
from tidemill.ops.runs.dags import CancelNode, GetTree, RerunDag, cancel_node, get_dag_tree, list_workflows, rerun_dag
from tidemill.ops.runs.runs import RunStarted, StartRun, start_run

if TYPE_CHECKING:
    from tidemill.app import App
    from tidemill.dags.definition.model import Dag

commands = Commands(name="dag", help="Check, draw, start and repeat dags; answer what their runs ask.")
for command in (files.check, files.draw, inputs, submit):
    commands.command(command)

NO_RUN_WORKER = "no run worker is alive: the run waits until one is, `tidemill up app.py` or `tidemill worker app.py`"


@commands.command
def start(
    what: Annotated[str, Parameter(help="A JSON or YAML file, or the name of a dag that the application declares.")],
    /,
    *,
    app: AppOption = None,
    args: Annotated[str, Parameter(help="The arguments of the run as a JSON object.")] = "{}",
    unique_key: Annotated[str | None, Parameter(help="No second run of this dag with this key.")] = None,
    follow: Follow = False,
    json: Json = False,
    connection: ServerOptions = ANYWHERE,
) -> int:
    """Start a durable run of a dag and print its id."""
    new = StartRun(workflow=what, args=read_arguments(args), unique_key=unique_key)
    known: App | None = None
    if connection.server_url is not None:
        if app is not None:
            raise ConfigError(f"the server has the application: leave out --app {app}")
        if is_file(what):
            new = _with_definition(new, load_dag(what))
    elif app is None:
        raise ConfigError("name the application that has the tasks: --app app.py")
    else:
        known = application(app, connection.arguments())

    async def work(at: Operator) -> int:
        start = new
        if known is not None:
            dag = await find_dag(what, known)
            for where, problem in unknown_tasks(dag, known):
                path = ".".join(map(str, where))
                sys.stderr.write(f"warning: {path}: {problem}; its jobs wait for a worker that does\n")
            start = _with_definition(new, dag)
        elif new.definition is None:
            await _require_declared(at, what)
        return await _show_started(at, await at.do(start_run, start), follow=follow, json=json)

    return connection.run(work, app=known)


@commands.command
def rerun(
    id: RunId,
    /,
    *,
    from_: Annotated[str | None, Parameter(help="Do this node again too, and everything that follows from it.")] = None,
    edit: Annotated[
        str | None,
        Parameter(
            help="With --from: the node's arguments as a JSON object in place of the declared ones, or "
            "the answer to its question."
        ),
    ] = None,
    app: AppOption = None,
    follow: Follow = False,
    json: Json = False,
    connection: ServerOptions = ANYWHERE,
) -> int:
    """Start a new run that does again what did not succeed in another, and print its id."""
    if edit is not None and from_ is None:
        raise ConfigError("--edit is for one node: name it with --from NODE")
    args = RerunDag(id=run_number(id), start=from_)
    if edit is not None:
        args = msgspec.structs.replace(args, edited=read_value(edit, "edited input"))

    async def work(at: Operator) -> int:
        return await _show_started(at, await at.do(rerun_dag, args), follow=follow, json=json)

    return connection.run(work, app=app)


@commands.command(name="cancel-node")
def cancel_node_command(
    id: RunId,
    node: Annotated[str, Parameter(help="The node, as `tidemill run ID` names it.")],
    /,
    *,
    reason: Annotated[str | None, Parameter(help="Why, for the notes of the nodes.")] = None,
    app: AppOption = None,
    json: Json = False,
    connection: ServerOptions = ANYWHERE,
) -> None:
    """Cancel a node of a run with all that follows from it, and print which nodes these are; the others go on."""
    args = CancelNode(id=run_number(id), node=node, reason=reason)
    cancelled = connection.run(lambda at: at.do(cancel_node, args), app=app)
    if json:
        print_json(cancelled)
    else:
        print(f"cancelled: {', '.join(cancelled.nodes)}")


async def _require_declared(at: Operator, name: str) -> None:
    """Raise an error unless the server's application declares a dag of this name."""
    names = [each.name for each in (await at.do(list_workflows, Nothing())).items if each.shape == "dag"]
    if name not in names:
        raise ConfigError(f"the server's application declares no dag {name!r}, but {', '.join(names) or 'none'}")


def _with_definition(new: StartRun, dag: Dag) -> StartRun:
    """A start that carries the dag itself, so that it need not be declared."""
    return msgspec.structs.replace(new, workflow=dag.name, definition=decode(dag.to_json()))


async def _show_started(at: Operator, started: RunStarted, *, follow: bool, json: bool) -> int:
    """Print which run was started, and follow it if that is wanted."""
    if not started.created:
        sys.stderr.write(f"nothing new: run r{started.id} has this key\n")
    if follow:
        if not json:
            sys.stderr.write(f"run r{started.id}\n")
        return await follow_run(at, started.id, json=json)
    if json:
        print_json(started)
    else:
        print(f"r{started.id}", flush=True)
    if not (await at.do(get_dag_tree, GetTree(id=started.id))).run_workers:
        sys.stderr.write(f"warning: {NO_RUN_WORKER}\n")
    return 0
