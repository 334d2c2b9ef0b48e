"""Backfills: many states that an operator has built again, and their progress.

A backfill has no process of its own. It marks its states as invalid under its own name. The process that keeps the
pipeline up to date builds them, and a built state loses the mark: the states that still have it are left. The states of
a backfill with a rate wait in `backfill_state`, and the same process marks some of them at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import asyncpg
import msgspec

from tidemill.store.database import Database
from tidemill.store.states.requests import SET_APPROVED, announce, mark_invalid
from tidemill.store.states.states import StatesChanged, notify_states
from tidemill.store.transaction import Transaction

AT_MOST = 5.0  # Seconds of a rate that are marked at once after no process has marked for a while.

#: Stores a new backfill; its name marks its states.
START_BACKFILL = """
INSERT INTO tidemill.state_backfill (pipeline, stage, first, last, downstream, by, total, rate, paced_at)
VALUES ($1, $2, $3, $4, $5, $6, 0, $7::float8, now() - make_interval(secs => 1 / $7::float8)) RETURNING id, mark
"""

#: Queues states that are marked later, in this order, stage by stage.
WAIT_IN_LINE = """
INSERT INTO tidemill.backfill_state (backfill, place, stage, entity)
SELECT $1, coalesce((SELECT max(place) FROM tidemill.backfill_state WHERE backfill = $1), 0) + place, $2, entity
FROM unnest($3::text[]) WITH ORDINALITY AS new (entity, place)
"""

#: Marks the states that are due by the rate of each backfill, at most a few seconds' worth at once.
MARK_DUE = """
WITH due AS (
    SELECT id, pipeline, mark, rate, passed, floor(passed * rate)::bigint AS count
    FROM tidemill.state_backfill AS b,
         LATERAL (SELECT least(extract(epoch FROM now() - paced_at)::float8, greatest($2, 1 / rate)) AS passed) AS p
    WHERE pipeline = ANY ($1::text[]) AND rate IS NOT NULL AND stopped_at IS NULL
          AND EXISTS (SELECT FROM tidemill.backfill_state AS w WHERE w.backfill = b.id)
    FOR UPDATE OF b SKIP LOCKED),
paced AS (
    UPDATE tidemill.state_backfill AS b SET paced_at = now() - make_interval(secs => passed - count / due.rate)
    FROM due WHERE b.id = due.id AND count > 0),
taken AS (
    DELETE FROM tidemill.backfill_state AS w USING due, LATERAL (
        SELECT place FROM tidemill.backfill_state AS n WHERE n.backfill = due.id ORDER BY place LIMIT due.count) AS next
    WHERE w.backfill = due.id AND w.place = next.place
    RETURNING due.pipeline, due.mark, w.stage, w.entity),
marked AS (
    UPDATE tidemill.state AS s SET invalid_by = taken.mark, version = s.version + 1 FROM taken
    WHERE s.pipeline = taken.pipeline AND s.stage = taken.stage AND s.entity = taken.entity
    RETURNING s.pipeline, s.stage, s.entity)
SELECT array_agg(pipeline) AS pipelines, array_agg(stage) AS stages, array_agg(entity) AS entities,
       EXISTS (SELECT FROM due) AS waiting
FROM marked
"""

#: Forgets the failures of marked states.
FORGET_MARKED = """
DELETE FROM tidemill.state_failure AS f
USING unnest($1::text[], $2::text[], $3::text[]) AS marked (pipeline, stage, entity)
WHERE f.pipeline = marked.pipeline AND f.stage = marked.stage AND f.entity = marked.entity
"""

#: Stores the number of states of a backfill.
SET_TOTAL = "UPDATE tidemill.state_backfill SET total = $2 WHERE id = $1"

#: The newest backfills of a pipeline, with the number of states left, and how many of those have failed.
LIST_BACKFILLS = """
SELECT b.id, b.stage, b.first, b.last, b.downstream, b.by, b.started_at, b.stopped_at, b.stopped_by, b.total,
       left_over.count + (SELECT count(*) FROM tidemill.backfill_state AS w WHERE w.backfill = b.id) AS left,
       left_over.failed, b.rate, b.mark
