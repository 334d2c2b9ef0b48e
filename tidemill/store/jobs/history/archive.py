"""Moving a job's row from the hot table to the history: the only module that knows both sets of columns.

A job of a run reports its end in the same statement: a row in the run's inbox, which exists exactly when the history
has the job. A worker's statement stores all ends of a run in one row. Jobs of batches are counted in it, all of a batch
at once and each worker in a row of its own.
"""

from __future__ import annotations

from tidemill.core.jobs.job import DEFAULT_PRIORITY, FINAL_STATES

_KEPT = """due_at, created_at, deadline, started_at, worker_id, attempt, priority, queue, task, args, options,
        origin, tags, unique_key, concurrency_key, max_concurrency, fair_key, rate_key, key_rate,
        key_burst, run_id, work, batch_id"""

#: Notifies the owners of the runs in `delivered`. Must be selected, because PostgreSQL skips unselected expressions.
NOTIFY_RUNS = "(SELECT count(pg_notify('tidemill_runs', 'inbox')) FROM (SELECT FROM delivered LIMIT 1) AS news)"

NOTIFY_CALLED = """((SELECT count(pg_notify('tidemill_jobs', wake)) FROM (SELECT DISTINCT wake FROM called) AS calls)
    + (SELECT CASE WHEN count(*) > 0 THEN tidemill.admit_throttled(array_agg(concurrency_key)) ELSE 0 END
       FROM called WHERE concurrency_key IS NOT NULL))"""

#: The batches of jobs that have ended, as JSON: END_BATCHES ends those whose jobs have all ended.
ENDED_IN = "(SELECT json_agg(batch_id) FROM counted)"

#: Adds to the counts of a slot of a batch.
ADD_COUNTS = ", ".join(f"{state} = c.{state} + excluded.{state}" for state in FINAL_STATES)

#: The work of a row of the inbox that has an array with the ends of several pieces of work.
SEVERAL = 0

# Longer ends have a row each, so that no row becomes very large.
_SHORT = 512

# A worker of the version before reads only rows with one end. It registers after all statements that write to
# `batch_count` (`tidemill.tell_ends_apart`), so that no statement misses it.
_HAS_OLDER_READER = """EXISTS (
        SELECT FROM tidemill.worker AS w WHERE NOT w.reads_ends
        AND (w.ended_at IS NULL OR (SELECT r.id FROM tidemill.run AS r WHERE r.owner = w.id LIMIT 1) IS NOT NULL))"""

#: Workers with the same remainder count in the same row of a batch.
_SLOTS = 64


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
    successor: str = "NULL",
    together: bool = False,
) -> str:
    """The parts `archived`, `delivered` and `counted` of a statement that stores rows of the hot table as finished.

    The arguments are SQL expressions over these rows. `together`: one row of the inbox has all short ends of a run,
    for statements that are transactions of their own. The statement must also select `NOTIFY_RUNS`. `ENDED_IN` selects
    the batches to end afterwards.
    """
    end_fields = {"result": result, "note": f"to_json(({note})::text)", "error": error, "successor": successor}
    more = "".join(f""", ',"{name}":' || ({value})::text""" for name, value in end_fields.items() if value != "NULL")
    apart = f"octet_length(report) > {_SHORT} OR {_HAS_OLDER_READER}" if together else "true"
    ends = ", ".join(f"count(*) FILTER (WHERE {state} = '{each}')" for each in FINAL_STATES)
    return f"""
archived AS (
    INSERT INTO tidemill.job_history (id, {_KEPT}, state, note, result, failures, losses, errors)
    SELECT id, {_KEPT}, {state}, {note}, {result}, {failures}, {losses}, {errors}
    FROM {rows} WHERE {where} RETURNING id, concurrency_key, batch_id),
delivered AS (
    INSERT INTO tidemill.inbox (run_id, work, data)
    SELECT run_id, CASE WHEN count(*) = 1 THEN min(work) ELSE {SEVERAL} END,
           CASE WHEN count(*) = 1 THEN string_agg(report, '') ELSE '[' || string_agg(report, ',') || ']' END::json
    FROM (
        SELECT run_id, work, concat('{{"work":', work, ',"job":', id, ',"state":"', {state}, '"'{more}, '}}') AS report
        FROM {rows} WHERE run_id IS NOT NULL AND {where}) AS ends
    GROUP BY run_id, CASE WHEN {apart} THEN work END RETURNING run_id),
counted AS (
    INSERT INTO tidemill.batch_count AS c (batch_id, slot, succeeded, failed, cancelled, expired)
    SELECT batch_id, coalesce(min(worker_id) % {_SLOTS}, -1), {ends}
    FROM {rows} WHERE batch_id IS NOT NULL AND {where} GROUP BY batch_id ORDER BY batch_id
    ON CONFLICT (batch_id, slot) DO UPDATE SET {ADD_COUNTS} RETURNING batch_id)"""


