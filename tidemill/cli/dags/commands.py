"""`tidemill dag`: check, draw, start and repeat dags; see what their runs do, and answer what they ask."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from cyclopts import App as Commands
from rich.table import Table

from tidemill.cli.connection_options import ANYWHERE, ServerOptions, opened, operator
from tidemill.cli.dags import files
from tidemill.cli.dags.files import find_dag, is_file, unknown_tasks
from tidemill.cli.dags.watch import RunWatch, ServedWatch, dag_kind, follow_run, require_dag, show_run_of_dag
from tidemill.cli.jobs.enqueue import read_arguments
from tidemill.cli.render import ago, cut, out, print_json, short, state, table
from tidemill.cli.run.roles import application
from tidemill.cli.runs.inputs import inputs, read_value, submit
from tidemill.cli.runs.reported_run import run_number, served_run
from tidemill.core.errors import ConfigError
from tidemill.dags.definition.model import UNSET
from tidemill.dags.runner.dag_handle import DagHandle
from tidemill.dags.runner.runner import DAG_KIND, DagKind
from tidemill.store.database import Database
from tidemill.store.jobs.pages import RunsWanted, list_run_page
from tidemill.store.runs.runs import show_run
from tidemill.store.runs.workers import count_run_workers

if TYPE_CHECKING:
    from tidemill.cli.client import RowClient

commands = Commands(name="dag", help="Check, draw, start and repeat dags; answer what their runs ask.")
for command in (files.check, files.draw, inputs, submit):
    commands.command(command)

STATES = ("running", "needs_attention", "succeeded", "failed", "cancelled")
NO_RUN_WORKER = "no run worker is alive: the run waits until one is, `tidemill up app.py` or `tidemill worker app.py`"


@commands.command
def start(
    what: str,
    /,
    *,
    app: str | None = None,
    args: str = "{}",
    key: str | None = None,
    follow: bool = False,
    json: bool = False,
    place: ServerOptions = ANYWHERE,
) -> int:
    """Start a durable run of a dag and print its id.

    Parameters
    ----------
    what
        A JSON or YAML file, or the name of a dag that the application declares; by a server, a name.
    app
        The application whose tasks the nodes name: app.py, app.py:name or package.module. A server has it.
    args
        The arguments of the run as a JSON object.
    key
        No second run of this dag with this key.
    follow
        Show the run until it has ended; the exit status says whether it succeeded.
    json
        Print one JSON document.
    """
    given = read_arguments(args)
    if place.server_url is not None:
        with place.remote() as server:
            new = {"workflow": _declared_there(server, what, app), "args": given, "key": key}
            return _begun_there(server, server.post("runs", body=new), followed=follow, json=json)
    if app is None:
        raise ConfigError("say which application has the tasks: --app app.py")
    known = application(app, place)
    known.declarations.acting_as = operator()

    async def begin() -> int:
        dag = await find_dag(what, known)
        for where, told in unknown_tasks(dag, known):
            sys.stderr.write(f"warning: {'.'.join(map(str, where))}: {told}; its jobs wait for a worker that does\n")
        async with opened(known.settings) as database:
            try:
                handle = await known.runs.start_dag(dag, given, key)
            finally:
                await known.close()
            return await _begun(database, handle, known.runs.dag_kind, followed=follow, json=json)

    return asyncio.run(begin())


@commands.command
def runs(
    *,
    state: str | None = None,
    dag: str | None = None,
    limit: int = 25,
    before: str | None = None,
    json: bool = False,
    place: ServerOptions = ANYWHERE,
) -> None:
    """List runs of dags, the newest first.

    Parameters
    ----------
    state
        Only runs in this state: running, needs_attention, succeeded, failed, cancelled.
    dag
        Only runs of this dag.
    limit
        How many to show.
    before
        Only runs older than the one with this id: the next page.
    json
        Print one JSON document.
    """
    if state is not None and state not in STATES:
        raise ConfigError(f"there is no run state {state!r}; the states are {', '.join(STATES)}")
    if limit < 1:
        raise ConfigError(f"--limit {limit} would show nothing")
    older = None if before is None else run_number(before)

    async def stored(database: Database) -> list[dict[str, Any]]:
        wanted = RunsWanted(() if state is None else (state,), dag, "dag")
        return [dict(row) for row in await list_run_page(database, wanted, before=older, limit=limit)]

    def served(server: RowClient) -> list[dict[str, Any]]:
        found = server.pages("runs", limit=limit, before=older, state=state, workflow=dag, shape="dag")
        return [served_run(row) for row in found]

    rows = place.ask(stored, served)
    if json:
        return print_json(rows)
    if not rows:
        nothing = "no runs of dags: tidemill dag start FILE --app app.py" if state is dag is None else "no run matches"
        return out().print(nothing, style="dim")
    out().print(_runs_table(rows, datetime.now(UTC)))
    if len(rows) == limit:
        out().print(f"\nolder ones: --before r{rows[-1]['id']}", style="dim")
    return None


@commands.command
def rerun(
    id: str,
    /,
    *,
    from_: str | None = None,
    edit: str | None = None,
    app: str | None = None,
    follow: bool = False,
    json: bool = False,
    place: ServerOptions = ANYWHERE,
) -> int:
    """Start a new run that does again what did not succeed in another, and print its id.

    Parameters
    ----------
    id
        The run to repeat, as `tidemill dag runs` shows it: r12.
    from_
        Do this node again too, and everything that follows from it.
    edit
        With --from: the node's arguments as a JSON object in place of the declared ones, or the answer to its question.
    app
        The application of the run, if it brings refs of its own: app.py.
    follow
        Show the new run until it has ended; the exit status says whether it succeeded.
    json
        Print one JSON document.
    """
    if edit is not None and from_ is None:
        raise ConfigError("--edit is for one node: say which with --from NODE")
    edited = UNSET if edit is None else read_value(edit, "edited input")
    number = run_number(id)
    if place.server_url is not None:
        with place.remote() as server:
            body = {"start": from_, **({} if edited is UNSET else {"edited": edited})}
            return _begun_there(server, server.post("runs", number, "rerun", body=body), followed=follow, json=json)

    async def begin() -> int:
        known = application(app, place) if app else None
        kind = known.runs.dag_kind if known else dag_kind()
        async with opened(place.settings() if known is None else known.settings) as database:
            require_dag(await show_run(database, number))
            handle = DagHandle(database, kind, number, created=False)
            again = await handle.rerun(start=from_, edited=edited, by=operator())
            return await _begun(database, again, kind, followed=follow, json=json)

    return asyncio.run(begin())


@commands.command(name="show")
def show_command(
    id: str,
    /,
    *,
    at: int | None = None,
    follow: bool = False,
    app: str | None = None,
    json: bool = False,
    place: ServerOptions = ANYWHERE,
) -> int:
    """Show one run: the tree of its nodes, how far each is, and why. The same as `tidemill run ID`.

    Parameters
    ----------
    id
        The run, as `tidemill dag runs` shows it: r12.
    at
        Show it as it was after this tick.
    follow
        Keep showing it until it has ended; the exit status says whether it succeeded.
    app
        The application of the run, if it brings refs of its own: app.py.
    json
        Print one JSON document.
    """
    return show_run_of_dag(run_number(id), at=at, followed=follow, app=app, json=json, place=place)


async def _begun(database: Database, handle: DagHandle, kind: DagKind, *, followed: bool, json: bool) -> int:
    """Say which run was started, and follow it if that is wanted."""
    _say_begun(handle.id, handle.created, followed=followed, json=json)
    if followed:
        return await follow_run(RunWatch(database, handle.id, kind), json=json)
    if not await count_run_workers(database, DAG_KIND):
        sys.stderr.write(f"warning: {NO_RUN_WORKER}\n")
    return 0


def _begun_there(server: RowClient, started: dict[str, Any], *, followed: bool, json: bool) -> int:
    """The same by a server, which tells of a run that nobody drives when it is looked at."""
    _say_begun(started["id"], started["created"], followed=followed, json=json)
    return asyncio.run(follow_run(ServedWatch(server, started["id"]), json=json)) if followed else 0


def _say_begun(number: int, created: bool, *, followed: bool, json: bool) -> None:
    if not created:
        sys.stderr.write(f"nothing new: run r{number} has this key\n")
    if followed and not json:
        sys.stderr.write(f"run r{number}\n")
    elif json and not followed:
        print_json({"id": number, "created": created})
    elif not followed:
        print(f"r{number}", flush=True)


def _declared_there(server: RowClient, what: str, app: str | None) -> str:
    """The name of a dag that a server can start."""
    if app is not None:
        raise ConfigError(f"the server has the application: leave out --app {app}")
    names = [each["name"] for each in server.items("workflows") if each["shape"] == "dag"]
    if what not in names:
        told = ", ".join(names) or "none"
        hint = "; a file is started where the database is" if is_file(what) else ""
        raise ConfigError(f"the server's application declares no dag {what!r}, but {told}{hint}")
    return what


def _runs_table(rows: list[dict[str, Any]], now: datetime) -> Table:
    made = table("run", "state", "dag", "asks", "started", "took", "note", numbers=("asks",), wide="note")
    for row in rows:
        took = "" if row["ended_at"] is None else short((row["ended_at"] - row["created_at"]).total_seconds())
        made.add_row(
            f"r{row['id']}",
            state(row["state"]),
            row["workflow"],
            str(row["asks"] or ""),
            ago(row["created_at"], now),
            took,
            cut(row["note"]),
        )
    return made
