"""`tidemill runs`, `tidemill run ID`: durable runs of workflows, and the journal of one of them.

What runs are made of is loaded where it is needed: it takes a while, and a list or a server needs none of it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.text import Text

from tidemill.cli.connection_options import ANYWHERE, ServerOptions
from tidemill.cli.jobs.page import json_text
from tidemill.cli.render import ago, cut, out, print_json, short, state, table
from tidemill.cli.runs.reported_run import run_number, served_run, told_run
from tidemill.cli.runs.step_log import print_log, served_log, stored_log
from tidemill.core.codec import decode
from tidemill.core.errors import ConfigError
from tidemill.engine.explain import explain_run
from tidemill.store.database import Database
from tidemill.store.jobs.pages import RunsWanted, list_run_page
from tidemill.store.runs.log import read_step_logs
from tidemill.store.runs.runs import read_ticks, show_run

if TYPE_CHECKING:
    from tidemill.cli.client import RowClient

TICKS_AT_ONCE = 1000


def runs(
    *,
    state: str | None = None,
    workflow: str | None = None,
    limit: int = 25,
    before: str | None = None,
    json: bool = False,
    place: ServerOptions = ANYWHERE,
) -> None:
    """List durable runs of workflows, the newest first.

    Parameters
    ----------
    state
        Only runs in this state: running, needs_attention, succeeded, failed, cancelled, timed_out.
    workflow
        Only runs of this workflow.
    limit
        How many to show.
    before
        Only runs older than the one with this id: the next page.
    json
        Print one JSON document.
    """
    if limit < 1:
        raise ConfigError(f"--limit {limit} would show nothing")
    older = None if before is None else run_number(before)
    wanted = RunsWanted(() if state is None else (state,), workflow).validate()

    async def stored(database: Database) -> list[dict[str, Any]]:
        return [dict(row) for row in await list_run_page(database, wanted, before=older, limit=limit)]

    def served(server: RowClient) -> list[dict[str, Any]]:
        return [
            served_run(row) for row in server.pages("runs", limit=limit, before=older, state=state, workflow=workflow)
        ]

    rows = place.ask(stored, served)
    if json:
        return print_json(rows)
    if not rows:
        return out().print("no runs: start one with `await app.start(Workflow, ...)`", style="dim")
    out().print(runs_table(rows, datetime.now(UTC)))
    if len(rows) == limit:
        out().print(f"\nolder ones: --before r{rows[-1]['id']}", style="dim")
    return None


def run(
    id: str | None = None,
    /,
    *arguments: str,
    at: int | None = None,
    follow: bool = False,
    app: str | None = None,
    as_workflows: str | None = None,
    json: bool = False,
    place: ServerOptions = ANYWHERE,
) -> int | None:
    """Show one run: where it stands and why, and everything that happened to it; of a dag, the tree of its nodes.

    Parameters
    ----------
    id
        The run, as `tidemill runs` shows it: r12.
    arguments
        With --as-workflows: what the program is given.
    at
        Show the state after this tick instead; of a workflow, this needs --app or a server.
    follow
        Of a dag: keep showing it until it has ended; the exit status says whether it succeeded.
    app
        The application that declares the workflow: app.py. A server has it.
    as_workflows
        Instead, run this unmodified program that imports `workflows`, with Tidemill in its place.
    json
        Print one JSON document.
    """
    if as_workflows is not None:
        from tidemill.flows.compat import run_program

        return run_program(as_workflows, [each for each in (id, *arguments) if each is not None])
    if id is None or arguments:
        raise ConfigError("say one run, as `tidemill runs` shows it: `tidemill run r12`")
    wanted = run_number(id)

    async def stored(database: Database) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        row = dict(await show_run(database, wanted))
        told = told_run(row, [explain_run(row)])
        if told["shape"] == "dag" or at is not None:
            return told, []
        told["log"] = stored_log(await read_step_logs(database, wanted))
        return told, [{"seq": tick["seq"], **decode(tick["data"])} for tick in await read_ticks(database, wanted)]

    def served(server: RowClient) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        row = served_run(server.row("runs", wanted))
        if row["shape"] == "dag" or at is not None:
            return row, []
        row["log"] = served_log(server.get("runs", wanted, "log")["items"])
        return row, _served_ticks(server, wanted)

    row, ticks = place.ask(stored, served)
    if row["shape"] == "dag":
        from tidemill.cli.dags.watch import show_run_of_dag

        return show_run_of_dag(wanted, at=at, followed=follow, app=app, json=json, place=place)
    if follow:
        raise ConfigError(f"--follow is for runs of dags, and run r{wanted} is of workflow {row['workflow']}")
    if at is not None:
        return print_json(_state_at(row, at, app, place))
    return print_json({**row, "ticks": ticks}) if json else _print_page(row, ticks)


def runs_table(rows: list[dict[str, Any]], now: datetime) -> Any:
    made = table("id", "state", "workflow", "ticks", "started", "took", "note", numbers=("ticks",), wide="note")
    for row in rows:
        took = "" if row["ended_at"] is None else short((row["ended_at"] - row["created_at"]).total_seconds())
        made.add_row(
            f"r{row['id']}", state(row["state"]), row["workflow"], f"{row['seq']:,}", ago(row["created_at"], now), took,
            cut(row["note"] or ("" if row["owned"] or row["ended_at"] or row["awake"] else "waiting"), 60),
        )  # fmt: skip
    return made


def _print_page(row: dict[str, Any], ticks: list[dict[str, Any]]) -> None:
    console = out()
    console.print(Text.assemble((f"run r{row['id']}  ", "bold"), state(row["state"]), f"  {row['workflow']}"))
    console.print(f"  input    {json_text(row['input'])}")
    if row["result"] is not None:
        console.print(f"  result   {json_text(row['result'])}")
    if row["note"] and row["note"] not in row["why"]:
        console.print(f"  note     {row['note']}")
    console.print("\nwhy", style="bold")
    for sentence in row["why"]:
        console.print(f"  {sentence}")
    console.print("\nticks", style="bold")
    for tick in ticks:
        console.print(f"  {tick['seq']:>5}  +{short(tick['at'] - ticks[0]['at']):<7} {_told(tick)}")
    print_log(row["log"])


def _told(tick: dict[str, Any]) -> str:
    work = tick.get("work", 0)
    match tick["kind"]:
        case "started" | "received":
            return f"{tick['kind']} {_bare(tick['event'])}" + (f" for {tick['target']}" if tick.get("target") else "")
        case "completed" if tick.get("error"):
            again = f"; trying again in {short(tick['retry_in'])}" if tick.get("retry_in") is not None else ""
            return f"work {work} failed: {tick['error'][0].rpartition('.')[2]}: {tick['error'][1]}{again}"
        case "completed":
            return f"work {work} ended with {', '.join(map(_bare, tick.get('events', ()))) or 'nothing'}"
        case "noted":
            note = tick["note"]
            about = note.get("question") or note.get("path") or note.get("name") or note.get("buffer") or ""
            return f"work {work} {note.get('kind')} {about}".rstrip()
        case "elapsed":
            return f"timer {tick['timer']} went off"
        case "cancel_asked":
            return f"cancel asked: {tick['reason']}"
    return "taken up by an owner"


def _bare(event: dict[str, Any]) -> str:
    return event["type"].rpartition(".")[2]


def _served_ticks(server: RowClient, number: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while True:
        after = found[-1]["seq"] if found else 0
        page = server.get("runs", number, "ticks", after=after, limit=TICKS_AT_ONCE)["items"]
        found += [{"seq": tick["seq"], **tick["data"]} for tick in page]
        if len(page) < TICKS_AT_ONCE:
            return found


def _state_at(row: dict[str, Any], at: int, app: str | None, place: ServerOptions) -> Any:
    """The state of a workflow's run after a tick, which takes its code to tell."""

    async def stored(database: Database) -> Any:
        if app is None:
            raise ConfigError("--at folds the run's ticks and needs its code: say --app app.py")
        from tidemill.cli.run.roles import application
        from tidemill.flows.encoding.journal import decode_tick
        from tidemill.flows.encoding.snapshot import encode_state
        from tidemill.flows.runner.fork import relive

        ticks = await read_ticks(database, row["id"])
        if not 0 <= at <= len(ticks):
            raise ConfigError(f"run r{row['id']} has ticks 1 to {len(ticks)}; there is no tick {at}")
        workflow = application(app, place).runs.flows.get(row["workflow"])
        if workflow is None:
            raise ConfigError(f"{app} declares no workflow {row['workflow']!r}")
        folded, timers = relive(workflow.workflow, [decode_tick(tick["data"]) for tick in ticks[:at]])
        return {**decode(encode_state(folded)), "timers": timers}

    return place.ask(stored, lambda server: server.get("runs", row["id"], "state", at=at)["state"])
