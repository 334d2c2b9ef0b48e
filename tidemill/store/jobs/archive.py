"""Moving a job's row from the hot table to the history: the only module that knows both sets of columns.

A job of a run reports its end in the same statement: a row in the run's inbox, which exists exactly when the history
has the job.
"""

from __future__ import annotations

_KEPT = """due_at, created_at, deadline, started_at, worker_id, attempt, priority, queue, task, args, options,
        origin, tags, unique_key, concurrency_key, max_concurrency, fair_key, run_id, work"""

#: Notifies the owners of the runs in `delivered`. Must be selected, because PostgreSQL skips unselected expressions.
NOTIFY_RUNS = "(SELECT count(pg_notify('tidemill_runs', 'inbox')) FROM (SELECT FROM delivered LIMIT 1) AS news)"


def archive_sql(
    rows: str,
    *,
    state: str,
    note: str,
    where: str = "true",
    result: str = "NULL",
    error: str = "NULL",
    failures: str = "failures",
    losses: str = "losses",
    errors: str = "errors",
) -> str:
    """The parts `archived` and `delivered` of a statement that stores rows of the hot table as finished.

    The arguments are SQL expressions over these rows. The statement must also select `NOTIFY_RUNS`.
    """
    end = {"job": "id", "state": state, "result": result, "note": note, "error": error}
    said = ", ".join(f"'{name}', {value}" for name, value in end.items() if value != "NULL")
    return f"""
archived AS (
    INSERT INTO tidemill.job_history (id, {_KEPT}, state, note, result, failures, losses, errors)
    SELECT id, {_KEPT}, {state}, {note}, {result}, {failures}, {losses}, {errors}
    FROM {rows} WHERE {where} RETURNING id, concurrency_key),
delivered AS (
    INSERT INTO tidemill.inbox (run_id, work, data)
    SELECT run_id, work, json_build_object({said})
    FROM {rows} WHERE run_id IS NOT NULL AND {where} RETURNING run_id)"""
