"""What messages have handed over: written with the outcome of a message, read when someone asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

import asyncpg

from tidemill.store.database import Database, Executor
from tidemill.store.maintenance.partitions import keep_daily

MOST_SHOWN = 100

ADD_HANDED_OVER = """
INSERT INTO tidemill.stream_handed_over (stream, source, place, message_id, origin, kind, name, id)
SELECT $1, * FROM unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[])
"""

#: What a message has handed over, oldest first, with the states of jobs and runs.
FIND_HANDED_OVER = """
SELECT h.stream, h.source, h.place, h.origin, h.at, h.kind, h.name, h.id, CASE h.kind
           WHEN 'job' THEN coalesce((SELECT state FROM tidemill.job WHERE id = h.id::bigint),
                                    (SELECT state FROM tidemill.job_history WHERE id = h.id::bigint LIMIT 1))
           WHEN 'event' THEN (SELECT state FROM tidemill.run WHERE id = h.id::bigint) END AS state
FROM tidemill.stream_handed_over AS h
WHERE ($1::text IS NULL OR h.stream = $1) AND ($2::text IS NULL OR h.source = $2) AND {which} ORDER BY h.at LIMIT $4
"""

#: Of a source, place, id and origin of a message: the kind, name and id of what it has handed over.
HandedOver = tuple[str, str, str | None, str | None, str, str | None, str | None]


async def add_handed_over(database: Database, connection: Executor, stream: str, rows: Sequence[HandedOver]) -> None:
    """Store what messages hand over, in the transaction of their outcomes."""
    await connection.execute(database.sql(ADD_HANDED_OVER), stream, *map(list, zip(*rows, strict=True)))


async def find_handed_over(
    database: Database, stream: str | None, source: str | None, place: str | None, id: str | None
) -> list[asyncpg.Record]:
    """What a message has handed over, by its place or its id."""
    which = "h.message_id = $3" if place is None else "h.place = $3"
    return await database.fetch(FIND_HANDED_OVER.format(which=which), stream, source, place or id, MOST_SHOWN)


async def keep_handed_over(database: Database, today: date, *, keep_days: int) -> None:
    """Maintain the daily partitions."""
    await keep_daily(database, "stream_handed_over", "at", today, keep_days=keep_days)
