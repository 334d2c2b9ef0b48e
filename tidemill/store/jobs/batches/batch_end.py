"""The end of batches.

Each statement that finishes jobs counts those of batches in its own slot (`archive_sql`). Then END_BATCHES, in a
transaction of its own, ends the batches whose jobs have all ended: of two workers that finish the last jobs at the same
time, the later one sees what both have counted. Maintenance ends a batch whose last worker died in between.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.core.jobs.batch import BATCH_FACTS
from tidemill.store.database import Database, Executor
from tidemill.store.jobs.history.archive import NOTIFY_CALLED, NOTIFY_RUNS, callback_sql

#: How many jobs of batches ended how.
COUNTS = """
SELECT b.id, coalesce(sum(c.succeeded), 0)::bigint AS succeeded, coalesce(sum(c.failed), 0)::bigint AS failed,
       coalesce(sum(c.cancelled), 0)::bigint AS cancelled, coalesce(sum(c.expired), 0)::bigint AS expired
FROM tidemill.batch AS b LEFT JOIN tidemill.batch_count AS c ON c.batch_id = b.id
"""

_FACTS = ", ".join(f"'{fact}', {'id' if fact == 'batch' else fact}" for fact in BATCH_FACTS)

#: Ends those of these batches whose jobs have all ended, enqueues what follows from that, and tells the runs that wait.
#: A batch that another transaction holds is left to it. A batch that had ended with failures succeeds when the retries
#: of its failed jobs have.
END_BATCHES = f"""
WITH counts AS MATERIALIZED (
    {COUNTS} WHERE b.id = ANY ($1::bigint[]) AND b.succeeded_at IS NULL AND NOT b.is_open GROUP BY b.id),
ready AS MATERIALIZED (
    SELECT b.id FROM tidemill.batch AS b JOIN counts USING (id)
    WHERE b.total = succeeded + failed + cancelled + expired AND NOT b.is_open AND b.succeeded_at IS NULL
      AND (b.ended_at IS NULL OR b.total = succeeded)
    ORDER BY b.id FOR UPDATE OF b SKIP LOCKED),
over AS (
    UPDATE tidemill.batch AS b SET ended_at = coalesce(b.ended_at, now()),
        succeeded_at = CASE WHEN b.total = counts.succeeded THEN now() END
    FROM counts WHERE b.id = counts.id AND b.id IN (SELECT id FROM ready)
    RETURNING b.id, b.total, b.key, b.run_id, b.work, b.on_success, b.on_complete, b.ended_at = now() AS is_first,
              b.succeeded_at IS NOT NULL AS is_success, counts.succeeded, counts.failed, counts.cancelled,
              counts.expired),
{
    callback_sql(
        f"SELECT 'batch b' AS kind, over.id AS number, json_build_object({_FACTS}) AS facts, callback "
        "FROM over CROSS JOIN LATERAL (VALUES (CASE WHEN is_success THEN on_success END), "
        "(CASE WHEN is_first THEN on_complete END)) AS each (callback)",
        origin="batch",
    )
},
delivered AS (
    INSERT INTO tidemill.inbox (run_id, work, data)
    SELECT run_id, work, json_build_object('batch', id, 'key', key,
               'state', CASE WHEN is_success THEN 'succeeded' ELSE 'failed' END)
    FROM over WHERE run_id IS NOT NULL AND is_first RETURNING run_id)
SELECT id, {NOTIFY_CALLED}, {NOTIFY_RUNS} FROM over
"""


async def end_batches(database: Database, ids: Iterable[int], connection: Executor | None = None) -> None:
    """End those of these batches whose jobs have all ended. The ends must be committed, or of this transaction."""
    if wanted := sorted(set(ids)):
        if connection is None:
            await database.fetch(END_BATCHES, wanted, patience=None)
        else:
            await connection.fetch(database.sql(END_BATCHES), wanted)
