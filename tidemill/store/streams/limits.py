"""The parts of limits that dispatchers of one stream hold, and the lock under which they are divided."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

import asyncpg
import msgspec

from tidemill.store.database import Database, Executor

#: In place of a source's name: live requests.
LIVE_SOURCE = "live"

#: One dispatcher of a stream at a time divides its limits.
LOCK_LIMITS = "SELECT pg_advisory_xact_lock(hashtextextended('tidemill.stream_limit ' || $1, 0))"

READ_LIMITS = """
SELECT source, dispatcher::text AS dispatcher, wanted_rate, rate, wanted_slots, slots
FROM tidemill.stream_limit WHERE stream = $1 AND until > now() AND dispatcher <> $2
"""

HOLD_LIMITS = """
INSERT INTO tidemill.stream_limit (stream, source, dispatcher, wanted_rate, rate, wanted_slots, slots, until)
SELECT $1, source, $2, wanted_rate, rate, wanted_slots, slots, now() + make_interval(secs => $8)
FROM unnest($3::text[], $4::float8[], $5::float8[], $6::int[], $7::int[])
     AS mine (source, wanted_rate, rate, wanted_slots, slots)
ON CONFLICT (stream, source, dispatcher) DO UPDATE SET wanted_rate = excluded.wanted_rate, rate = excluded.rate,
    wanted_slots = excluded.wanted_slots, slots = excluded.slots, until = excluded.until
"""

NOTIFY_LIMITS = "SELECT pg_notify('tidemill_streams', $1)"

#: Gives back the parts of a dispatcher, and forgets dispatchers that are long gone.
DROP_LIMITS = "DELETE FROM tidemill.stream_limit WHERE dispatcher = $1 OR until < now() - interval '1 hour'"


class HeldLimit(msgspec.Struct, frozen=True):
    """What one dispatcher wants and holds of the limits of one source."""

    source: str
    wanted_rate: float
    rate: float
    wanted_slots: int
    slots: int


@asynccontextmanager
async def locked_limits(
    database: Database, stream: str, dispatcher: UUID
) -> AsyncIterator[tuple[Executor, list[asyncpg.Record]]]:
    """What the other dispatchers hold of a stream's limits; nothing of it changes within the block."""
    async with database.transaction(patience=1.0) as connection:
        await connection.execute(LOCK_LIMITS, stream)
        yield connection, await connection.fetch(database.sql(READ_LIMITS), stream, dispatcher)


async def hold_limits(
    database: Database,
    connection: Executor,
    stream: str,
    dispatcher: UUID,
    held: Sequence[HeldLimit],
    *,
    lease: float,
    notify: bool,
) -> None:
    """Store what this dispatcher wants and holds; with `notify` the others look at their parts at once."""
    columns = list(zip(*(msgspec.structs.astuple(each) for each in held), strict=True))
    await connection.execute(database.sql(HOLD_LIMITS), stream, dispatcher, *map(list, columns), lease)
    if notify:
        await connection.execute(database.sql(NOTIFY_LIMITS), limits_topic(stream))


def limits_topic(stream: str) -> str:
    """What is notified when the limits of a stream must be divided again."""
    return f"{stream}/limits"
