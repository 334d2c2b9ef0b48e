"""Notices: which channel is sent which alert. Written with the alert, bound to one message, marked when sent."""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg

from tidemill.core.codec import storable
from tidemill.store.database import Database, Executor
from tidemill.store.jobs.insert import ADMIT_THROTTLED, WAKE, notify_queues

#: The task that sends notices, and the prefix of batches that wait for the end of a silence.
NOTIFY_TASK = "tidemill.notify"
SILENCED = "s"

#: Stores notices of new alerts; a second one of the same kind for the same channel is skipped.
WRITE_NOTICES = """
INSERT INTO tidemill.alert_notice (monitor, alert, channel, what, batch)
SELECT $1, * FROM unnest($2::bigint[], $3::text[], $4::text[], $5::text[]) ON CONFLICT DO NOTHING RETURNING id
"""

#: Moves the notices of a batch that follow an unsent one of the same alert to the batch of that one. It is locked, so
#: that it is marked as sent either before this, or after it and is then followed by them.
JOIN_EARLIER = """
WITH earlier AS (
    SELECT DISTINCT ON (n.id) n.id, e.batch FROM tidemill.alert_notice AS n JOIN tidemill.alert_notice AS e
        ON e.alert = n.alert AND e.channel = n.channel AND e.id < n.id AND e.batch <> n.batch AND e.sent_at IS NULL
    WHERE n.monitor = $1 AND n.channel = $2 AND n.batch = $3 AND n.sent_at IS NULL AND n.message IS NULL
    ORDER BY n.id, e.id),
held AS (
    SELECT e.batch FROM tidemill.alert_notice AS e
    WHERE e.monitor = $1 AND e.channel = $2 AND e.batch IN (SELECT batch FROM earlier) AND e.sent_at IS NULL
    ORDER BY e.id FOR UPDATE)
UPDATE tidemill.alert_notice AS n SET batch = earlier.batch FROM earlier
WHERE n.id = earlier.id AND earlier.batch IN (SELECT batch FROM held)
"""

#: Binds the waiting notices of a batch to a message; those already bound stay.
BIND_NOTICES = """
UPDATE tidemill.alert_notice SET message = $4
WHERE monitor = $1 AND channel = $2 AND batch = $3 AND sent_at IS NULL AND message IS NULL
"""

#: The unsent notices of a batch, by message.
WAITING_NOTICES = """
SELECT n.id, n.message, n.what,
       (SELECT coalesce(e.outcome, 'waiting') FROM tidemill.alert_notice AS e
        WHERE e.alert = n.alert AND e.channel = n.channel AND e.id < n.id AND e.message <> n.message
        ORDER BY e.id DESC LIMIT 1) AS opened_outcome,
       a.id AS alert, a.monitor, a.trigger, a.entity, a.kind, a.severity, a.started_at,
       a.opened_at, a.resolved_at, a.resolution, a.acked_at, a.owner, a.key, a.note
FROM tidemill.alert_notice AS n JOIN tidemill.alert AS a ON a.id = n.alert
WHERE n.monitor = $1 AND n.channel = $2 AND n.batch = $3 AND n.sent_at IS NULL AND n.message IS NOT NULL
ORDER BY min(n.id) OVER (PARTITION BY n.message), n.id
"""

#: The notices of a batch that are not bound yet, with the silence of their alert.
LOOSE_NOTICES = """
SELECT n.id, a.trigger, a.entity, a.severity FROM tidemill.alert_notice AS n JOIN tidemill.alert AS a ON a.id = n.alert
WHERE n.monitor = $1 AND n.channel = $2 AND n.batch = $3 AND n.sent_at IS NULL AND n.message IS NULL ORDER BY n.id
"""
#: Moves notices to another batch.
PUT_OFF = "UPDATE tidemill.alert_notice SET batch = $2 WHERE id = ANY ($1)"
#: Marks notices as sent, and writes this to the history of their alerts.
MARK_NOTICES = """
WITH done AS (
    UPDATE tidemill.alert_notice SET sent_at = now(), outcome = $2 WHERE id = ANY ($1) AND sent_at IS NULL),
recorded AS (SELECT * FROM unnest($5::bigint[], $6::text[]) AS n(alert, detail))
INSERT INTO tidemill.alert_history (alert, at, action, who, detail)
SELECT alert, now(), $3, $4, detail FROM recorded ORDER BY alert
"""
#: Writes deliveries to the history of alerts.
RECORD_DELIVERIES = """
INSERT INTO tidemill.alert_history (alert, at, action, who, detail)
SELECT alert, now(), $1, $2, detail FROM unnest($3::bigint[], $4::text[]) AS n(alert, detail) ORDER BY alert
"""

#: Sends notices now that wait for the end of a silence.
SEND_SILENCED_NOW = f"""
UPDATE tidemill.job SET due_at = now(), note = 'its silence was ended',
    state = CASE WHEN state = 'ready' OR concurrency_key IS NULL THEN 'ready' ELSE 'throttled' END
WHERE task = $1 AND args ->> 'monitor' = $2 AND args ->> 'batch' = $3 AND state <> 'running'
RETURNING {WAKE.format("")} AS wake, concurrency_key
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


async def join_earlier(database: Database, monitor: str, channel: str, batch: str) -> None:
    """Let the notices of a batch follow earlier ones of their alerts that are not sent yet."""
    await database.fetch(JOIN_EARLIER, monitor, channel, batch)


async def mark_notices(
    database: Database, ids: Sequence[int], outcome: str, channel: str, recorded: Sequence[tuple[int, str]]
) -> None:
    """Mark notices, with an entry in the history of each alert."""
    if ids:
        action = "notice sent" if outcome == "sent" else "notice dropped"
        alerts = [alert for alert, _ in recorded]
        details = [database.seal_text(storable(detail)) for _, detail in recorded]
        await database.fetch(MARK_NOTICES, list(ids), outcome, action, channel, alerts, details)


async def record_deliveries(database: Database, action: str, channel: str, recorded: Sequence[tuple[int, str]]) -> None:
    """Write entries to the history of alerts."""
    alerts = [alert for alert, _ in recorded]
    details = [database.seal_text(storable(detail)[:500]) for _, detail in recorded]
    await database.fetch(RECORD_DELIVERIES, action, channel, alerts, details)


async def send_silenced_now(database: Database, connection: Executor, monitor: str, silence: int) -> None:
    """Send now what was waiting for the end of a silence."""
    rows = await connection.fetch(database.sql(SEND_SILENCED_NOW), NOTIFY_TASK, monitor, f"{SILENCED}{silence}")
    if keys := sorted({row["concurrency_key"] for row in rows if row["concurrency_key"] is not None}):
        await connection.execute(database.sql(ADMIT_THROTTLED), keys)
    if rows:
        await notify_queues(database, connection, {row["wake"] for row in rows})
