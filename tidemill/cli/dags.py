"""`tidemill dag`: check, draw, start and repeat dags; see what their runs do, and answer what they ask."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
from cyclopts import App as Commands
from rich.table import Table

from tidemill.cli import dagfiles
from tidemill.cli.dagfiles import find_dag, unknown_tasks
from tidemill.cli.dagwatch import Watch, dag_kind, follow_run, require_dag, show_run_of_dag
from tidemill.cli.enqueue import read_arguments
from tidemill.cli.place import ANYWHERE, HERE, Place, Reach, opened, operator
from tidemill.cli.render import ago, cut, out, plain, print_json, read_json, short, state, table
from tidemill.cli.roles import application
from tidemill.cli.toldrun import run_number
from tidemill.core.errors import ConfigError, PayloadError
from tidemill.dags.handle import DagHandle
from tidemill.dags.model import UNSET
from tidemill.dags.runner import DAG_KIND, DagKind
from tidemill.store.database import Database
from tidemill.store.runs import list_inputs, show_run
from tidemill.store.runview import count_keepers, list_runs_of_kind

if TYPE_CHECKING:
    from tidemill.cli.remote import Remote

commands = Commands(name="dag", help="Check, draw, start and repeat dags; answer what their runs ask.")
commands.command(dagfiles.check)
commands.command(dagfiles.draw)

STATES = ("running", "parked", "succeeded", "failed", "cancelled")
NO_KEEPER = "no keeper is alive: the run waits until one is, `tidemill up app.py` or `tidemill keeper app.py`"


@commands.command
def start(
    what: str,
    /,
    *,
    app: str,
    args: str = "{}",
    key: str | None = None,
    follow: bool = False,
    json: bool = False,
    place: Place = HERE,
) -> int:
    """Start a durable run of a dag and print its id.

    Parameters
    ----------
    what
        A JSON or YAML file, or the name of a dag that the application declares.
    app
        The application whose tasks the nodes name: app.py, app.py:name or package.module.
    args
        The arguments of the run as a JSON object.
    key
        No second run of this dag with this key.
    follow
        Show the run until it has ended; the exit status says whether it succeeded.
    json
        Print one JSON document.
    """
    known = application(app, place)
    known.acting_as = operator()
    given = read_arguments(args)

    async def begin() -> int:
        dag = await find_dag(what, known)
        for where, told in unknown_tasks(dag, known):
            sys.stderr.write(f"warning: {'.'.join(map(str, where))}: {told}; its jobs wait for a worker that does\n")
        async with opened(known.settings) as database:
            try:
                handle = await known.runs.start_dag(dag, given, key)
            finally:
                await known.close()
            if not handle.created:
                sys.stderr.write(f"nothing new: run r{handle.id} has this key\n")
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
    place: Place = HERE,
) -> None:
    """List runs of dags, the newest first.

    Parameters
    ----------
    state
        Only runs in this state: running, parked, succeeded, failed, cancelled.
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

    async def look() -> list[dict[str, Any]]:
        async with opened(place.settings()) as database:
            found = await list_runs_of_kind(database, DAG_KIND, state=state, workflow=dag, before=older, limit=limit)
            return [dict(row) for row in found]

    rows = asyncio.run(look())
    if json:
        return print_json([plain(row) for row in rows])
    if not rows:
        nothing = "no runs of dags: tidemill dag start FILE --app app.py" if state is dag is None else "no run matches"
        return out().print(nothing, style="dim")
    out().print(_runs_table(rows, datetime.now(UTC)))
    if len(rows) == limit:
        out().print(f"\nolder ones: --before r{rows[-1]['id']}", style="dim")
    return None


@commands.command
def inputs(*, run: str | None = None, limit: int = 200, json: bool = False, place: Reach = ANYWHERE) -> None:
    """List what waits for a person, the longest waiting first.

    Parameters
    ----------
    run
        Only what this run asks: r12.
    limit
        How many to show.
    json
        Print one JSON document.
    """
    if limit < 1:
        raise ConfigError(f"--limit {limit} would show nothing")
    wanted = None if run is None else run_number(run)

    async def stored(database: Database) -> list[dict[str, Any]]:
        if wanted is not None:
            require_dag(await show_run(database, wanted))
        rows = await list_inputs(database, run_id=wanted, kind=DAG_KIND, limit=limit)
        return [_told({**row, "schema": read_json(row["schema"])}) for row in rows]

    def served(server: Remote) -> list[dict[str, Any]]:
        return [_told(row) for row in server.items("inputs", run=wanted, limit=limit) if row["shape"] == "dag"]

    rows = place.ask(stored, served)
    if json:
        return print_json(rows)
    if not rows:
        return out().print("nothing waits for a person", style="dim")
    out().print(_inputs_table(rows, datetime.now(UTC)))
    return out().print("\nanswer one with: tidemill dag submit RUN NODE JSON", style="dim")


