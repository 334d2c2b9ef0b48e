"""`tidemill runs`, `tidemill run ID`, `tidemill send`: durable runs of workflows, their journals, events for them."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Any

import msgspec
from rich.text import Text

from tidemill.cli.dagwatch import show_run_of_dag
from tidemill.cli.place import HERE, Place, opened, operator
from tidemill.cli.render import ago, cut, out, plain, print_json, short, state, table
from tidemill.cli.roles import application
from tidemill.core.codec import decode, encode
from tidemill.core.errors import ConfigError, PayloadError
from tidemill.dags.runner import DAG_KIND
from tidemill.engine.why import explain_run
from tidemill.flows.compat import run_program
from tidemill.flows.fork import relive
from tidemill.flows.journal import TickRecord, decode_tick
from tidemill.flows.sending import named_event
from tidemill.flows.snapshot import encode_state
from tidemill.flows.wire import encode_event
from tidemill.runs import cancel_tick
from tidemill.store.runs import cancel_run, list_runs, new_token, read_ticks, send_to_run, show_run

_ENDED = ("succeeded", "failed", "cancelled", "timed_out")


def runs(
    *,
    state: str | None = None,
    workflow: str | None = None,
    limit: int = 25,
    before: str | None = None,
    json: bool = False,
    place: Place = HERE,
) -> None:
    """List durable runs of workflows, the newest first.

    Parameters
    ----------
    state
        Only runs in this state: running, parked, succeeded, failed, cancelled, timed_out.
    workflow
        Only runs of this workflow.
    limit
        How many to show.
    before
        Only runs older than the one with this id: the next page.
    json
        Print one JSON document.
    """
    if state is not None and state not in ("running", "parked", *_ENDED):
        raise ConfigError(f"there is no run state {state!r}; the states are running, parked, {', '.join(_ENDED)}")

    async def look() -> list[dict[str, Any]]:
        async with opened(place.settings()) as database:
            older = None if before is None else run_number(before)
            found = await list_runs(database, state=state, workflow=workflow, before=older, limit=limit)
            return [dict(row) for row in found]

    rows = asyncio.run(look())
    if json:
        return print_json([plain(row) for row in rows])
    if not rows:
        return out().print("no runs: start one with `await app.start(Workflow, ...)`", style="dim")
    return out().print(_runs_table(rows, datetime.now(UTC)))


def run(
    id: str | None = None,
    /,
    *arguments: str,
    at: int | None = None,
    follow: bool = False,
    app: str | None = None,
    as_workflows: str | None = None,
    json: bool = False,
    place: Place = HERE,
) -> int | None:
    """Show one run: where it stands and why, and everything that happened to it; of a dag, the tree of its nodes.

    Parameters
    ----------
    id
        The run, as `tidemill runs` shows it: r12.
    arguments
        With --as-workflows: what the program is given.
    at
        Show the state after this tick instead; of a workflow, this needs --app.
    follow
        Of a dag: keep showing it until it has ended; the exit status says whether it succeeded.
    app
        The application that declares the workflow: app.py.
    as_workflows
        Instead, run this unmodified program that imports `workflows`, with Tidemill in its place.
    json
        Print one JSON document.
    """
    if as_workflows is not None:
        return run_program(as_workflows, [each for each in (id, *arguments) if each is not None])
    if id is None or arguments:
        raise ConfigError("say one run, as `tidemill runs` shows it: `tidemill run r12`")
    wanted = run_number(id)

    async def look() -> tuple[dict[str, Any], list[Any]]:
        async with opened(place.settings()) as database:
            row = dict(await show_run(database, wanted))
            return row, [] if row["kind"] == DAG_KIND else await read_ticks(database, wanted)

    row, ticks = asyncio.run(look())
    if row["kind"] == DAG_KIND:
        return show_run_of_dag(wanted, at=at, followed=follow, app=app, json=json, place=place)
    if follow:
        raise ConfigError(f"--follow is for runs of dags, and run r{wanted} is of workflow {row['workflow']}")
    if at is not None:
        return _print_state_at(row, ticks, at, app, place)
    if json:
        told = [{"seq": tick["seq"], **decode(tick["data"], dict[str, Any])} for tick in ticks]
        return print_json({**plain(row), "ticks": told})
    return _print_page(row, ticks)


def send(id: str, event: str, fields: str = "{}", /, *, app: str | None = None, place: Place = HERE) -> None:
    """Send an event to a run: it is stored when this returns, and wakes the run if it sleeps.

    Parameters
    ----------
    id
        The run, as `tidemill runs` shows it: r12.
    event
        The name of the event's class.
    fields
        The event's fields as a JSON object.
    app
        The application that declares the workflow; with it, the event is checked before it is sent.
    """
    values = _object(fields)

    async def put() -> None:
        async with opened(place.settings()) as database:
            row = await show_run(database, run_number(id))
            if row["kind"] == DAG_KIND:
                raise ConfigError(f"run {id} is of a dag: answer what it asks with `tidemill dag submit`")
            data = _event_of(row["workflow"], event, values, app, place)
            token = new_token()
            record = TickRecord("received", time.time(), event=msgspec.Raw(data), token=token)
            await send_to_run(database, row["id"], encode(record), token=token)

    asyncio.run(put())
    out().print(f"{event} sent to run r{run_number(id)}")


def fork(id: str, /, *, at: int, app: str, place: Place = HERE) -> None:
    """Start a new run where another was after one of its ticks.

    Parameters
    ----------
    id
        The run, as `tidemill runs` shows it: r12.
    at
        The last tick that the new run shares with it.
    app
        The application that declares the workflow: app.py.
    """
    known = application(app, place)
    known.acting_as = operator()

    async def begin() -> int:
        try:
            return (await known.fork(run_number(id), at=at)).id
        finally:
            await known.close()

    out().print(f"run r{asyncio.run(begin())} goes on from tick {at} of run r{run_number(id)}")


async def cancel_runs(ids: list[str], place: Place) -> None:
    """Ask runs to end; each is told by itself."""
    numbers = [run_number(each) for each in ids]
    async with opened(place.settings()) as database:
        for number in numbers:
            reason = f"cancelled by {operator()}"
            row = await show_run(database, number)
            await cancel_run(database, number, cancel_tick(row["kind"], reason), reason=reason)
            out().print(f"run r{number} was asked to end")


def run_number(id: str) -> int:
    """The number of a run from how people write it: r12, or 12."""
    text = id.removeprefix("r")
    if not text.isascii() or not text.isdigit():
        raise ConfigError(f"{id!r} is not a run: write it as `tidemill runs` shows it, such as r12")
    return int(text)


def _runs_table(rows: list[dict[str, Any]], now: datetime) -> Any:
    made = table("id", "state", "workflow", "ticks", "started", "took", "note", numbers=("ticks",))
    for row in rows:
        took = "" if row["ended_at"] is None else short((row["ended_at"] - row["created_at"]).total_seconds())
        made.add_row(
            f"r{row['id']}", state(row["state"]), row["workflow"], f"{row['seq']:,}", ago(row["created_at"], now), took,
            cut(row["note"] or ("" if row["owner"] or row["ended_at"] or row["awake"] else "waiting"), 60),
        )  # fmt: skip
    return made


def _print_page(row: dict[str, Any], ticks: list[Any]) -> None:
    console = out()
    console.print(Text.assemble((f"run r{row['id']}  ", "bold"), state(row["state"]), f"  {row['workflow']}"))
    console.print(f"  input    {bytes(row['input']).decode()}")
    if row["result"] is not None:
        console.print(f"  result   {bytes(row['result']).decode()}")
    console.print("\nwhy", style="bold")
    console.print(f"  {explain_run(row)}")
    console.print("\nticks", style="bold")
    began: float | None = None
    for tick in ticks:
        record: TickRecord = decode(tick["data"], TickRecord)
        began = record.at if began is None else began
        console.print(f"  {tick['seq']:>5}  +{short(record.at - began):<7} {_told(record)}")


def _told(record: TickRecord) -> str:
    match record.kind:
        case "started" | "received":
            kind = decode(bytes(record.event), dict[str, Any])["type"].rpartition(".")[2]
            return f"{record.kind} {kind}" + (f" for {record.target}" if record.target else "")
        case "completed" if record.error is not None:
            again = "" if record.retry_in is None else f"; trying again in {short(record.retry_in)}"
            return f"work {record.work} failed: {record.error[0].rpartition('.')[2]}: {record.error[1]}{again}"
        case "completed":
            kinds = [decode(bytes(event), dict[str, Any])["type"].rpartition(".")[2] for event in record.events]
            return f"work {record.work} ended with {', '.join(kinds) or 'nothing'}"
        case "noted":
            note = decode(bytes(record.note), dict[str, Any])
            about = note.get("question") or note.get("path") or note.get("name") or note.get("buffer") or ""
            return f"work {record.work} {note.get('kind')} {about}".rstrip()
        case "elapsed":
            return f"timer {record.timer} went off"
        case "cancel_asked":
            return f"cancel asked: {record.reason}"
    return "taken up by an owner"


def _print_state_at(row: dict[str, Any], ticks: list[Any], at: int, app: str | None, place: Place) -> None:
    if app is None:
        raise ConfigError("--at folds the run's ticks and needs its code: say --app app.py")
    if not 0 <= at <= len(ticks):
        raise ConfigError(f"run r{row['id']} has ticks 1 to {len(ticks)}; there is no tick {at}")
    workflow = application(app, place).runs.flows.get(row["workflow"])
    if workflow is None:
        raise ConfigError(f"{app} declares no workflow {row['workflow']!r}")
    folded, timers = relive(workflow.workflow, [decode_tick(tick["data"]) for tick in ticks[:at]])
    print_json({**decode(encode_state(folded)), "timers": timers})


def _object(text: str) -> dict[str, Any]:
    try:
        values = decode(text)
    except PayloadError as error:
        raise ConfigError(f"the event's fields are not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError('the event\'s fields must be a JSON object, such as {"ok": true}')
    return values


def _event_of(workflow: str, event: str, values: dict[str, Any], app: str | None, place: Place) -> bytes:
    if app is None:
        return encode({"type": event, "value": values})
    known = application(app, place).runs.flows.get(workflow)
    if known is None:
        raise ConfigError(f"{app} declares no workflow {workflow!r}")
    return encode_event(named_event(known.workflow, event, values))
