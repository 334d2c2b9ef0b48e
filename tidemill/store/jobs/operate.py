"""Cancel and retry jobs. Each writes its audit entry in the same transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from tidemill.core.codec import decode, encode
from tidemill.core.errors import NotFoundError
from tidemill.core.jobs.job import FINAL_STATES
from tidemill.store.access.audit import targets
from tidemill.store.jobs.history.archive import (
    ADD_COUNTS,
    NOTIFY_CALLED,
    NOTIFY_RUNS,
    archive_sql,
    callback_sql,
    webhook_rows,
)
from tidemill.store.jobs.insert import ADMIT_THROTTLED, WAKE, notify_queues
from tidemill.store.transaction import Transaction

#: Checks the arguments of a retried job, before and after; returns the columns of keys that they change.
CheckEdited = Callable[[Any, bytes, bytes], Mapping[str, str]]

#: Cancels waiting jobs at once: they move to the history without having run.
CANCEL_WAITING = f"""
WITH gone AS (
    DELETE FROM tidemill.job WHERE id = ANY (ARRAY(
        SELECT id FROM tidemill.job WHERE id = ANY ($1::bigint[]) AND state <> 'running' FOR UPDATE))
    RETURNING *),
{archive_sql("gone", state="'cancelled'", note="$2::text")},
{callback_sql(webhook_rows("gone"), origin="parent")}
SELECT id, concurrency_key, batch_id, {NOTIFY_RUNS}, {NOTIFY_CALLED} FROM gone
"""

#: Requests the cancellation of running jobs from their workers.
CANCEL_RUNNING = """
WITH asked AS (
    UPDATE tidemill.job SET cancel_reason = $2
    WHERE id = ANY ($1::bigint[]) AND state = 'running' AND cancel_reason IS NULL
    RETURNING id)
SELECT id, pg_notify('tidemill_control', '') FROM asked
"""

# A key of a retried job: `$4` has those that its other arguments change.
_KEY = "coalesce($4::json -> id::text ->> '{0}', {0})"

#: Makes waiting jobs due now; `$3` are other arguments by id, `$4` other keys.
RETRY_WAITING = f"""
UPDATE tidemill.job SET due_at = now(), note = $2,
    args = coalesce($3::json -> id::text, args), fair_key = {_KEY.format("fair_key")},
    rate_key = {_KEY.format("rate_key")}, concurrency_key = {_KEY.format("concurrency_key")},
    state = CASE WHEN concurrency_key IS NULL THEN 'ready'
                 WHEN state = 'ready' AND $4::json -> id::text ->> 'concurrency_key' IS NULL THEN 'ready'
                 ELSE 'throttled' END
WHERE id = ANY ($1::bigint[]) AND state <> 'running'
RETURNING id, {WAKE.format("")} AS wake, concurrency_key
"""

#: Enqueues finished jobs again as new jobs that name the one they repeat; `$3` are other arguments by id, `$4` keys.
#: In a batch they take the place of those.
RETRY_FINISHED = f"""
WITH again AS (
    INSERT INTO tidemill.job (
        queue, task, args, priority, tags, options, required_model, origin, unique_key, concurrency_key,
        max_concurrency, fair_key, rate_key, key_rate, key_burst, batch_id, state)
    SELECT queue, task, coalesce($3::json -> id::text, args),
           priority, tags, options, options ->> 'required_model',
           (CASE WHEN batch_id IS NULL THEN '{{}}' ELSE jsonb_build_object('place', id) END
                || coalesce(origin::jsonb, '{{}}') || jsonb_build_object('by', $2::text, 'retry_of', id))::json,
           unique_key, {_KEY.format("concurrency_key")}, max_concurrency, {_KEY.format("fair_key")},
           {_KEY.format("rate_key")}, key_rate, key_burst, batch_id,
           CASE WHEN concurrency_key IS NULL THEN 'ready' ELSE 'throttled' END
    FROM tidemill.job_history WHERE id = ANY ($1::bigint[])
    ON CONFLICT (task, unique_key) WHERE unique_key IS NOT NULL DO NOTHING
    RETURNING id, {WAKE.format("")} AS wake, concurrency_key, (origin::jsonb ->> 'retry_of')::bigint AS retry_of),
replaced AS (
    UPDATE tidemill.job_history AS h SET batch_id = NULL FROM tidemill.job_history AS was
    WHERE h.id = was.id AND h.finished_at = was.finished_at AND was.id IN (SELECT retry_of FROM again)
      AND was.id = ANY ($1::bigint[]) AND was.batch_id IS NOT NULL
    RETURNING was.batch_id, was.state),
uncounted AS (
    INSERT INTO tidemill.batch_count AS c (batch_id, slot, succeeded, failed, cancelled, expired)
    SELECT batch_id, -1, {", ".join(f"-count(*) FILTER (WHERE state = '{state}')" for state in FINAL_STATES)}
    FROM replaced GROUP BY batch_id ORDER BY batch_id
    ON CONFLICT (batch_id, slot) DO UPDATE SET {ADD_COUNTS})
