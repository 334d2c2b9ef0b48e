"""Marks of states that a pipeline's own process builds just now, for people who look on."""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg

from tidemill.store.database import Database, columns

#: These, and no others, are built by this builder; those of whom nothing was heard for long are forgotten.
SET_MARKS = """
WITH new AS (
    SELECT stage, entity, to_timestamp(began_at) AS began_at
    FROM unnest($3::text[], $4::text[], $5::float8[]) AS new (stage, entity, began_at)),
ended AS (
    DELETE FROM tidemill.state_building AS m
    WHERE m.pipeline = $1 AND (m.builder = $2 OR m.seen_at < now() - interval '1 minute')
      AND NOT EXISTS (SELECT FROM new WHERE new.stage = m.stage AND new.entity = m.entity))
INSERT INTO tidemill.state_building (pipeline, stage, entity, builder, began_at)
SELECT $1, stage, entity, $2, began_at FROM new
ON CONFLICT (pipeline, stage, entity) DO UPDATE SET builder = excluded.builder, began_at = excluded.began_at,
    seen_at = now()
"""
LIST_MARKS = """
SELECT stage, entity, began_at FROM tidemill.state_building
WHERE pipeline = $1 AND seen_at > now() - make_interval(secs => $2)
"""


async def set_marks(database: Database, pipeline: str, builder: str, marks: Sequence[tuple[str, str, float]]) -> None:
    """Say which states a builder is at, and since when: stage, entity, time. None: it is at nothing."""
    await database.fetch(SET_MARKS, pipeline, builder, *columns(marks, 3))


async def list_marks(database: Database, pipeline: str, *, heard_within: float) -> list[asyncpg.Record]:
    """The states that are being built, as far as that was said lately."""
    return await database.fetch(LIST_MARKS, pipeline, heard_within)
