"""`tidemill jobs` lists jobs; `tidemill job ID` shows one of them and explains its state."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rich.table import Table

from tidemill.cli.admin.history import meant_name
from tidemill.cli.arguments import Json, Shown, options_of
from tidemill.cli.connection_options import ANYWHERE, ServerOptions
from tidemill.cli.jobs.page import job_page
from tidemill.cli.jobs.queues import unused_queue
from tidemill.cli.paging import read_pages
from tidemill.cli.render import ago, cut, out, print_json, short, show, state, table
from tidemill.ops.jobs.jobs import GetJob, JobLine, ListJobs, get_job, list_jobs


@options_of(ListJobs, without=("up_to",))
def jobs(args: ListJobs, *, limit: Shown = 25, json: Json = False, connection: ServerOptions = ANYWHERE) -> None:
    """List jobs, the newest first."""
    rows, cursor = connection.run(lambda at: read_pages(at, list_jobs, args, limit))
    none = "no jobs yet: tidemill enqueue app.py TASK '{...}'" if args == ListJobs() else "no job matches"
    if not rows and args.queue is not None and not json:
        queue = args.queue
        none = f"{none}\n{connection.run(lambda at: unused_queue(at, queue))}".rstrip()
    if not rows and args.task is not None and not json:
        task = args.task
        none += connection.run(lambda at: meant_name(at, "task", task))
    show(rows, jobs_table, json=json, none=none, cursor=cursor)


@options_of(GetJob, positional=("id",), ids={"id": "job"})
def job(args: GetJob, *, json: Json = False, connection: ServerOptions = ANYWHERE) -> None:
    """Show one job: why it exists, what it waits for, how it went."""
    found = connection.do(get_job, args)
    return print_json(found) if json else out().print(job_page(found))


def jobs_table(rows: Sequence[JobLine], now: datetime) -> Table:
    made = table("id", "state", "queue", "task", "try", "when", "note", numbers=("id", "try"), wide="note")
    for row in rows:
        attempt = str(row.attempt or "")
        made.add_row(str(row.id), state(row.state), row.queue, row.task, attempt, when(row, now), cut(row.note))
    return made


def when(row: JobLine, now: datetime) -> str:
    """The time that matters in a job's state."""
    if row.finished_at is not None:
        return ago(row.finished_at, now)
    if row.state == "running" and row.started_at is not None:
        far = "" if row.progress is None else f" {row.progress:.0%}"
        return f"for {short(max(0.0, (now - row.started_at).total_seconds()))}{far}"
    if row.due_at > now:
        return f"due {ago(row.due_at, now)}"
    return f"waits {short((now - row.due_at).total_seconds())}"
