"""Notices: which channel is sent which alert. Written with the alert, bound to one message, marked when sent."""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg

from tidemill.store.database import Database, Executor
from tidemill.store.jobs.insert import ADMIT_THROTTLED, notify_queues

#: The task that sends notices, and the prefix of batches that wait for the end of a silence.
NOTIFY_TASK = "tidemill.notify"
SILENCED = "s"

#: Stores notices of new alerts; a second one of the same kind for the same channel is skipped.
WRITE_NOTICES = """
INSERT INTO tidemill.alert_notice (monitor, alert, channel, what, batch)
SELECT $1, * FROM unnest($2::bigint[], $3::text[], $4::text[], $5::text[]) ON CONFLICT DO NOTHING RETURNING id
"""

#: Binds the waiting notices of a batch to a message; those already bound stay.
BIND_NOTICES = """
UPDATE tidemill.alert_notice SET message = $4
WHERE monitor = $1 AND channel = $2 AND batch = $3 AND sent_at IS NULL AND message IS NULL
"""

#: The unsent notices of a batch, by message.
WAITING_NOTICES = """
SELECT n.id, n.message, n.what, a.id AS alert, a.monitor, a.trigger, a.entity, a.kind, a.severity, a.started_at,
       a.opened_at, a.resolved_at, a.resolution, a.acked_at, a.owner, a.key, a.note
FROM tidemill.alert_notice AS n JOIN tidemill.alert AS a ON a.id = n.alert
WHERE n.monitor = $1 AND n.channel = $2 AND n.batch = $3 AND n.sent_at IS NULL AND n.message IS NOT NULL
ORDER BY n.message, n.id
"""

#: The notices of a batch that are not bound yet, with the silence of their alert.
LOOSE_NOTICES = """
SELECT n.id, a.trigger, a.entity, a.severity FROM tidemill.alert_notice AS n JOIN tidemill.alert AS a ON a.id = n.alert
WHERE n.monitor = $1 AND n.channel = $2 AND n.batch = $3 AND n.sent_at IS NULL AND n.message IS NULL ORDER BY n.id
"""
#: Moves notices to another batch.
PUT_OFF = "UPDATE tidemill.alert_notice SET batch = $2 WHERE id = ANY ($1)"
#: Marks notices as sent.
MARK_NOTICES = "UPDATE tidemill.alert_notice SET sent_at = now(), outcome = $2 WHERE id = ANY ($1) AND sent_at IS NULL"

#: Sends notices now that wait for the end of a silence.
SEND_SILENCED_NOW = """
UPDATE tidemill.job SET due_at = now(), note = 'its silence was ended',
    state = CASE WHEN state = 'ready' OR concurrency_key IS NULL THEN 'ready' ELSE 'throttled' END
WHERE task = $1 AND args ->> 'monitor' = $2 AND args ->> 'batch' = $3 AND state <> 'running'
RETURNING queue, concurrency_key
"""


async def write_notices(
    database: Database, connection: Executor, monitor: str, notices: Sequence[tuple[int, str, str, str]]
) -> None:
    """Store notices: (alert, channel, kind, batch) each."""
    if notices:
        await connection.fetch(database.sql(WRITE_NOTICES), monitor, *map(list, zip(*notices, strict=True)))


async def bind_notices(
    database: Database, monitor: str, channel: str, batch: str, message: str
) -> list[asyncpg.Record]:
    """Decide durably which notices the next message has; returns all that are not sent yet."""
    await database.fetch(BIND_NOTICES, monitor, channel, batch, message)
    return await database.fetch(WAITING_NOTICES, monitor, channel, batch)


async def release_notices(
    database: Database, connection: Executor, monitor: str, channel: str, batch: str
) -> list[asyncpg.Record]:
    """The notices of a batch that are not bound to a message: trigger, entity and severity of each."""
    return await connection.fetch(database.sql(LOOSE_NOTICES), monitor, channel, batch)


async def put_off(database: Database, connection: Executor, ids: Sequence[int], batch: str) -> None:
    """Move notices to another batch."""
    await connection.execute(database.sql(PUT_OFF), list(ids), batch)


async def mark_notices(database: Database, ids: Sequence[int], outcome: str) -> None:
    await database.fetch(MARK_NOTICES, list(ids), outcome)


async def send_silenced_now(database: Database, connection: Executor, monitor: str, silence: int) -> None:
    """Send now what was waiting for the end of a silence."""
    rows = await connection.fetch(database.sql(SEND_SILENCED_NOW), NOTIFY_TASK, monitor, f"{SILENCED}{silence}")
    if keys := sorted({row["concurrency_key"] for row in rows if row["concurrency_key"] is not None}):
        await connection.execute(database.sql(ADMIT_THROTTLED), keys)
    if rows:
        await notify_queues(database, connection, {row["queue"] for row in rows})