@commands.command
def submit(
    id: str, node: str, answer: str, /, *, key: str | None = None, app: str | None = None, place: Reach = ANYWHERE
) -> None:
    """Answer what a run asks. The answer must fit the node's schema; the first that does counts.

    Parameters
    ----------
    id
        The run, as `tidemill dag inputs` shows it: r12.
    node
        The node that asks.
    answer
        The answer as JSON: '{"answer": "yes"}'.
    key
        The same key again is the same answer: safe to say twice.
    app
        The application of the run, if it brings refs of its own: app.py.
    """
    number, value = run_number(id), _read_json(answer, "answer")

    async def stored() -> bool:
        taken = False

        async def put(database: Database, handle: DagHandle, kind: DagKind) -> None:
            nonlocal taken
            taken = await handle.submit(node, value, by=operator(), key=key)

        await _with_handle(number, app, place, put)
        return taken

    if place.server_url is None:
        taken = asyncio.run(stored())
    else:
        with place.remote() as server:
            taken = server.post("runs", number, "inputs", node, body={"value": value, "key": key})["taken"]
    if taken:
        return out().print(f"run r{number} has its answer to {node}")
    sys.stderr.write("warning: nobody drives the run now; the answer is looked at as soon as somebody does\n")
    return out().print(f"the answer to {node} of run r{number} is stored")


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
    place: Place = HERE,
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
    edited = UNSET if edit is None else _read_json(edit, "edited input")
    number = run_number(id)
    status = 0

    async def begin(database: Database, handle: DagHandle, kind: DagKind) -> None:
        nonlocal status
        again = await handle.rerun(start=from_, edited=edited, by=operator())
        status = await _begun(database, again, kind, followed=follow, json=json)

    asyncio.run(_with_handle(number, app, place, begin))
    return status


@commands.command(name="show")
def show_command(
    id: str,
    /,
    *,
    at: int | None = None,
    follow: bool = False,
    app: str | None = None,
    json: bool = False,
    place: Reach = ANYWHERE,
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


async def _with_handle(
    number: int, app: str | None, place: Place, act: Callable[[Database, DagHandle, DagKind], Awaitable[None]]
) -> None:
    known = application(app, place) if app else None
    kind = known.runs.dag_kind if known else dag_kind()
    async with opened(place.settings() if known is None else known.settings) as database:
        require_dag(await show_run(database, number))
        await act(database, DagHandle(database, kind, number, created=False), kind)


async def _begun(database: Database, handle: DagHandle, kind: DagKind, *, followed: bool, json: bool) -> int:
    """Say which run was started, and follow it if that is wanted."""
    if followed:
        if not json:
            sys.stderr.write(f"run r{handle.id}\n")
        return await follow_run(Watch(database, handle.id, kind), json=json)
    alive = await count_keepers(database, DAG_KIND)
    if json:
        print_json({"id": handle.id, "created": handle.created, "keepers": alive})
    else:
        print(f"r{handle.id}", flush=True)
    if not alive:
        sys.stderr.write(f"warning: {NO_KEEPER}\n")
    return 0


def _told(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in ("kind", "shape")}


def _read_json(text: str, what: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise PayloadError(
            f"the {what} {text!r} is not JSON ({error}); a text stands in double quotes: '\"yes\"'"
        ) from error


def _runs_table(rows: list[dict[str, Any]], now: datetime) -> Table:
    made = table(
        "run", "state", "dag", "asks", "jobs", "started", "took", "note", numbers=("asks", "jobs"), wide="note"
    )
    for row in rows:
        took = "" if row["ended_at"] is None else short((row["ended_at"] - row["created_at"]).total_seconds())
        made.add_row(
            f"r{row['id']}",
            state(row["state"]),
            row["workflow"],
            str(row["asks"] or ""),
            f"{row['jobs']:,}" if row["jobs"] else "",
            ago(row["created_at"], now),
            took,
            cut(row["note"]),
        )
    return made


def _inputs_table(rows: list[dict[str, Any]], now: datetime) -> Table:
    made = table("run", "dag", "node", "since", "due", "prompt", wide="prompt")
    for row in rows:
        made.add_row(
            f"r{row['run_id']}",
            row["workflow"],
            row["node"],
            ago(row["asked_at"], now),
            ago(row["due_at"], now),
            cut(row["prompt"]),
        )
    return made
