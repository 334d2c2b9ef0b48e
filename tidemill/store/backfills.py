"""Backfills: many states that are built again because somebody asked, and how far that has come.

A backfill is no process of its own. It marks its states as invalid under its own name; whoever keeps the pipeline up
to date builds them, and a state that was built has lost the mark. What is left to do is what still has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import asyncpg
import msgspec

from tidemill.store.audit import write_audit
from tidemill.store.database import Database
from tidemill.store.states import INVALIDATE, SET_APPROVED, News, notify_states

#: A new one; its name is what its states are marked with.
START_BACKFILL = """
INSERT INTO tidemill.state_backfill (pipeline, stage, first, last, downstream, by, total)
VALUES ($1, $2, $3, $4, $5, $6, $7) RETURNING id, mark
"""

SET_TOTAL = "UPDATE tidemill.state_backfill SET total = $2 WHERE id = $1"

#: The newest of a pipeline, with what is left of each, and what of that has failed since.
LIST_BACKFILLS = """
SELECT b.id, b.stage, b.first, b.last, b.downstream, b.by, b.started_at, b.stopped_at, b.stopped_by, b.total,
       left_over.count AS left, left_over.failed
FROM tidemill.state_backfill AS b, LATERAL (
    SELECT count(*) AS count, count(*) FILTER (WHERE f.failed_at > b.started_at) AS failed
    FROM tidemill.state AS s LEFT JOIN tidemill.state_failure AS f USING (pipeline, stage, entity)
    WHERE s.pipeline = b.pipeline AND s.invalid_by = b.mark) AS left_over
WHERE b.pipeline = $1 ORDER BY b.id DESC LIMIT $2
"""

#: Leave what was not built yet as it is.
STOP_BACKFILL = """
WITH stopped AS (
    UPDATE tidemill.state_backfill SET stopped_at = now(), stopped_by = $3
    WHERE pipeline = $1 AND id = $2 AND stopped_at IS NULL RETURNING mark),
released AS (
    UPDATE tidemill.state AS s SET invalid_by = NULL, version = s.version + 1 FROM stopped
    WHERE s.pipeline = $1 AND s.invalid_by = stopped.mark RETURNING s.entity)
SELECT (SELECT count(*) FROM stopped) AS stopped, (SELECT count(*) FROM released) AS released
"""


class NewBackfill(msgspec.Struct, frozen=True):
    """What is to be built again: the states of a stage from `first` to `last`, and with `downstream` what follows."""

    pipeline: str
    stage: str
    first: str | None
    last: str | None
    downstream: bool
    states: Mapping[str, Sequence[str]]
    """The entities of each stage."""
    approved: Mapping[str, str]
    """Stages whose states may be built again however many they are, and their code."""


async def start_backfill(database: Database, new: NewBackfill, *, by: str, lasts: float) -> tuple[int, int]:
    """Have states built again under a name of their own; returns its number, and how many there are."""
    async with database.transaction(patience=30.0) as connection:
        (row,) = await connection.fetch(
            database.sql(START_BACKFILL), new.pipeline, new.stage, new.first, new.last, new.downstream, by, 0
        )
        total = 0
        for stage, entities in new.states.items():
            done = await connection.fetch(database.sql(INVALIDATE), new.pipeline, stage, list(entities), row["mark"])
            total += len(done)
        for stage, code in new.approved.items():
            await connection.execute(database.sql(SET_APPROVED), new.pipeline, stage, by, code, lasts)
        await connection.execute(database.sql(SET_TOTAL), row["id"], total)
        await write_audit(
            database, connection, who=by, action="pipeline.backfill", target=f"{new.pipeline}/{new.stage}",
            after={
                "backfill": row["id"], "first": new.first, "last": new.last, "downstream": new.downstream,
                "states": total, "approved": sorted(new.approved),
            },
        )  # fmt: skip
        await notify_states(database, connection, News(new.pipeline))
    return row["id"], total


async def list_backfills(database: Database, pipeline: str, *, limit: int = 20) -> list[asyncpg.Record]:
    """The newest backfills of a pipeline, and how far they have come."""
    return await database.fetch(LIST_BACKFILLS, pipeline, limit)


async def stop_backfill(database: Database, pipeline: str, number: int, *, by: str) -> int | None:
    """Leave the rest of a backfill as it is; returns how many that were, None if it has ended or never was."""
    async with database.transaction(patience=30.0) as connection:
        row = await connection.fetchrow(database.sql(STOP_BACKFILL), pipeline, number, by)
        if row is None or not row["stopped"]:
            return None
        await write_audit(
            database, connection, who=by, action="pipeline.backfill.stop", target=f"{pipeline}/{number}",
            before={"left": row["released"]}, after={"left": 0},
        )  # fmt: skip
        await notify_states(database, connection, News(pipeline))
        return row["released"]
