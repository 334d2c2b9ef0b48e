"""One job on one page: its facts, why it is in its state, and what went wrong."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from typing import Any

import msgspec
from rich.console import Group
from rich.padding import Padding
from rich.text import Text

from tidemill.cli.render import ago, facts_grid, local, names, state
from tidemill.core.duration import format_duration
from tidemill.core.jobs.job import LIVE_STATES
from tidemill.core.limits.memory_size import format_memory
from tidemill.ops.jobs.jobs import Job
from tidemill.store.large_values import VALUES, find_cut

MOST_SHOWN = 2_000


def job_page(row: Job) -> Group:
    """One job on one page."""
    title = Text.assemble((f"job {row.id}", "bold"), "  ", state(row.state))
    parts: list[Any] = [title, facts_grid(job_facts(row)), Text("\nwhy", style="bold")]
    parts += [Padding(Text(sentence), (0, 0, 0, 2), expand=False) for sentence in row.why]
    for error in row.errors or ():
        moment = local(datetime.fromtimestamp(error["at"], UTC))
        head = Text.assemble((f"\nattempt {error['attempt']}", "bold red"), f"  {moment}  {error.get('worker', '')}")
        parts += [head, Padding(Text(f"{error['kind']}: {error['message']}"), (0, 0, 0, 2), expand=False)]
        if error.get("traceback"):
            parts.append(Padding(Text(error["traceback"].rstrip(), style="dim"), (0, 0, 0, 2), expand=False))
    return Group(*parts)


def job_facts(row: Job) -> list[tuple[str, str]]:
    """The facts of a job that are set."""
    options = row.options or {}
    facts = [
        ("task", f"{row.task}  (queue {row.queue}, priority {row.priority})"),
        ("arguments", json_text(row.args)),
        ("created", f"{local(row.created_at)}  ({ago(row.created_at)})"),
        ("due", f"{local(row.due_at)}  ({ago(row.due_at)})" if row.state in LIVE_STATES else ""),
        ("started", f"{local(row.started_at)}  ({ago(row.started_at)})" if row.started_at else ""),
        ("finished", f"{local(row.finished_at)}  ({ago(row.finished_at)})" if row.finished_at else ""),
        ("tags", names(row.tags)),
        ("unique key", row.unique_key or ""),
        ("options", ", ".join(f"{name} {_option_text(name, value)}" for name, value in options.items())),
        ("result", json_text(row.result) if row.state == "succeeded" else ""),
    ]
    return [(name, value) for name, value in facts if value]


def _option_text(name: str, value: Any) -> str:
    return format_duration(value) if name in ("budget", "stall") else json_text(value)


def json_text(value: Any) -> str:
    """A JSON value on as few lines as it needs; of one that is too large for an answer, its beginning."""
    found = find_cut(value)
    if found is None:
        return msgspec.json.encode(value).decode()
    return f"{found.first[:MOST_SHOWN]} …\n{cut_note(found.bytes, found.whole)}"


def cut_note(size: int, whole: str) -> str:
    """How much of a value is shown, and the command that writes the whole of it."""
    place = shlex.quote(whole.removeprefix(f"{VALUES}/"))
    return f"(the beginning of {format_memory(size)}; whole: tidemill value {place})"