FROM tidemill.state_backfill AS b, LATERAL (
    SELECT count(*) AS count, count(*) FILTER (WHERE f.failed_at > b.started_at) AS failed
    FROM tidemill.state AS s LEFT JOIN tidemill.state_failure AS f USING (pipeline, stage, entity)
    WHERE s.pipeline = b.pipeline AND s.invalid_by = b.mark) AS left_over
WHERE b.pipeline = $1 ORDER BY b.id DESC LIMIT $2
"""

#: Stops a backfill and leaves its unbuilt states as they are.
STOP_BACKFILL = """
WITH stopped AS (
    UPDATE tidemill.state_backfill SET stopped_at = now(), stopped_by = $3
    WHERE pipeline = $1 AND id = $2 AND stopped_at IS NULL RETURNING id, mark),
dropped AS (DELETE FROM tidemill.backfill_state AS w USING stopped WHERE w.backfill = stopped.id RETURNING w.entity),
released AS (
    UPDATE tidemill.state AS s SET invalid_by = NULL, version = s.version + 1 FROM stopped
    WHERE s.pipeline = $1 AND s.invalid_by = stopped.mark RETURNING s.entity)
SELECT (SELECT count(*) FROM stopped) AS stopped,
       (SELECT count(*) FROM released) + (SELECT count(*) FROM dropped) AS released
"""


class NewBackfill(msgspec.Struct, frozen=True):
    """The states of a stage from `first` to `last`, and with `downstream` all that are made from them."""

    pipeline: str
    stage: str
    first: str | None
    last: str | None
    downstream: bool
    states: Mapping[str, Sequence[str]]
    """The entities of each stage."""
    approved: Mapping[str, str]
    """Stages, with their code, whose states may be rebuilt in any number."""
    rate: float | None = None
    """How many states per second; all at once if None."""


async def start_backfill(tx: Transaction, new: NewBackfill, *, approved_for: float) -> tuple[int, int]:
    """Have states built again under the mark of a new backfill; returns its id, and how many states there are."""
    (row,) = await tx.fetch(
        START_BACKFILL, new.pipeline, new.stage, new.first, new.last, new.downstream, tx.by, new.rate
    )
    total = 0
    for stage, entities in new.states.items():
        if new.rate is not None:
            await tx.execute(WAIT_IN_LINE, row["id"], stage, list(entities))
            total += len(entities)
            continue
        total += len(await mark_invalid(tx, new.pipeline, stage, entities, row["mark"]))
    for stage, code in new.approved.items():
        await tx.execute(SET_APPROVED, new.pipeline, stage, tx.by, code, approved_for)
    await tx.execute(SET_TOTAL, row["id"], total)
    after = {
        "backfill": row["id"], "first": new.first, "last": new.last, "downstream": new.downstream,
        "states": total, "approved": sorted(new.approved), "rate": new.rate,
    }  # fmt: skip
    await tx.audit("pipeline.backfill", f"{new.pipeline}/{new.stage}", after=after)
    await announce(tx, new.pipeline)
    return row["id"], total


async def mark_backfill_due(database: Database, pipelines: Sequence[str]) -> bool:
    """Mark the states that are due by the rates of backfills; returns whether any were waiting."""
    async with database.transaction(patience=None) as connection:
        (row,) = await connection.fetch(database.sql(MARK_DUE), list(pipelines), AT_MOST)
        if row["pipelines"]:
            await connection.execute(database.sql(FORGET_MARKED), row["pipelines"], row["stages"], row["entities"])
        for pipeline in sorted(set(row["pipelines"] or ())):
            await notify_states(database, connection, StatesChanged(pipeline))
    return row["waiting"]


async def list_backfills(database: Database, pipeline: str, *, limit: int = 20) -> list[asyncpg.Record]:
    """The newest backfills of a pipeline, and their progress."""
    return await database.fetch(LIST_BACKFILLS, pipeline, limit)


async def stop_backfill(tx: Transaction, pipeline: str, number: int) -> int | None:
    """Leave the rest of a backfill as it is; returns how many states that are, None if there is nothing to stop."""
    row = await tx.fetchrow(STOP_BACKFILL, pipeline, number, tx.by)
    if row is None or not row["stopped"]:
        return None
    target = f"{pipeline}/{number}"
    await tx.audit("pipeline.backfill.stop", target, before={"left": row["released"]}, after={"left": 0})
    await announce(tx, pipeline)
    return row["released"]
