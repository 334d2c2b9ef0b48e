"""The fires of schedules: what became of each, and those that wait for the previous one."""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg
import msgspec

from tidemill.core.schedule import WaitingFire
from tidemill.store.database import Database, Executor

KEPT = 100
"""How many fires of each schedule are remembered."""

#: Remembers what became of fires, and forgets the oldest.
NOTE_FIRES = """
WITH noted AS (
    INSERT INTO tidemill.schedule_fire (schedule, fire, outcome, reason, note, job_id, run_id)
    SELECT $1, to_timestamp(n.fire), n.outcome, n.reason, n.note, n.job_id, n.run_id
    FROM json_to_recordset($2::json) AS n (
        fire float8, outcome text, reason text, note text, job_id bigint, run_id bigint))
DELETE FROM tidemill.schedule_fire WHERE schedule = $1 AND id <= (
    SELECT id FROM tidemill.schedule_fire WHERE schedule = $1 ORDER BY id DESC OFFSET $3 LIMIT 1)
"""

#: The last fires of a schedule, newest first.
READ_FIRES = """
SELECT fire, at, outcome, reason, note, job_id, run_id FROM tidemill.schedule_fire
WHERE schedule = $1 ORDER BY id DESC LIMIT $2
"""

#: Replaces the fires that wait for the previous one; the scheduler looks at them at once.
SET_WAITING = "UPDATE tidemill.schedule SET waiting = $2, check_at = now() WHERE name = $1"


class FireNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of a fire: started, waiting, skipped, missed or failed."""

    fire: float
    outcome: str
    reason: str
    note: str | None = None
    job_id: int | None = None
    run_id: int | None = None


async def note_fires(database: Database, connection: Executor, schedule: str, notes: Sequence[FireNote]) -> None:
    """Remember what became of fires."""
    if notes:
        await connection.execute(
            database.sql(NOTE_FIRES), schedule, msgspec.json.encode(list(notes[-KEPT:])), KEPT - len(notes[-KEPT:])
        )


async def read_fires(database: Database, schedule: str, limit: int) -> Sequence[asyncpg.Record]:
    """The last fires of a schedule, newest first."""
    return await database.fetch(READ_FIRES, schedule, limit)


def encode_waiting(waiting: Sequence[WaitingFire]) -> bytes:
    """The fires that wait, as they are stored."""
    return msgspec.json.encode(list(waiting))


def decode_waiting(data: bytes) -> list[WaitingFire]:
    """The fires that wait."""
    return msgspec.json.decode(data, type=list[WaitingFire])
