"""Operators' requests about states: rebuild, retry, accept, pause, approve."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.store.audit import write_audit
from tidemill.store.database import Database
from tidemill.store.states.states import News, notify_states

#: Marks states for a rebuild; running builds do not count, and failures are deleted.
INVALIDATE = """
WITH marked AS (
    UPDATE tidemill.state SET invalid_by = $4, version = version + 1
    WHERE pipeline = $1 AND stage = $2 AND entity = ANY ($3::text[]) RETURNING entity),
mended AS (
    DELETE FROM tidemill.state_failure AS f USING marked
    WHERE f.pipeline = $1 AND f.stage = $2 AND f.entity = marked.entity)
SELECT entity FROM marked
"""
#: How many states marked by one request are not built yet, and how many of them have failed.
COUNT_MARKED = """
SELECT count(*) AS left, count(f.entity) AS failed
FROM tidemill.state AS s LEFT JOIN tidemill.state_failure AS f USING (pipeline, stage, entity)
WHERE s.pipeline = $1 AND s.invalid_by = $2
"""
#: Makes failed states due for a retry now.
RETRY_FAILURES = """
DELETE FROM tidemill.state_failure
WHERE pipeline = $1 AND ($2::text IS NULL OR stage = $2) AND ($3::text[] IS NULL OR entity = ANY ($3))
RETURNING stage, entity
"""
#: Marks states that were built by other code as built by this code.
ACCEPT_CODE = """
UPDATE tidemill.state SET code = $3, version = version + 1
WHERE pipeline = $1 AND stage = $2 AND code <> $3 AND content <> '' AND ($4::text[] IS NULL OR entity = ANY ($4))
RETURNING entity
"""
#: The control row of a pipeline or stage.
SHOW_CONTROL = """
SELECT paused_by, approved_by, approved_code FROM tidemill.state_control WHERE pipeline = $1 AND stage = $2 FOR UPDATE
"""
#: Pauses or resumes a pipeline or a stage.
SET_PAUSED = """
INSERT INTO tidemill.state_control (pipeline, stage, paused_by) VALUES ($1, $2, $3)
ON CONFLICT (pipeline, stage) DO UPDATE SET paused_by = excluded.paused_by
"""
#: Approves the rebuild of a stage's states by this code.
SET_APPROVED = """
INSERT INTO tidemill.state_control (pipeline, stage, approved_by, approved_code, approved_until)
VALUES ($1, $2, $3, $4, now() + make_interval(secs => $5))
ON CONFLICT (pipeline, stage) DO UPDATE SET approved_by = excluded.approved_by,
    approved_code = excluded.approved_code, approved_until = excluded.approved_until
"""


async def invalidate_states(database: Database, pipeline: str, stage: str, entities: Sequence[str], *, by: str) -> int:
    """Mark states for a rebuild."""
    async with database.transaction() as connection:
        rows = await connection.fetch(database.sql(INVALIDATE), pipeline, stage, list(entities), by)
        await write_audit(
            database, connection, who=by, action="pipeline.invalidate", target=f"{pipeline}/{stage}",
            after={"states": len(rows), "first": [row["entity"] for row in rows[:20]]},
        )  # fmt: skip
        await notify_states(database, connection, News(pipeline))
    return len(rows)


async def count_marked(database: Database, pipeline: str, by: str) -> tuple[int, int]:
    """How many of the states marked by `by` are not built yet, and how many of those have failed."""
    (row,) = await database.fetch(COUNT_MARKED, pipeline, by)
    return row["left"], row["failed"]


async def retry_failures(
    database: Database, pipeline: str, stage: str | None, entities: Sequence[str] | None, *, by: str
) -> int:
    """Clear failures, so that their states are retried at once."""
    async with database.transaction() as connection:
        rows = await connection.fetch(
            database.sql(RETRY_FAILURES), pipeline, stage, None if entities is None else list(entities)
        )
        target = f"{pipeline}/{stage}" if stage else pipeline
        await write_audit(
            database, connection, who=by, action="pipeline.retry", target=target, after={"states": len(rows)}
        )
        await notify_states(database, connection, News(pipeline))
    return len(rows)


async def accept_code(
    database: Database, pipeline: str, stage: str, code: str, entities: Sequence[str] | None, *, by: str
) -> int:
    """Accept a change of code as one that changes no result."""
    async with database.transaction() as connection:
        rows = await connection.fetch(
            database.sql(ACCEPT_CODE), pipeline, stage, code, None if entities is None else list(entities)
        )
        await write_audit(
            database, connection, who=by, action="pipeline.accept", target=f"{pipeline}/{stage}",
            after={"code": code, "states": len(rows)},
        )  # fmt: skip
        await notify_states(database, connection, News(pipeline))
    return len(rows)


async def set_paused(database: Database, pipeline: str, stage: str, *, paused: bool, by: str) -> None:
    """Pause or resume a pipeline (stage '') or a stage."""
    async with database.transaction() as connection:
        before = await connection.fetchrow(database.sql(SHOW_CONTROL), pipeline, stage)
        await connection.execute(database.sql(SET_PAUSED), pipeline, stage, by if paused else None)
        action = "pipeline.pause" if paused else "pipeline.resume"
        await write_audit(
            database, connection, who=by, action=action, target=f"{pipeline}/{stage}".rstrip("/"),
            before={"paused_by": before and before["paused_by"]}, after={"paused_by": by if paused else None},
        )  # fmt: skip
        await notify_states(database, connection, News(pipeline))


async def set_approved(database: Database, pipeline: str, stage: str, code: str, *, by: str, seconds: float) -> None:
    """Approve that many states of a stage are rebuilt by this code."""
    async with database.transaction() as connection:
        before = await connection.fetchrow(database.sql(SHOW_CONTROL), pipeline, stage)
        await connection.execute(database.sql(SET_APPROVED), pipeline, stage, by, code, seconds)
        await write_audit(
            database, connection, who=by, action="pipeline.approve", target=f"{pipeline}/{stage}",
            before={"code": before and before["approved_code"]}, after={"code": code},
        )  # fmt: skip
        await notify_states(database, connection, News(pipeline))
