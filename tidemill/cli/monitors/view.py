"""How monitors and their alerts look on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from rich.table import Table
from rich.text import Text

from tidemill.cli.render import ago, cut, local, out, short, table

INNER = ("key", "tick", "realert_at", "again_after", "explain")

SEVERITIES = {"info": "", "warning": "yellow", "critical": "bold red"}


def print_status(row: dict[str, Any]) -> None:
    """A monitor's page."""
    status = row["status"] or {}
    health = status.get("health", "not started")
    style = {"healthy": "green", "UNHEALTHY": "bold red"}.get(health, "yellow")
    console = out()
    paused = ("  paused", "yellow") if row["paused"] else ""
    console.print(Text.assemble((f"{row['name']}  ", "bold"), (health, style), paused))
    lag = "" if row["cursor_at"] is None else f", newest {ago(datetime.fromtimestamp(row['cursor_at'], UTC))}"
    console.print(
        f"  events   {row['events']:,}{lag}; {row['duplicates']:,} seen before, {row['ignored']:,} ignored, "
        f"{row['late']:,} looks back for late ones"
    )
    filling = f", the past of {row['filling']:,} is being read" if row["filling"] else ""
    console.print(
        f"  follows  {row['entities']:,} entities in {row['members']} processes{filling}; fold {row['version']}"
    )
    console.print(f"  alerts   {row['open']:,} open" + (f"; off: {', '.join(row['off'])}" if row["off"] else ""))
    stages = "  ".join(f"{name} {seconds * 1000:.1f}ms" for name, seconds in status.get("stages", {}).items())
    if stages:
        console.print(f"  tick     {row['tick']:,}: {stages}; next poll after {short(status.get('pause', 0))}")
    if status.get("error"):
        console.print(f"  source   {status['failures']} failures in a row: {status['error']}", style="red")
    for each in row["problems"]:
        whom = f" for {each['entity']}" if each["entity"] else ""
        times = f" ({each['count']}×, last {ago(each['last_at'])})"
        console.print(f"  problem  {each['place']}{whom}: {each['error']}{times}", style="yellow")


def roster_table(rows: Sequence[dict[str, Any]]) -> Table:
    made = table("entity", "last seen", "events", "labels", "past", "note", numbers=("events",), wide="note")
    for row in rows:
        past = row["backfill"]
        seen = None if row["last_at"] is None else datetime.fromtimestamp(row["last_at"], UTC)
        made.add_row(
            row["entity"],
            ago(seen),
            f"{row['count']:,}",
            " ".join(f"{name}={value}" for name, value in (row["labels"] or {}).items()),
            "" if past is None else f"{past.get('pages', 0)} pages read",
            Text(cut(row["problem"]), style="red") if row["problem"] else "" if row["active"] else "not followed",
        )
    return made


def told_alert(row: dict[str, Any]) -> dict[str, Any]:
    """An alert as it is told, whoever tells it."""
    return {name: value for name, value in row.items() if name not in INNER}


def alerts_table(rows: Sequence[dict[str, Any]], now: datetime) -> Table:
    made = table("id", "state", "severity", "trigger", "entity", "since", "for", "note", numbers=("id",), wide="note")
    for row in rows:
        ended = row["resolved_at"] or now
        lasted = "" if row["kind"] == "momentary" else short((ended - row["started_at"]).total_seconds())
        made.add_row(
            str(row["id"]),
            alert_state(row),
            Text(row["severity"], style=SEVERITIES.get(row["severity"], "")),
            row["trigger"],
            row["entity"],
            ago(row["started_at"], now),
            lasted,
            cut(row["note"] or ("silenced" if row["silence"] else "")),
        )
    return made


def alert_state(row: dict[str, Any]) -> str:
    """Where an alert stands, in a word."""
    if row["resolved_at"] is not None and row["kind"] != "momentary":
        return "resolved"
    return "acked" if row["acked_at"] is not None else "open"


def print_alert(row: dict[str, Any]) -> None:
    """Why an alert was opened, and its life."""
    console = out()
    told = row["explain"] or {}
    console.print(
        Text.assemble((f"alert {row['id']}  ", "bold"), f"{row['trigger']} of {row['entity']}  {alert_state(row)}")
    )
    console.print(
        f"  began    {local(row['started_at'])}  ({ago(row['started_at'])}), noticed {local(row['opened_at'])}"
    )
    for name, value in told.get("rule", {}).items():
        if value not in ("", None) and name not in ("trigger", "kind"):
            console.print(f"  {name:<8} {value}")
    for name in ("occurrence", "evidence", "features", "state"):
        if name in told:
            console.print(f"  {name:<8} {msgspec.json.encode(told[name]).decode()}", soft_wrap=True)
    for event in told.get("events", []):
        console.print(f"  event    {local(datetime.fromtimestamp(event['at'], UTC))}  {event['id']}")
    console.print("\nhistory", style="bold")
    for each in row["history"]:
        detail = f": {each['detail']}" if each["detail"] else ""
        console.print(f"  {local(each['at'])}  {each['action']} by {each['who']}{detail}")
