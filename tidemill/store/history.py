"""How a job's row moves from the hot table to the history: the one place that knows both sets of columns."""

from __future__ import annotations

_KEPT = """due_at, created_at, deadline, started_at, worker_id, attempt, priority, queue, task, args, options,
        origin, tags, unique_key, concurrency_key, concurrency_max"""


def archive_sql(
    rows: str,
    *,
    state: str,
    note: str,
    result: str = "NULL",
    failures: str = "failures",
    losses: str = "losses",
    errors: str = "errors",
) -> str:
    """The INSERT that stores these rows of the hot table as finished; the other arguments are SQL expressions."""
    return f"""
    INSERT INTO tidemill.job_history (id, {_KEPT}, state, note, result, failures, losses, errors)
    SELECT id, {_KEPT}, {state}, {note}, {result}, {failures}, {losses}, {errors}
    FROM {rows}"""
