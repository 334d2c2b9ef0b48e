"""`tidemill jobs` and `tidemill job ID`: which jobs there are, and one of them with why it is as it is."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from rich.table import Table

from tidemill.cli.connection_options import ANYWHERE, Reach
from tidemill.cli.jobs.page import job_page, told_job
from tidemill.cli.render import ago, cut, out, print_json, short, state, table
from tidemill.core.errors import ConfigError, NotFoundError
from tidemill.store.database import Database
from tidemill.store.jobs.pages import JobsWanted, list_job_page
from tidemill.store.jobs.read import show_job


def jobs(
    *,
    state: list[str] | None = None,
    queue: str | None = None,
    task: str | None = None,
    tag: str | None = None,
    limit: int = 25,
    before: int | None = None,
    json: bool = False,
    place: Reach = ANYWHERE,
) -> None:
    """List jobs, the newest first.

    Parameters
    ----------
    state
        Only jobs in this state; say it again for more: ready, gated, unrouted, running, succeeded, failed,
        cancelled, expired.
    queue
        Only jobs of this queue.
    task
        Only jobs of this task.
    tag
        Only jobs with this tag.
    limit
        How many to show.
    before
        Only jobs older than the one with this id: the next page.
    json
        Print one JSON document.
    """
    if limit < 1:
        raise ConfigError(f"--limit {limit} would show nothing")
    wanted = JobsWanted(tuple(state or ()), queue, task, tag).validate()

    async def stored(database: Database) -> list[dict[str, Any]]:
        return [dict(row) for row in await list_job_page(database, wanted, before=before, limit=limit)]

    rows = place.ask(
        stored,
        lambda server: server.pages("jobs", limit=limit, before=before, state=state, queue=queue, task=task, tag=tag),
    )
    if json:
        return print_json(rows)
    if not rows:
        nothing = "no jobs yet: tidemill enqueue app.py TASK '{...}'" if wanted == JobsWanted() else "no job matches"
        return out().print(nothing, style="dim")
    out().print(jobs_table(rows, datetime.now(UTC)))
    if len(rows) == limit:
        out().print(f"\nolder ones: --before {rows[-1]['id']}", style="dim")
    return None


def job(id: int, /, *, json: bool = False, place: Reach = ANYWHERE) -> None:
    """Show one job: why it exists, what it waits for, how it went.

    Parameters
    ----------
    id
        The number that `tidemill enqueue` printed.
    json
        Print one JSON document.
    """

    async def stored(database: Database) -> dict[str, Any]:
        row = await show_job(database, id) if 0 < id < 2**63 else None
        if row is None:
            raise NotFoundError(f"there is no job {id}: `tidemill jobs` lists them")
        return told_job(dict(row))

    row = place.ask(stored, lambda server: server.row("jobs", id))
    return print_json(row) if json else out().print(job_page(row))


def jobs_table(rows: list[dict[str, Any]], now: datetime) -> Table:
    made = table("id", "state", "queue", "task", "try", "when", "note", numbers=("id", "try"), wide="note")
    for row in rows:
        attempt = str(row["attempt"] or "")
        made.add_row(
            str(row["id"]), state(row["state"]), row["queue"], row["task"], attempt, when(row, now), cut(row["note"])
        )
    return made


def when(row: Mapping[str, Any], now: datetime) -> str:
    """The moment that matters in a job's state."""
    if row["finished_at"] is not None:
        return ago(row["finished_at"], now)
    if row["state"] == "running":
        far = "" if row["progress"] is None else f" {row['progress']:.0%}"
        return f"for {short(max(0.0, (now - row['started_at']).total_seconds()))}{far}"
    if row["due_at"] > now:
        return f"due {ago(row['due_at'], now)}"
    return f"waits {short((now - row['due_at']).total_seconds())}"
