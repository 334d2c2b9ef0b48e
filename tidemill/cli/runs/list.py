"""`tidemill runs` lists durable runs; `tidemill run ID` shows one of them and its journal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tidemill.cli.arguments import AppOption, Follow, Json, RunId, Shown, options_of, run_number
from tidemill.cli.connection_options import ANYWHERE, ServerOptions
from tidemill.cli.jobs.page import json_text
from tidemill.cli.paging import read_pages
from tidemill.cli.render import ago, cut, facts_grid, local, out, print_json, short, show, state, table
from tidemill.cli.runs.step_log import print_log
from tidemill.core.errors import ConfigError
from tidemill.ops.operator.operation import Operator
from tidemill.ops.runs.journal import (
    GetRunLog,
    GetStateAt,
    GetTicks,
    StepAttemptLog,
    get_run_log,
    get_state_at,
    get_ticks,
)
from tidemill.ops.runs.runs import ListRuns, Run, RunLine, RunRef, get_run, list_runs

TICKS_AT_ONCE = 1000


@options_of(ListRuns, without=("up_to",))
def runs(args: ListRuns, *, limit: Shown = 25, json: Json = False, connection: ServerOptions = ANYWHERE) -> None:
    """List durable runs of workflows and dags, the newest first."""
    rows, cursor = connection.run(lambda at: read_pages(at, list_runs, args, limit))
    none = "no runs: start one with `await app.start(Workflow, ...)`" if args == ListRuns() else "no run matches"
    show(rows, runs_table, json=json, none=none, cursor=cursor)


def run(
    id: RunId | None = None,
    /,
    *arguments: Annotated[str, Parameter(help="With --as-workflows: what the program is given.")],
    at: Annotated[
        int | None,
        Parameter(help="Show the state after this tick instead; of a workflow, this needs --app or a server."),
    ] = None,
    follow: Follow = False,
    app: AppOption = None,
    as_workflows: Annotated[
        str | None,
        Parameter(help="Instead, run this unmodified program that imports `workflows`, with Tidemill in its place."),
    ] = None,
    json: Json = False,
    connection: ServerOptions = ANYWHERE,
) -> int | None:
    """Show one run: its state and why, and its journal; of a dag, the tree of its nodes."""
    if as_workflows is not None:
        from tidemill.flows.compat import run_program

        return run_program(as_workflows, [each for each in (id, *arguments) if each is not None])
    if id is None or arguments:
        raise ConfigError("name a run, as `tidemill runs` shows it: `tidemill run r12`")
    number = run_number(id)

    async def work(operator: Operator) -> int | None:
        found = await operator.do(get_run, RunRef(id=number))
        if found.shape == "dag":
            from tidemill.cli.dags.watch import show_dag_run

            return await show_dag_run(operator, number, at=at, follow=follow, json=json)
        if follow:
            raise ConfigError(f"--follow is for runs of dags, and run r{number} is of workflow {found.workflow}")
        if at is not None:
            return print_json((await operator.do(get_state_at, GetStateAt(id=number, at=at))).state)
        ticks = await _read_ticks(operator, number)
        log = (await operator.do(get_run_log, GetRunLog(id=number))).items[::-1]
        if json:
            return print_json({**msgspec.structs.asdict(found), "ticks": ticks, "log": log})
        return _print_page(found, ticks, log)

    return connection.run(work, app=app)


def runs_table(rows: Sequence[RunLine], now: datetime) -> Table:
    made = table("id", "state", "workflow", "ticks", "started", "took", "note", numbers=("ticks",), wide="note")
    for row in rows:
        waiting = "" if row.owned or row.ended_at or row.awake else "waiting"
        made.add_row(
            f"r{row.id}", state(row.state), row.workflow, f"{row.ticks:,}", ago(row.created_at, now), took(row),
            cut(row.note or waiting, 60),
        )  # fmt: skip
    return made


def took(row: RunLine | Run) -> str:
    """How long a run took, if it has ended."""
    return "" if row.ended_at is None else short((row.ended_at - row.created_at).total_seconds())


def _print_page(row: Run, ticks: list[dict[str, Any]], log: Sequence[StepAttemptLog]) -> None:
    console = out()
    console.print(Text.assemble((f"run r{row.id}  ", "bold"), state(row.state), f"  {row.workflow}"))
    console.print(facts_grid((name, value) for name, value in _facts(row) if value))
    console.print("\nwhy", style="bold")
    for sentence in row.why:
        console.print(Padding(Text(sentence), (0, 0, 0, 2)))
    print_traceback(row)
    console.print("\nticks", style="bold")
    for tick, text in zip(ticks, describe_ticks(ticks), strict=True):
        console.print(f"  {tick['seq']:>5}  +{short(max(0.0, tick['at'] - ticks[0]['at'])):<7} {text}", markup=False)
    print_log(log)


def print_traceback(row: Run) -> None:
    """The traceback of the exception that ended a flow, if that is stored as a whole."""
    trace = row.error.get("trace") if isinstance(row.error, dict) else None
    if trace:
        out().print(Padding(Text(f"\n{trace.rstrip()}", style="dim"), (0, 0, 0, 2), expand=False))


def _facts(row: Run) -> list[tuple[str, str]]:
    by = f" by {row.origin['by']}" if row.origin else ""
    return [
        ("input", json_text(row.input)),
        ("started", f"{local(row.created_at)}  ({ago(row.created_at)}){by}"),
        ("ended", "" if row.ended_at is None else f"{local(row.ended_at)}  (took {took(row)})"),
        ("version", row.version),
        ("result", "" if row.result is None else json_text(row.result)),
        ("note", row.note if row.note and row.note not in row.why else ""),
    ]


def describe_ticks(ticks: Sequence[dict[str, Any]]) -> Iterator[str]:
    """What each tick of a flow's journal says, in the words of the console."""
    steps: dict[int, str] = {}
    for tick in ticks:
        work = tick.get("work", 0)
        yield _describe(tick, steps.get(work, f"work {work}"))
        steps |= {number: step.partition("@")[0] for number, step in tick.get("begun", ())}


