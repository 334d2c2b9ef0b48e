"""Batches: storing, reading and cancelling them."""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg
import msgspec

from tidemill.core.codec import decode, encode
from tidemill.core.encoding.sealing import seal_members
from tidemill.core.errors import ConfigError, NotFoundError
from tidemill.core.jobs.batch import BatchRef, NewBatch
from tidemill.core.jobs.job import Callback, NewJob
from tidemill.store.connection.caller_connection import Statements
from tidemill.store.database import Database
from tidemill.store.jobs.batches.batch_end import COUNTS, END_BATCHES, end_batches
from tidemill.store.jobs.insert import ADMIT_THROTTLED, insert_statements
from tidemill.store.jobs.operate import CANCEL_RUNNING, CANCEL_WAITING
from tidemill.store.transaction import Reader, Transaction

#: Jobs of a cancelled batch that are cancelled in one transaction.
CANCELLED_AT_ONCE = 5_000

#: The slot of the counts of a batch that has the jobs which left without being counted.
MISSING_SLOT = -2

INSERT_BATCH = """
INSERT INTO tidemill.batch (name, is_open, key, origin, on_success, on_complete, run_id, work)
VALUES ($1::text, $2::boolean, $3::text, $4::text::json, $5::text::json, $6::text::json, $7::bigint, $8::bigint)
ON CONFLICT (key) WHERE key IS NOT NULL DO NOTHING RETURNING id
"""

FIND_BATCH_BY_KEY = "SELECT id FROM tidemill.batch WHERE key = $1::text"

#: Locks a batch that accepts jobs: it cannot end before the transaction does.
HOLD_BATCH = "SELECT id FROM tidemill.batch WHERE id = $1 AND ended_at IS NULL AND cancel_reason IS NULL FOR UPDATE"

ADD_TO_TOTAL = "UPDATE tidemill.batch SET total = total + $2 WHERE id = $1 RETURNING id"

CLOSE_BATCH = "UPDATE tidemill.batch SET is_open = false WHERE id = $1 RETURNING id"

#: Unfinished batches that no unfinished job belongs to. Ids are read from the end: the last jobs end last.
FIND_STUCK_BATCHES = """
SELECT id FROM tidemill.batch AS b WHERE ended_at IS NULL AND NOT is_open
  AND (SELECT j.id FROM tidemill.job AS j WHERE j.batch_id = b.id ORDER BY j.id DESC LIMIT 1) IS NULL
"""

#: Counts jobs that have left a batch uncounted, as failed: how they ended is not known. Workers older than batches move
#: jobs to the history so; all others count a job in the statement in which it leaves.
COUNT_MISSING = f"""
INSERT INTO tidemill.batch_count AS c (batch_id, slot, succeeded, failed, cancelled, expired)
SELECT b.id, {MISSING_SLOT}, 0, b.total - e.ended, 0, 0 FROM tidemill.batch AS b CROSS JOIN LATERAL (
    SELECT coalesce(sum(o.succeeded + o.failed + o.cancelled + o.expired), 0)::bigint AS ended
    FROM tidemill.batch_count AS o WHERE o.batch_id = b.id AND o.slot <> {MISSING_SLOT}) AS e
WHERE b.id = ANY ($1::bigint[]) AND b.total > e.ended AND b.ended_at IS NULL AND NOT b.is_open
  AND NOT EXISTS (SELECT FROM tidemill.job AS j WHERE j.batch_id = b.id)
ON CONFLICT (batch_id, slot) DO UPDATE SET failed = excluded.failed
"""

#: Requests the end of batches whose run has ended.
CANCEL_UNWANTED_BATCHES = """
UPDATE tidemill.batch AS b SET cancel_reason = 'run r' || r.id || ' has ended', is_open = false
FROM tidemill.run AS r
WHERE b.ended_at IS NULL AND b.run_id = r.id AND r.ended_at IS NOT NULL AND b.cancel_reason IS NULL
"""

FIND_CANCELLED_BATCHES = (
    "SELECT id, cancel_reason FROM tidemill.batch WHERE ended_at IS NULL AND cancel_reason IS NOT NULL"
)

