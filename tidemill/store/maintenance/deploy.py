"""What a new version of an application is checked against: jobs that wait, states, schedules, and what ran before."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tidemill.store.database import Database
from tidemill.store.transaction import PATIENCE, Transaction

JOBS_AT_ONCE = 5000

#: Jobs after an id that no worker runs now, with what they are called with.
WAITING_JOBS = """
SELECT id, queue, task, args, run_id FROM tidemill.job
WHERE id > $1 AND state <> 'running' ORDER BY id LIMIT $2
"""

#: How many states of each stage were built by each code, and the hashes of its parts.
STATE_CODES = """
SELECT s.*, c.parts FROM (
    SELECT pipeline, stage, code, count(*) AS states FROM tidemill.state WHERE content <> '' GROUP BY 1, 2, 3) AS s
LEFT JOIN tidemill.state_code AS c USING (pipeline, stage, code) ORDER BY 1, 2
"""

#: The schedules that are stored for an application.
STORED_SCHEDULES = "SELECT name, spec, job, run, made_by FROM tidemill.schedule ORDER BY name"

#: The streams that have been run, and the monitors.
KNOWN_STREAMS = """
SELECT stream FROM tidemill.stream_status UNION SELECT stream FROM tidemill.source_cursor ORDER BY 1
"""
KNOWN_MONITORS = "SELECT name FROM tidemill.monitor ORDER BY 1"


@asynccontextmanager
async def read_only(database: Database, by: str) -> AsyncIterator[Transaction]:
    """One transaction that sees one moment of the database and cannot change it."""
    async with database.transaction(patience=PATIENCE) as connection:
        await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield Transaction(database, connection, by)


async def waiting_jobs(tx: Transaction) -> AsyncIterator[list[Any]]:
    """The jobs that no worker runs now, in batches."""
    after = 0
    while rows := await tx.fetch(WAITING_JOBS, after, JOBS_AT_ONCE):
        after = rows[-1]["id"]
        yield rows


async def state_codes(tx: Transaction) -> list[Any]:
    """How many states of each stage were built by each code, and the hashes of its parts."""
    return await tx.fetch(STATE_CODES)


async def stored_schedules(tx: Transaction) -> list[Any]:
    """The schedules that are stored for an application."""
    return await tx.fetch(STORED_SCHEDULES)


async def known_streams(tx: Transaction) -> list[str]:
    """The streams that have been run."""
    return [row["stream"] for row in await tx.fetch(KNOWN_STREAMS)]


async def known_monitors(tx: Transaction) -> list[str]:
    """The monitors that have been run."""
    return [row["name"] for row in await tx.fetch(KNOWN_MONITORS)]
