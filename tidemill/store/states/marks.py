"""Marks of states that a pipeline's own process is building now, for display."""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg

from tidemill.store.database import Database, columns

#: Replaces the marks of a builder, and deletes those of builders that have been silent for long.
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
#: The marks of a pipeline that were renewed lately.
LIST_MARKS = """
SELECT stage, entity, began_at FROM tidemill.state_building
WHERE pipeline = $1 AND seen_at > now() - make_interval(secs => $2)
"""


async def set_marks(database: Database, pipeline: str, builder: str, marks: Sequence[tuple[str, str, float]]) -> None:
    """Set which states a builder is building, and since when: (stage, entity, time) each; empty if none."""
    await database.fetch(SET_MARKS, pipeline, builder, *columns(marks, 3))


async def list_marks(database: Database, pipeline: str, *, heard_within: float) -> list[asyncpg.Record]:
    """The states that are being built, by marks that were renewed within this time."""
    return await database.fetch(LIST_MARKS, pipeline, heard_within)
