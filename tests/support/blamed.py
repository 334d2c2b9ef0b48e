"""What became of the jobs and runs of `tests/support/misbehaving_app.py`."""

from __future__ import annotations

from typing import Any

from tidemill.store.database import Database


async def ended_jobs(database: Database, ids: list[int]) -> dict[int, Any] | None:
    """The finished jobs, once all of them are."""
    query = "SELECT id, state, note, failures, losses FROM tidemill.job_history WHERE id = ANY ($1)"
    rows = {row["id"]: row for row in await database.fetch(query, ids)}
    return rows if len(rows) == len(ids) else None


async def settled_runs(database: Database, ids: list[int]) -> dict[int, Any] | None:
    """The runs, once all of them have ended or need attention."""
    rows = await database.fetch("SELECT id, state, note, losses FROM tidemill.run WHERE id = ANY ($1)", ids)
    return {row["id"]: row for row in rows} if all(row["state"] != "running" for row in rows) else None


async def troubles(database: Database) -> list[str]:
    """What the watchdogs of living processes have found."""
    rows = await database.fetch("SELECT trouble FROM tidemill.worker WHERE ended_at IS NULL AND trouble IS NOT NULL")
    return [row["trouble"] for row in rows]
