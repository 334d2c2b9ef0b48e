"""Errors of users' code in monitors: by place and entity, with how often and when."""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg

from tidemill.store.database import Database, Executor

MOST_LISTED = 20

#: Stores errors of users' code.
NOTE_PROBLEMS = """
INSERT INTO tidemill.monitor_problem AS p (monitor, place, entity, error, count)
SELECT $1, place, entity, min(error), count(*)
FROM unnest($2::text[], $3::text[], $4::text[]) AS n(place, entity, error)
GROUP BY place, entity
ON CONFLICT (monitor, place, entity) DO UPDATE
SET error = excluded.error, count = p.count + excluded.count, last_at = now()
"""
LIST_PROBLEMS = """
SELECT place, entity, error, count, first_at, last_at FROM tidemill.monitor_problem
WHERE monitor = $1 ORDER BY last_at DESC LIMIT $2
"""

#: The errors of one entity at some places.
LIST_PROBLEMS_OF = """
SELECT place, error, count, last_at FROM tidemill.monitor_problem
WHERE monitor = $1 AND entity = $2 AND place = ANY ($3) ORDER BY last_at DESC
"""


async def note_problems(
    database: Database, connection: Executor, name: str, problems: Sequence[tuple[str, str, str]]
) -> None:
    """Store errors: place, entity and error of each."""
    if problems:
        *rest, errors = map(list, zip(*problems, strict=True))
        sealed = [database.seal_text(each) for each in errors]
        await connection.execute(database.sql(NOTE_PROBLEMS), name, *rest, sealed)


async def list_problems(database: Database, name: str) -> list[asyncpg.Record]:
    return await database.fetch(LIST_PROBLEMS, name, MOST_LISTED)


async def list_problems_of(database: Database, name: str, entity: str, places: Sequence[str]) -> list[asyncpg.Record]:
    """The errors of one entity at these places, newest first."""
    return await database.fetch(LIST_PROBLEMS_OF, name, entity, list(places))
