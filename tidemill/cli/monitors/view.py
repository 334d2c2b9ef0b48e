"""How monitors and their alerts look on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tidemill.cli.render import ago, counted, cut, facts_grid, indented, local, out, short, table
from tidemill.core.printable import on_one_line, printable_json
from tidemill.ops.monitors.alerts import Alert, AlertDetails
from tidemill.ops.monitors.monitors import MonitorEvent, MonitorLine
from tidemill.ops.monitors.roster import RosterLine

HEALTH = {"healthy": "green", "unhealthy": "bold red", "not_running": "bold red"}
SEVERITIES = {"info": "", "warning": "yellow", "critical": "bold red"}


def status_page(rows: Sequence[MonitorLine], now: datetime) -> Group:
    """Monitors, one below the other."""
    return Group(*(line for row in rows for line in _status(row, now)))


def _status(row: MonitorLine, now: datetime) -> Iterator[RenderableType]:
    status = row.status or {}
    yield Text.assemble((f"{row.name}  ", "bold"), (row.health, HEALTH.get(row.health, "yellow")))
    lag = "" if row.cursor_at is None else f", newest {ago(datetime.fromtimestamp(row.cursor_at, UTC))}"
    yield facts_grid(_facts(row, status, lag))
    if status.get("error"):
        failed = counted(status["failures"], "failure")
        yield facts_grid([("source", f"{failed} in a row: {status['error']}")], style="red")
    for each in row.problems:
        subject = f" for {on_one_line(each.entity)}" if each.entity else ""
        times = f" ({each.count}×, last {ago(each.last_at)})"
        yield facts_grid([("problem", f"{each.place}{subject}: {each.error}{times}")], style="yellow")


def _facts(row: MonitorLine, status: dict[str, Any], lag: str) -> Iterator[tuple[str, str]]:
    read_again = f", {row.duplicates:,} read again" if row.duplicates else ""
    yield "events", f"{row.events:,}{lag}; {row.late:,} late, {row.ignored:,} ignored{read_again}"
    filling = f", the past of {row.filling:,} is being read" if row.filling else ""
    entities, processes = counted(row.entities, "entity", "entities"), counted(row.members, "process", "processes")
    yield "follows", f"{entities} in {processes}{filling}; fold {row.version}"
    yield "alerts", f"{row.open:,} open" + (f"; off: {', '.join(row.off)}" if row.off else "")
    stages = "  ".join(f"{name} {seconds * 1000:.1f}ms" for name, seconds in status.get("stages", {}).items())
    if stages:
        yield "tick", f"{row.tick:,}: {stages}; next poll after {short(status.get('pause', 0))}"
    if status.get("overlap_most"):
        yield "reading", _reading(row, status)


def _reading(row: MonitorLine, status: dict[str, Any]) -> str:
    """How far back polls read, and what that costs the source."""
    back = f"{short(status['overlap'])} before the newest event ({short(status['overlap_least'])} at least), and "
    back += f"{short(status['overlap_most'])} now and then; events are usually {short(row.lateness)} late"
    costs = status.get("reading") or {}
    if not costs.get("polls"):
        return back
    return (
        f"{back}; in the last {short(costs['seconds'])}: {costs['polls']:,} polls, {costs['pages']:,} pages, "
        f"{costs['records']:,} records, {costs['read_again']:,} of them read before"
    )


def roster_table(rows: Sequence[RosterLine], now: datetime) -> Table:
    made = table("entity", "last seen", "events", "labels", "past", "note", numbers=("events",), wide="note")
    for row in rows:
        seen = None if row.last_at is None else datetime.fromtimestamp(row.last_at, UTC)
        made.add_row(
            row.entity,
            ago(seen, now),
            f"{row.count:,}",
            " ".join(f"{name}={value}" for name, value in (row.labels or {}).items()),
            "" if row.backfill is None else f"{row.backfill.get('pages', 0)} pages read",
            Text(cut(row.problem), style="red") if row.problem else "" if row.active else "not followed",
        )
    return made


def alerts_table(rows: Sequence[Alert], now: datetime) -> Table:
    made = table(
        "id", "state", "severity", "trigger", "entity", "opened", "duration", "note", numbers=("id",), wide="note"
    )
    for row in rows:
        ended = row.resolved_at or now
        lasted = "" if row.kind == "momentary" or row.started_at is None else ended - row.started_at
        made.add_row(
            str(row.id),
            row.state,
            Text(row.severity, style=SEVERITIES.get(row.severity, "")),
            row.trigger,
            row.entity,
            ago(row.opened_at, now),
            short(lasted.total_seconds()) if lasted else "",
            cut(row.note or ("silenced" if row.silence else "")),
        )
    return made


def print_alert(found: AlertDetails) -> None:
    """Why an alert was opened, and its history."""
    console, row = out(), found.alert
    record = found.record or {}
    console.print(
        Text.assemble((f"alert {row.id}  ", "bold"), f"{row.trigger} of {on_one_line(row.entity)}  {row.state}")
    )
    console.print("\nwhy", style="bold")
    for sentence in found.why:
        console.print(indented(sentence), soft_wrap=True)
    console.print("\nrecorded data", style="bold")
    for name, value in record.get("rule", {}).items():
        if value not in ("", None) and name not in ("trigger", "kind"):
            console.print(f"  {name:<12} {value}", soft_wrap=True)
    for name in ("occurrence", "evidence", "features", "state"):
        if record.get(name) is not None:
            console.print(f"  {name:<12} {msgspec.json.encode(record[name]).decode()}", soft_wrap=True)
    for event in record.get("events", []):
        console.print(f"  event        {local(datetime.fromtimestamp(event['at'], UTC))}  {on_one_line(event['id'])}")
    console.print("\nhistory", style="bold")
    for each in found.history:
        detail = f": {each.detail}" if each.detail else ""
        console.print(indented(f"{local(each.at)}  {each.action} by {each.who}{detail}"))


def print_event(event: MonitorEvent, *, json: bool) -> None:
    """An event of a monitor's log on one line."""
    if json:
        return out().print(printable_json(msgspec.json.encode(event).decode()), soft_wrap=True)
    moment = local(datetime.fromtimestamp(event.at, UTC))
    line = Text.assemble(
        f"{moment}  ",
        (on_one_line(event.entity), "bold"),
        f"  {on_one_line(event.id)}  ",
        (msgspec.json.encode(event.data).decode(), "dim"),
    )
    return out().print(line, overflow="ellipsis", no_wrap=True)