SELECT * FROM again
"""

#: The tasks and arguments of jobs that can be retried.
READ_ARGUMENTS = """
SELECT id, task, args, concurrency_key, fair_key, rate_key FROM tidemill.job
WHERE id = ANY ($1::bigint[]) AND state <> 'running'
UNION ALL
SELECT id, task, args, concurrency_key, fair_key, rate_key FROM tidemill.job_history WHERE id = ANY ($1::bigint[])
"""

#: Locks jobs: no worker claims, ends or releases one of them until the transaction ends.
HOLD_JOBS = "SELECT FROM tidemill.job WHERE id = ANY ($1::bigint[]) ORDER BY id FOR UPDATE"

#: The states of jobs.
FIND_JOBS = """
SELECT id, state FROM tidemill.job WHERE id = ANY ($1::bigint[])
UNION SELECT id, state FROM tidemill.job_history WHERE id = ANY ($1::bigint[])
"""


class Outcome(msgspec.Struct):
    """What an operation did to each job: `done` at once, `asked` to stop (or enqueued again), or left `unchanged`."""

    done: list[int] = []
    asked: list[int] = []
    unchanged: list[int] = []
    batches: set[int] = set()
    """The batches of jobs that have ended: they can be ended when this is committed."""


async def cancel_jobs(tx: Transaction, ids: list[int], *, why: object = None) -> Outcome:
    """Cancel waiting jobs at once and request it for running ones; finished ones stay as they are.

    `why` is the filter that the jobs were found by, for the audit trail.
    """
    outcome = Outcome()
    reason = f"cancelled by {tx.by}"
    before = await _require(tx, ids)
    waiting = await tx.fetch(CANCEL_WAITING, ids, reason)
    running = await tx.fetch(CANCEL_RUNNING, ids, reason)
    outcome.done = [row["id"] for row in waiting]
    outcome.asked = [row["id"] for row in running]
    outcome.unchanged = sorted(set(ids) - set(outcome.done) - set(outcome.asked))
    await _admit(tx, [row["concurrency_key"] for row in waiting])
    outcome.batches = {row["batch_id"] for row in waiting if row["batch_id"] is not None}
    if reached := outcome.done + outcome.asked:
        await tx.audit(
            "job.cancel",
            targets(reached),
            before={id: before[id] for id in reached},
            after={"cancelled": outcome.done, "asked": outcome.asked, **_found_by(why)},
        )
    return outcome


async def retry_jobs(
    tx: Transaction,
    ids: list[int],
    *,
    why: object = None,
    edited: dict[str, Any] | None = None,
    check: CheckEdited | None = None,
) -> Outcome:
    """Make waiting jobs due now, and enqueue finished ones again as new jobs.

    `edited` are arguments in place of those of the same name. `check` raises for a job that they do not fit, and
    returns the keys that they change.
    """
    outcome = Outcome()
    before = await _require(tx, ids)
    found = _Edited() if edited is None else await _edit_arguments(tx, ids, edited, check)
    given = (None, None) if edited is None else (encode(found.args), encode(found.keys))
    waiting = await tx.fetch(RETRY_WAITING, ids, f"retried by {tx.by}", *given)
    finished = await tx.fetch(RETRY_FINISHED, ids, tx.by, *given)
    outcome.done = [row["id"] for row in waiting]
    outcome.asked = [row["id"] for row in finished]
    left = set(ids) - set(outcome.done) - {row["retry_of"] for row in finished}
    outcome.unchanged = sorted(left)
    rows = [*waiting, *finished]
    await _admit(tx, [*(row["concurrency_key"] for row in rows), *found.left])
    if rows:
        await notify_queues(tx.database, tx.connection, {row["wake"] for row in rows})
        await tx.audit(
            "job.retry",
            targets(ids),
            before={id: before[id] for id in ids if id not in left},
            after={
                "due_now": outcome.done,
                "enqueued": outcome.asked,
                **({} if edited is None else {"args": edited}),
                **_found_by(why),
            },
        )
    return outcome


class _Edited(msgspec.Struct):
    """The arguments of jobs and the keys that these change, by id, and the concurrency keys that jobs leave."""

    args: dict[int, msgspec.Raw] = {}
    keys: dict[int, Mapping[str, str]] = {}
    left: list[str] = []


async def _edit_arguments(
    tx: Transaction, ids: list[int], edited: dict[str, Any], check: CheckEdited | None
) -> _Edited:
    """The arguments of jobs with others in place of those of the same name."""
    found = _Edited()
    for row in await tx.fetch(READ_ARGUMENTS, ids):
        before = encode(decode(row["args"]))
        args = encode({**decode(before), **edited})
        if check is not None and (keys := check(row, before, args)):
            found.keys[row["id"]] = keys
            found.left += [row["concurrency_key"]] if "concurrency_key" in keys else []
        found.args[row["id"]] = msgspec.Raw(tx.database.seal(args))
    return found


def _found_by(why: object) -> dict[str, object]:
    return {} if why is None else {"filter": why}


async def _require(tx: Transaction, ids: list[int]) -> dict[int, str]:
    """The states of jobs, which must all exist; unfinished ones are locked until the transaction ends."""
    await tx.execute(HOLD_JOBS, ids)
    found = {row["id"]: row["state"] for row in await tx.fetch(FIND_JOBS, ids)}
    if missing := sorted(set(ids) - set(found)):
        raise NotFoundError(f"there is no job {', '.join(map(str, missing[:10]))}: `tidemill jobs` lists them")
    return found


async def _admit(tx: Transaction, keys: list[str | None]) -> None:
    if wanted := sorted({key for key in keys if key is not None}):
        await tx.execute(ADMIT_THROTTLED, wanted)
