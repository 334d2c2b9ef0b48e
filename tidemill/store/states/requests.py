"""Requests of operators: build states again, retry them, accept them as they are, pause, approve."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.store.database import Database
from tidemill.store.states.states import FORGET_FAILURES, StatesChanged, notify_states
from tidemill.store.transaction import Transaction

#: Build these states again; running builds of them do not count, and their failures are forgotten.
INVALIDATE = """
WITH marked AS (
    SELECT entity FROM tidemill.state
    WHERE pipeline = $1 AND stage = $2 AND entity = ANY ($3::text[]) ORDER BY entity FOR UPDATE)
UPDATE tidemill.state AS s SET invalid_by = $4, version = version + 1
FROM marked WHERE s.pipeline = $1 AND s.stage = $2 AND s.entity = marked.entity RETURNING s.entity
"""
RETRY_FAILURES = """
DELETE FROM tidemill.state_failure
WHERE pipeline = $1 AND stage = $2 AND entity = ANY ($3::text[]) RETURNING entity
"""
#: Marks states that were built by other code as built by this code.
ACCEPT_CODE = """
UPDATE tidemill.state SET code = $3, version = version + 1
WHERE pipeline = $1 AND stage = $2 AND code <> $3 AND content <> ''
RETURNING entity
"""
#: What operators have set so far.
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
#: Asks for approval of a stage's code, unless other code is approved now.
ASK_APPROVAL = """
INSERT INTO tidemill.state_control AS c (pipeline, stage, approved_code) VALUES ($1, $2, $3)
ON CONFLICT (pipeline, stage) DO UPDATE SET approved_by = NULL, approved_code = excluded.approved_code,
    approved_until = NULL
WHERE c.approved_code IS DISTINCT FROM excluded.approved_code AND (c.approved_until > now()) IS NOT TRUE
"""


async def ask_approval(database: Database, pipeline: str, stage: str, code: str) -> None:
    """Record that so many states would be built again by this code that it waits for approval."""
    await database.fetch(ASK_APPROVAL, pipeline, stage, code)


async def mark_invalid(tx: Transaction, pipeline: str, stage: str, entities: Sequence[str], by: str) -> list[str]:
    """Mark states as invalid, and forget their failures; returns those that there are."""
    rows = await tx.fetch(INVALIDATE, pipeline, stage, list(entities), by)
    marked = [row["entity"] for row in rows]
    # A statement of its own: it sees the failures of builds that ended while the first one waited for their rows.
    await tx.execute(FORGET_FAILURES, pipeline, stage, marked)
    return marked


async def invalidate_states(tx: Transaction, pipeline: str, stage: str, entities: Sequence[str]) -> int:
    """Have states built again; returns how many there are."""
    marked = await mark_invalid(tx, pipeline, stage, entities, tx.by)
    after = {"states": len(marked), "first": marked[:20]}
    await tx.audit("pipeline.invalidate", f"{pipeline}/{stage}", after=after)
    await announce(tx, pipeline)
    return len(marked)


async def retry_failures(tx: Transaction, pipeline: str, stage: str, entities: Sequence[str]) -> int:
    """Forget failures, so that their states are retried at once; returns how many there were."""
    rows = await tx.fetch(RETRY_FAILURES, pipeline, stage, list(entities))
    await tx.audit("pipeline.retry", f"{pipeline}/{stage}", after={"states": len(rows)})
    await announce(tx, pipeline)
    return len(rows)


async def accept_code(tx: Transaction, pipeline: str, stage: str, code: str) -> int:
    """Take all states of a stage as built by this code; returns how many were built by other code."""
    rows = await tx.fetch(ACCEPT_CODE, pipeline, stage, code)
    await tx.audit("pipeline.accept", f"{pipeline}/{stage}", after={"code": code, "states": len(rows)})
    await announce(tx, pipeline)
    return len(rows)


async def set_paused(tx: Transaction, pipeline: str, stage: str, *, paused: bool) -> None:
    """Pause or resume a stage, or a whole pipeline (stage '')."""
    before = await tx.fetchrow(SHOW_CONTROL, pipeline, stage)
    by = tx.by if paused else None
    await tx.execute(SET_PAUSED, pipeline, stage, by)
    await tx.audit(
        "pipeline.pause" if paused else "pipeline.resume",
        f"{pipeline}/{stage}".rstrip("/"),
        before={"paused_by": before and before["paused_by"]},
        after={"paused_by": by},
    )
    await announce(tx, pipeline)


async def set_approved(tx: Transaction, pipeline: str, stage: str, code: str, *, seconds: float) -> None:
    """Approve for a time that many states of a stage are built again by this code."""
    before = await tx.fetchrow(SHOW_CONTROL, pipeline, stage)
    await tx.execute(SET_APPROVED, pipeline, stage, tx.by, code, seconds)
    await tx.audit(
        "pipeline.approve",
        f"{pipeline}/{stage}",
        before={"code": before and before["approved_code"]},
        after={"code": code},
    )
    await announce(tx, pipeline)


async def announce(tx: Transaction, pipeline: str) -> None:
    """Tell the processes that keep or show a pipeline, when the transaction commits."""
    await notify_states(tx.database, tx.connection, StatesChanged(pipeline))
