"""Log lines of tasks: the last lines of each attempt, written no later than its end. Kept as long as the job."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

import asyncpg
import msgspec

from tidemill.store.database import Database, Executor, columns
from tidemill.store.maintenance.partitions import keep_daily

MOST_ATTEMPTS = 20

#: Stores the lines of attempts so far; the lines of a running attempt are overwritten as they grow.
WRITE_LOGS = """
INSERT INTO tidemill.job_log AS l (job_id, attempt, began_at, dropped, lines)
SELECT n.job_id, n.attempt, to_timestamp(n.began_at), n.dropped, n.lines
FROM unnest($1::bigint[], $2::int[], $3::float8[], $4::int[], $5::json[])
    AS n(job_id, attempt, began_at, dropped, lines)
ON CONFLICT (job_id, attempt, began_at) DO UPDATE SET dropped = excluded.dropped, lines = excluded.lines
"""

#: The stored lines of a job's attempts, last attempt first.
READ_LOGS = """
SELECT attempt, began_at, dropped, lines FROM tidemill.job_log WHERE job_id = $1 ORDER BY attempt DESC LIMIT $2
"""


class AttemptLog(msgspec.Struct, frozen=True):
    """The last lines of a job's attempt, as JSON, after `dropped` earlier ones. `began_at` is part of its key."""

    job_id: int
    attempt: int
    began_at: float
    dropped: int
    lines: bytes


async def write_logs(database: Database, connection: Executor, logs: Sequence[AttemptLog]) -> None:
    """Write the lines of attempts; each attempt may occur once per call."""
    last = {(log.job_id, log.attempt): log for log in logs}
    rows = [msgspec.structs.astuple(log) for log in last.values()]
    *keys, lines = columns(rows, 5)
    await connection.execute(database.sql(WRITE_LOGS), *keys, database.seal_each(lines))


async def read_logs(database: Database, job_id: int) -> list[asyncpg.Record]:
    """The log lines of a job's attempts, last attempt first."""
    return await database.fetch(READ_LOGS, job_id, MOST_ATTEMPTS)


async def keep_job_log(database: Database, today: date, *, keep_days: int) -> None:
    """Create the next partitions and drop those that are too old."""
    await keep_daily(database, "job_log", "began_at", today, keep_days=keep_days)
