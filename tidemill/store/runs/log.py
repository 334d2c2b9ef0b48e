"""Log lines of steps that ran in the run's own process: the last lines of each attempt. Kept as long as the run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

import asyncpg
import msgspec

from tidemill.store.database import Database, Executor, columns
from tidemill.store.maintenance.partitions import keep_daily

#: Stores the lines of attempts so far; the lines of a running attempt are overwritten as they grow.
WRITE_STEP_LOGS = """
INSERT INTO tidemill.run_log AS l (run_id, work, step, attempt, began_at, dropped, lines)
SELECT n.run_id, n.work, n.step, n.attempt, to_timestamp(n.began_at), n.dropped, n.lines
FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::int[], $5::float8[], $6::int[], $7::json[])
    AS n(run_id, work, step, attempt, began_at, dropped, lines)
ON CONFLICT (run_id, work, attempt, began_at) DO UPDATE SET dropped = excluded.dropped, lines = excluded.lines
"""

#: The stored lines of a run's attempts, or of those of one step, last attempt first.
READ_STEP_LOGS = """
SELECT work, step, attempt, began_at, dropped, lines FROM tidemill.run_log
WHERE run_id = $1 AND ($2::text IS NULL OR step = $2) ORDER BY began_at DESC, work DESC, attempt DESC LIMIT $3
"""


#: Deletes the lines of all but the last attempts of runs that have continued as new.
TRIM_STEP_LOGS = """
DELETE FROM tidemill.run_log AS l USING (
    SELECT n.run_id, (SELECT k.began_at FROM tidemill.run_log AS k WHERE k.run_id = n.run_id
                      ORDER BY k.began_at DESC OFFSET 200 LIMIT 1) AS began_at
    FROM unnest($1::bigint[]) AS n(run_id)) AS old
WHERE l.run_id = old.run_id AND l.began_at <= old.began_at
"""


class NewStepLog(msgspec.Struct, frozen=True):
    """The last lines of a step's attempt, as JSON, after `dropped` earlier ones. `began_at` is part of its key."""

    run_id: int
    work: int
    step: str
    attempt: int
    began_at: float
    dropped: int
    lines: bytes


async def write_step_logs(database: Database, connection: Executor, logs: Sequence[NewStepLog]) -> None:
    """Write the lines of attempts; if an attempt occurs twice, the last one counts."""
    last = {(log.run_id, log.work, log.attempt, log.began_at): log for log in logs}
    rows = [msgspec.structs.astuple(log) for log in last.values()]
    *keys, lines = columns(rows, 7)
    await connection.execute(database.sql(WRITE_STEP_LOGS), *keys, database.seal_each(lines))


async def trim_step_logs(database: Database, connection: Executor, runs: Sequence[int]) -> None:
    """Delete the lines of all but the last attempts of these runs."""
    await connection.execute(database.sql(TRIM_STEP_LOGS), list(runs))


async def read_step_logs(
    database: Database, run_id: int, *, step: str | None = None, limit: int = 100
) -> list[asyncpg.Record]:
    """The log lines of a run's steps, last attempt first."""
    return await database.fetch(READ_STEP_LOGS, run_id, step, limit)


async def keep_run_log(database: Database, today: date, *, keep_days: int) -> None:
    """Create the next partitions and drop those that are too old."""
    await keep_daily(database, "run_log", "began_at", today, keep_days=keep_days)