def _describe(tick: dict[str, Any], step: str) -> str:
    match tick["kind"]:
        case "started":
            return f"started with {_bare(tick['event'])}"
        case "received":
            return f"received {_bare(tick['event'])}" + (f" for {tick['target']}" if tick.get("target") else "")
        case "completed" if tick.get("error"):
            again = f"; trying again in {short(tick['retry_in'])}" if tick.get("retry_in") is not None else ""
            return f"{step} failed: {tick['error'][0].rpartition('.')[2]}: {tick['error'][1]}{again}"
        case "completed":
            return f"{step} returned {', '.join(map(_bare, tick.get('events', ()))) or 'nothing'}"
        case "noted":
            note = tick["note"]
            about = note.get("question") or note.get("path") or note.get("name") or note.get("buffer") or ""
            if note.get("kind") != "asked":
                return f"{step} {note.get('kind')} {about}".rstrip()
            return f"{step} waiting for {about.partition(' [')[0].rpartition('.')[2]}"
        case "elapsed":
            return f"timer {tick['timer']} fired"
        case "cancel_asked":
            return f"cancel requested: {tick['reason']}"
        case "migrated":
            return f"migrated from version {tick.get('before')} to {tick.get('version')}"
    return "resumed by a run worker"


def _bare(event: dict[str, Any]) -> str:
    return event["type"].rpartition(".")[2]


async def _read_ticks(at: Operator, number: int) -> list[dict[str, Any]]:
    """The whole journal of a run."""
    found: list[dict[str, Any]] = []
    while True:
        after = found[-1]["seq"] if found else 0
        page = (await at.do(get_ticks, GetTicks(id=number, after=after, limit=TICKS_AT_ONCE))).items
        found += [{"seq": tick.seq, "kind": tick.kind, "at": _seconds(tick.at), **tick.data} for tick in page]
        if len(page) < TICKS_AT_ONCE:
            return found


def _seconds(at: datetime | None) -> float:
    return 0.0 if at is None else at.timestamp()