def webhook_rows(rows: str, where: str = "true") -> str:
    """What the options of ended jobs ask for, however they have ended: the rows for `callback_sql`."""
    return f"""
SELECT 'job ' AS kind, id AS number, options -> 'webhook' AS callback, json_build_object('job', id) AS facts
FROM {rows} WHERE options IS NOT NULL AND {where}"""


def callback_sql(rows: str, *, origin: str) -> str:
    """The part `called` of a statement that enqueues callbacks. It must also select `NOTIFY_CALLED`.

    `rows` selects what each follows from: its `kind` and `number`, the `facts` that a task may take, and the
    `callback`. `origin` is the field of the new job's origin that has the number.
    """
    return f"""
called AS (
    INSERT INTO tidemill.job (queue, task, args, priority, options, required_model, tags, origin, concurrency_key,
                              max_concurrency, fair_key, rate_key, key_rate, key_burst, state, note)
    SELECT callback ->> 'queue', callback ->> 'task', args::json,
           coalesce((callback ->> 'priority')::smallint, {DEFAULT_PRIORITY}),
           nullif(callback -> 'options' #>> '{{}}', '')::json, callback -> 'options' ->> 'required_model',
           nullif(ARRAY(SELECT json_array_elements_text(callback -> 'tags')), '{{}}'),
           json_build_object('by', kind || number, '{origin}', number), gate,
           CASE WHEN gate IS NOT NULL THEN coalesce((callback ->> 'max_concurrency')::int, 1) END,
           CASE WHEN rated IS NULL THEN lane ELSE coalesce(lane, '') || chr(31) || rated END, rated,
           CASE WHEN rated IS NOT NULL THEN (callback ->> 'key_rate')::float8 END,
           CASE WHEN rated IS NOT NULL THEN (callback ->> 'key_burst')::float8 END,
           CASE WHEN gate IS NULL THEN 'ready' ELSE 'throttled' END, 'waits for a slot of concurrency key ' || gate
    FROM ({rows}) AS ended CROSS JOIN LATERAL (
        SELECT coalesce((callback -> 'args')::jsonb, '{{}}') || coalesce((
            SELECT jsonb_object_agg(key, value) FROM json_each(facts)
            WHERE key IN (SELECT json_array_elements_text(callback -> 'takes'))), '{{}}') AS args) AS given
    CROSS JOIN LATERAL (
        SELECT tidemill.callback_key(callback, 'concurrency_key', args) AS gate,
               tidemill.callback_key(callback, 'fair_key', args) AS lane,
               tidemill.callback_key(callback, 'rate_key', args) AS rated) AS keys
    WHERE callback IS NOT NULL
    RETURNING queue || coalesce(chr(10) || priority || fair_key, '') AS wake, concurrency_key)"""


# What the options of failed jobs ask for.
_FAILED = """
SELECT 'failed job ' AS kind, id AS number, options -> 'on_failure' AS callback, json_build_object(
           'job', id, 'task', task, 'args', args, 'error', error ->> 'message') AS facts
FROM owned WHERE final = 'failed' AND options IS NOT NULL AND {where}"""


def end_callbacks(where: str) -> str:
    """The part `called` of a statement that ends the jobs in `owned`: what follows from failures, and webhooks."""
    rows = f"{_FAILED.format(where=where)}\nUNION ALL{webhook_rows('owned', where)}"
    return callback_sql(rows, origin="parent")
