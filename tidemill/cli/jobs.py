"""`tidemill jobs`, `tidemill job ID`, and what operators do to jobs: `tidemill retry`, `tidemill cancel`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from rich.table import Table

from tidemill.cli.confirm import agreed
from tidemill.cli.page import job_page, readable
from tidemill.cli.place import HERE, Place, opened, operator
from tidemill.cli.render import ago, cut, out, plain, print_json, short, state, table
from tidemill.core.errors import ConfigError, NotFoundError
from tidemill.core.job import FINAL_STATES, LIVE_STATES
from tidemill.engine.why import explain_job
from tidemill.store.database import Database
from tidemill.store.inspect import JobFilter, list_jobs, show_job
from tidemill.store.operate import Outcome, cancel_jobs, match_unfinished, match_unsuccessful, retry_jobs


def jobs(
    *,
    state: list[str] | None = None,
    queue: str | None = None,
    task: str | None = None,
    tag: str | None = None,
    limit: int = 25,
    before: int | None = None,
    json: bool = False,
    place: Place = HERE,
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
    wanted = JobFilter(tuple(state or ()), queue, task, tag, before).validate()

    async def look() -> list[dict[str, Any]]:
        async with opened(place.settings()) as database:
            return [dict(row) for row in await list_jobs(database, wanted, limit=limit)]

    rows = asyncio.run(look())
    if json:
        return print_json([plain(row) for row in rows])
    if not rows:
        nothing = "no jobs yet: tidemill enqueue app.py TASK '{...}'" if wanted == JobFilter() else "no job matches"
        return out().print(nothing, style="dim")
    out().print(jobs_table(rows, datetime.now(UTC)))
    if len(rows) == limit:
        out().print(f"\nolder ones: --before {rows[-1]['id']}", style="dim")
    return None


def job(id: int, /, *, json: bool = False, place: Place = HERE) -> None:
    """Show one job: why it exists, what it waits for, how it went.

    Parameters
    ----------
    id
        The number that `tidemill enqueue` printed.
    json
        Print one JSON document.
    """
    row = asyncio.run(_find(place, id))
    if json:
        return print_json({**row, "why": explain_job(row)})
    return out().print(job_page(row))


def retry(
    *ids: int,
    state: list[str] | None = None,
    queue: str | None = None,
    task: str | None = None,
    tag: str | None = None,
    yes: bool = False,
    place: Place = HERE,
) -> int:
    """Run jobs again: waiting ones now, finished ones as new jobs.

    Parameters
    ----------
    ids
        The jobs; or say with the options which.
    state
        Jobs in this state; say it again for more. Failed ones, if not given.
    queue
        Jobs of this queue.
    task
        Jobs of this task.
    tag
        Jobs with this tag.
    yes
        Do not ask.
    """
    wanted = JobFilter(tuple(state or ()), queue, task, tag).validate()

    async def match(database: Database) -> list[int]:
        states = wanted.states or ("failed",)
        waiting = tuple(name for name in states if name in LIVE_STATES and name != "running")
        ended = tuple(name for name in states if name in FINAL_STATES)
        found = await match_unfinished(database, JobFilter(waiting, queue, task, tag)) if waiting else []
        return found + (await match_unsuccessful(database, JobFilter(ended, queue, task, tag)) if ended else [])

    async def act(database: Database, found: list[int]) -> str:
        return told_retry(await retry_jobs(database, found, by=operator()))

    return asyncio.run(_operate("retry", ids, wanted, match, act, yes=yes, place=place))


def cancel(
    *ids: str,
    state: list[str] | None = None,
    queue: str | None = None,
    task: str | None = None,
    tag: str | None = None,
    yes: bool = False,
    place: Place = HERE,
) -> int:
    """Cancel jobs: waiting ones at once, running ones as soon as their task lets them. Runs of workflows as well.

    Parameters
    ----------
    ids
        The jobs (12) and runs (r12); or say with the options which jobs.
    state
        Jobs in this state; say it again for more.
    queue
        Jobs of this queue.
    task
        Jobs of this task.
    tag
        Jobs with this tag.
    yes
        Do not ask.
    """
    wanted = JobFilter(tuple(state or ()), queue, task, tag).validate()

    async def match(database: Database) -> list[int]:
        return await match_unfinished(database, wanted)

    async def act(database: Database, found: list[int]) -> str:
        return told_cancel(await cancel_jobs(database, found, by=operator()))

    runs = [each for each in ids if each.startswith("r")]
    if runs:
        from tidemill.cli.runs import cancel_runs  # with all that runs are made of

        asyncio.run(cancel_runs(runs, place))
    jobs = tuple(_job_number(each) for each in ids if not each.startswith("r"))
    if runs and not jobs and wanted == JobFilter():
        return 0
    return asyncio.run(_operate("cancel", jobs, wanted, match, act, yes=yes, place=place))


def _job_number(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ConfigError(f"{text!r} is neither a job (12) nor a run (r12)")
    return int(text)


def told_retry(outcome: Outcome) -> str:
    """What a retry did, in one line."""
    parts = []
    if outcome.asked:
        parts.append(f"enqueued again as {_some(outcome.asked)}")
    if outcome.done:
        parts.append(f"due now: {_some(outcome.done)}")
    return "; ".join(parts) or "nothing to retry: the jobs are running, or their unique keys are taken"


def told_cancel(outcome: Outcome) -> str:
    """What a cancel did, in one line."""
    parts = []
    if outcome.done:
        parts.append(f"cancelled: {_some(outcome.done)}")
    if outcome.asked:
        parts.append(f"asked to stop: {_some(outcome.asked)}")
    if outcome.unchanged:
        parts.append(f"had ended or been asked before: {_some(outcome.unchanged)}")
    return "; ".join(parts) or "nothing to cancel"


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


async def _find(place: Place, job_id: int) -> dict[str, Any]:
    async with opened(place.settings()) as database:
        row = await show_job(database, job_id) if 0 < job_id < 2**63 else None
    if row is None:
        raise NotFoundError(f"there is no job {job_id}: `tidemill jobs` lists them")
    return readable(dict(row))


async def _operate(
    verb: str,
    ids: tuple[int, ...],
    wanted: JobFilter,
    match: Callable[[Database], Awaitable[list[int]]],
    act: Callable[[Database, list[int]], Awaitable[str]],
    *,
    yes: bool,
    place: Place,
) -> int:
    """Do something to named jobs, or to those that match a filter once somebody has agreed to how many."""
    if bool(ids) == (wanted != JobFilter()):
        raise ConfigError(f"say which jobs to {verb}: either ids, or --queue, --task, --tag, --state")
    if bad := [each for each in ids if not 0 < each < 2**63]:
        raise NotFoundError(f"there is no job {bad[0]}: `tidemill jobs` lists them")
    async with opened(place.settings()) as database:
        found = list(dict.fromkeys(ids)) or await match(database)
        if not found:
            out().print(f"no job to {verb} matches", style="dim")
            return 0
        if not ids and not yes and not agreed(f"{verb} {'1 job' if len(found) == 1 else f'{len(found):,} jobs'}"):
            return 1
        out().print(await act(database, found))
    return 0


def _some(ids: list[int]) -> str:
    shown = ", ".join(map(str, ids[:10]))
    return shown if len(ids) <= 10 else f"{shown} and {len(ids) - 10:,} more"