REQUEST_CANCEL = """
UPDATE tidemill.batch SET cancel_reason = $2, is_open = false
WHERE id = $1 AND ended_at IS NULL AND cancel_reason IS NULL
RETURNING id
"""

#: Unfinished jobs of a batch above an id.
LIST_UNFINISHED = """
SELECT id FROM tidemill.job WHERE batch_id = $1 AND id > $2 AND cancel_reason IS NULL ORDER BY id LIMIT $3
"""

_STATE = """CASE WHEN b.ended_at IS NULL THEN 'running' WHEN b.succeeded_at IS NOT NULL THEN 'succeeded'
                 WHEN b.cancel_reason IS NOT NULL THEN 'cancelled' ELSE 'failed' END"""

_SHOWN = f"""
SELECT b.id, b.name, {_STATE} AS state, b.is_open, b.total, c.succeeded, c.failed, c.cancelled, c.expired,
       b.total - c.succeeded - c.failed - c.cancelled - c.expired AS unfinished, b.created_at, b.ended_at,
       b.cancel_reason, b.origin, b.on_success ->> 'task' AS on_success, b.on_complete ->> 'task' AS on_complete,
       b.run_id, coalesce((SELECT failed FROM tidemill.batch_count WHERE batch_id = b.id AND slot = {MISSING_SLOT}), 0)
           AS missing
FROM tidemill.batch AS b CROSS JOIN LATERAL ({COUNTS.replace("AS b ", "AS o ").replace("b.id", "o.id")}
    WHERE o.id = b.id GROUP BY o.id) AS c
"""

SHOW_BATCH = f"{_SHOWN} WHERE b.id = $1"

#: Batches below an id, the newest first; `$3` is a state, or null.
LIST_BATCHES = f"""
{_SHOWN} WHERE b.id < $1 AND ($3::text IS NULL OR {_STATE} = $3)
  AND ($4::text IS NULL OR position(lower($4) IN lower(b.name)) > 0)
  AND ($5::timestamptz IS NULL OR b.created_at >= $5) AND ($6::timestamptz IS NULL OR b.created_at < $6)
ORDER BY b.id DESC LIMIT $2
"""

FIND_UNFINISHED_BATCHES = "SELECT id FROM tidemill.batch WHERE id = ANY ($1::bigint[]) AND ended_at IS NULL"

#: How many batches have not ended, how many of their jobs have not, and the age of the oldest in seconds.
COUNT_UNFINISHED_BATCHES = f"""
SELECT count(*) AS batches,
       coalesce(sum(b.total - c.succeeded - c.failed - c.cancelled - c.expired), 0)::bigint AS jobs,
       coalesce(extract(epoch FROM now() - min(b.created_at)), 0)::float8 AS oldest
FROM tidemill.batch AS b JOIN ({COUNTS} WHERE b.ended_at IS NULL GROUP BY b.id) AS c USING (id)
WHERE b.ended_at IS NULL
"""

#: How the jobs of a batch ended, in the order in which they were enqueued; a retry is in the place of the first job.
LIST_RESULTS = """
SELECT id, task, state, result, note FROM tidemill.job_history WHERE batch_id = $1
ORDER BY coalesce((origin ->> 'place')::bigint, id)
"""

#: Deletes batches that ended long ago.
FORGET_BATCHES = """
WITH old AS (
    DELETE FROM tidemill.batch WHERE id = ANY (ARRAY(
        SELECT id FROM tidemill.batch WHERE ended_at < now() - make_interval(days => $1) ORDER BY id LIMIT 1000))
    RETURNING id)
DELETE FROM tidemill.batch_count WHERE batch_id IN (SELECT id FROM old)
"""


def new_batch_statements(database: Database, new: NewBatch) -> Statements[BatchRef]:
    """The statements that store a batch without jobs, for any driver."""
    made = yield (
        INSERT_BATCH,
        (
            new.name,
            new.is_open,
            new.key,
            encode(new.origin).decode(),
            _stored_callback(database, new.on_success),
            _stored_callback(database, new.on_complete),
            new.run,
            new.work,
        ),
    )
    if made:
        return BatchRef(made[0][0])
    holder = yield FIND_BATCH_BY_KEY, (new.key,)
    return BatchRef(holder[0][0], created=False)


