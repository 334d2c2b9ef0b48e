"""Jobs as the tables hold them."""

from __future__ import annotations

import socket
from typing import Any

import asyncpg

from tests.support.waiting import PATIENCE, eventually
from tidemill.store.database import Database
from tidemill.store.jobs.workers import expire_lease


async def find_live(database: Database, job_id: int) -> asyncpg.Record | None:
    """An unfinished job's row."""
    return await database.fetchrow("SELECT * FROM tidemill.job WHERE id = $1", job_id)


async def find_history(database: Database, job_id: int) -> list[asyncpg.Record]:
    """The history's rows of a job: one, if it has ended."""
    return await database.fetch("SELECT * FROM tidemill.job_history WHERE id = $1", job_id)


async def finished(database: Database, job_id: int, *, timeout: float = PATIENCE) -> asyncpg.Record:
    """A job's row in the history, waiting until it is there."""
    rows = await eventually(lambda: find_history(database, job_id), timeout=timeout, what=f"job {job_id} has finished")
    assert len(rows) == 1, f"job {job_id} finished {len(rows)} times"
    return rows[0]


async def running(database: Database, job_id: int, *, timeout: float = PATIENCE) -> asyncpg.Record:
    """A job's row, waiting until a worker has claimed it."""
    return await eventually(
        lambda: database.fetchrow("SELECT * FROM tidemill.job WHERE id = $1 AND state = 'running'", job_id),
        timeout=timeout,
        what=f"job {job_id} runs",
    )


async def value(database: Database, statement: str, *args: Any) -> Any:
    """The first column of a statement's first row."""
    row = await database.fetchrow(statement, *args)
    return None if row is None else row[0]


async def locked_out(database: Database, like: str = "%") -> int:
    """How many statements of this database wait for a lock, of those that look so."""
    return await value(
        database,
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE $1",
        like,
    )


async def attempts_of(database: Database, job_id: int) -> list[int]:
    """The attempts that the tasks in `tests.support.task_app` have noted for a job, in order of their start."""
    rows = await database.fetch("SELECT attempt FROM execution WHERE job_id = $1 ORDER BY started_at, attempt", job_id)
    return [row["attempt"] for row in rows]


async def open_gate(database: Database, gate: str) -> None:
    """Let the tasks of `tests.support.task_app` go on that wait at this gate."""
    await database.fetch("INSERT INTO gate VALUES ($1)", gate)


async def held_by(database: Database, job_id: int, worker_id: int) -> asyncpg.Record | None:
    """A job's row, if this worker runs it."""
    return await database.fetchrow(
        "SELECT * FROM tidemill.job WHERE id = $1 AND worker_id = $2 AND state = 'running'", job_id, worker_id
    )


async def find_worker(database: Database, worker_id: int) -> asyncpg.Record:
    """A worker's row."""
    row = await database.fetchrow("SELECT * FROM tidemill.worker WHERE id = $1", worker_id)
    assert row is not None
    return row


async def lapse(database: Database, pid: int) -> None:
    """End the lease of a process that was killed or frozen: nobody has to wait for that.

    Leases of tests are long, so that nobody loses one because the machine is busy. Had a renewal been under way, the
    lease lapses by itself, within the patience of `eventually`.
    """
    await expire_lease(database, socket.gethostname(), pid)
