"""One job on one page: its facts, why it is as it is, and what went wrong."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tidemill.cli.render import ago, local, names, read_json, state
from tidemill.core.job import LIVE_STATES
from tidemill.engine.explain import explain_job

JSON_COLUMNS = ("args", "options", "origin", "errors", "result")
REASONS = ("due_in", "running_for", "ahead", "serving", "knowing", "held", "rate", "slots", "required_model")
NOT_YET = {"finished_at": None, "progress": None, "result": None, "cancel_reason": None}


def job_page(row: Mapping[str, Any]) -> Group:
    """One job on one page."""
    title = Text.assemble((f"job {row['id']}", "bold"), "  ", state(row["state"]))
    facts = Table.grid(padding=(0, 2, 0, 0))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in job_facts(row):
        facts.add_row(name, value)
    parts: list[Any] = [title, Padding(facts, (0, 0, 0, 2), expand=False), Text("\nwhy", style="bold")]
    parts += [Padding(Text(sentence), (0, 0, 0, 2), expand=False) for sentence in row["why"]]
    for error in row["errors"] or ():
        moment = local(datetime.fromtimestamp(error["at"], UTC))
        head = Text.assemble((f"\nattempt {error['attempt']}", "bold red"), f"  {moment}  {error.get('worker', '')}")
        parts += [head, Padding(Text(f"{error['kind']}: {error['message']}"), (0, 0, 0, 2), expand=False)]
        if error.get("traceback"):
            parts.append(Padding(Text(error["traceback"].rstrip(), style="dim"), (0, 0, 0, 2), expand=False))
    return Group(*parts)


def job_facts(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The plain facts of a job that has something to say about them."""
    options = row["options"] or {}
    facts = [
        ("task", f"{row['task']}  (queue {row['queue']}, priority {row['priority']})"),
        ("arguments", json_text(row["args"])),
        ("created", f"{local(row['created_at'])}  ({ago(row['created_at'])})"),
        ("due", f"{local(row['due_at'])}  ({ago(row['due_at'])})" if row["state"] in LIVE_STATES else ""),
        ("started", f"{local(row['started_at'])}  ({ago(row['started_at'])})" if row["started_at"] else ""),
        ("finished", f"{local(row['finished_at'])}  ({ago(row['finished_at'])})" if row.get("finished_at") else ""),
        ("tags", names(row["tags"])),
        ("unique key", row["unique_key"] or ""),
        ("options", ", ".join(f"{name} {json_text(value)}" for name, value in options.items())),
        ("result", json_text(row["result"]) if row.get("state") == "succeeded" else ""),
    ]
    return [(name, value) for name, value in facts if value]


def json_text(value: Any) -> str:
    """A JSON value on as few lines as it needs."""
    return msgspec.json.encode(value).decode()


def told_job(row: Mapping[str, Any]) -> dict[str, Any]:
    """A job as it is told, whether it has ended or not: `why` stands for the columns that it is made from."""
    known = readable(row)
    told = {name: value for name, value in known.items() if name not in REASONS}
    return {**NOT_YET, **told, "why": explain_job(known)}


def readable(row: Mapping[str, Any]) -> dict[str, Any]:
    """A job's row with its JSON columns as Python values."""
    return {name: read_json(value) if name in JSON_COLUMNS else value for name, value in dict(row).items()}