def _stored_callback(database: Database, callback: Callback | None) -> str | None:
    """A callback as it is stored. PostgreSQL adds facts to its arguments, so each of them is sealed by itself."""
    if callback is not None and database.codec is not None:
        names = decode(callback.args, dict[str, msgspec.Raw])
        args = msgspec.Raw(seal_members(database.codec, bytes(callback.args), names.keys()))
        callback = msgspec.structs.replace(callback, args=args)
    return None if callback is None else encode(callback).decode()


def add_statements(database: Database, batch_id: int, jobs: Sequence[NewJob]) -> Statements[int]:
    """The statements that store jobs of a batch that is not over, for any driver; returns how many were stored."""
    refs = (yield from insert_statements(database, jobs)) if jobs else []
    added = sum(ref.created for ref in refs)
    yield ADD_TO_TOTAL, (batch_id, added)
    return added


def hold_statements(batch_id: int) -> Statements[None]:
    """The statement that keeps a batch from ending in this transaction; an error if it does not accept jobs."""
    if not (yield HOLD_BATCH, (batch_id,)):
        raise ConfigError(
            f"batch b{batch_id} accepts no more jobs: it has ended, was cancelled, or never was; start another"
        )


def end_statements(ids: Sequence[int]) -> Statements[None]:
    """The statement that ends batches whose jobs have all ended, for any driver."""
    yield END_BATCHES, (list(ids),)


async def sweep_batches(database: Database) -> None:
    """End batches whose last worker died before it could, and go on cancelling those that are cancelled."""
    await database.fetch(CANCEL_UNWANTED_BATCHES, patience=None)
    for row in await database.fetch(FIND_CANCELLED_BATCHES, patience=None):
        await cancel_jobs_of(database, row["id"], row["cancel_reason"])
    stuck = [row["id"] for row in await database.fetch(FIND_STUCK_BATCHES, patience=None)]
    if stuck:
        await database.fetch(COUNT_MISSING, stuck, patience=None)
        await end_batches(database, stuck)


async def cancel_jobs_of(database: Database, batch_id: int, reason: str) -> None:
    """Cancel the unfinished jobs of a batch: waiting ones at once, running ones are asked to stop."""
    after = 0
    while True:
        async with database.transaction(patience=30.0) as connection:
            rows = await connection.fetch(database.sql(LIST_UNFINISHED), batch_id, after, CANCELLED_AT_ONCE)
            ids = [row["id"] for row in rows]
            if ids:
                gone = await connection.fetch(database.sql(CANCEL_WAITING), ids, reason)
                await connection.fetch(database.sql(CANCEL_RUNNING), ids, reason)
                if keys := sorted({row["concurrency_key"] for row in gone if row["concurrency_key"] is not None}):
                    await connection.execute(database.sql(ADMIT_THROTTLED), keys)
        if len(ids) < CANCELLED_AT_ONCE:
            break
        after = ids[-1]
    await end_batches(database, [batch_id])


async def request_cancel(tx: Transaction, batch_id: int) -> str | None:
    """Close a batch and note that it is cancelled; the reason, or None if it has ended or is being cancelled."""
    reason = f"batch b{batch_id} was cancelled by {tx.by}"
    return reason if await tx.fetch(REQUEST_CANCEL, batch_id, reason) else None


async def show_batch(at: Database | Reader | Transaction, batch_id: int) -> asyncpg.Record:
    """Everything about one batch."""
    row = await at.fetchrow(SHOW_BATCH, batch_id) if 0 < batch_id < 2**63 else None
    if row is None:
        raise NotFoundError(f"there is no batch b{batch_id}: it never existed, or it has been forgotten with its jobs")
    return row


async def count_unfinished_batches(database: Database) -> asyncpg.Record:
    """How many batches have not ended, their unfinished jobs, and the age of the oldest one."""
    return (await database.fetch(COUNT_UNFINISHED_BATCHES))[0]


async def find_unfinished_batches(database: Database, ids: list[int]) -> set[int]:
    """The batches among these that have not ended."""
    return {row["id"] for row in await database.fetch(FIND_UNFINISHED_BATCHES, ids, patience=None)}


async def forget_batches(database: Database, *, keep_days: int) -> None:
    """Delete batches that ended long ago."""
    await database.fetch(FORGET_BATCHES, keep_days)
