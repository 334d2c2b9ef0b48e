"""The log of observed events: weekly partitions, created ahead of time, dropped when old, and read by time span."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import asyncpg

from tidemill.core.errors import ConfigError
from tidemill.store.database import Database
from tidemill.store.large_values import cut, place_of
from tidemill.store.maintenance.partitions import drop_partition, list_partitions, make_partition
from tidemill.store.monitors.settings_history import DELETE_OLD_SETTINGS

WEEK = 604_800
_PARTITION = re.compile(r"monitor_event_w(\d+)\Z")

#: The longest time that any monitor keeps events.
LONGEST_KEPT = "SELECT coalesce(max(keep), 0) AS keep FROM tidemill.monitor"
#: Deletes old events that had no partition.
DELETE_UNPARTITIONED_EVENTS = "DELETE FROM tidemill.monitor_event_default WHERE at < $1"
#: Deletes the ticks that their monitor no longer keeps.
FORGET_TICKS = """
DELETE FROM tidemill.monitor_tick AS t USING tidemill.monitor AS m WHERE m.name = t.monitor AND t.at < $1 - m.keep
"""

#: The events of a time span, per entity, in the order in which they happened.
READ_SPAN = """
SELECT entity, source_id, at, tick, data, past FROM tidemill.monitor_event
WHERE monitor = $1 AND at >= $2 AND at < $3 AND ($4::text[] IS NULL OR entity = ANY ($4))
ORDER BY entity, at
"""
#: The ticks of a time span.
READ_TICKS_BETWEEN = "SELECT number, at, clock FROM tidemill.monitor_tick WHERE monitor = $1 AND at >= $2 AND at < $3"

#: The newest events, in order of arrival.
READ_TAIL = f"""
SELECT entity, source_id, at, tick,
       {cut("data", place_of("event/data", "monitor", "tick", "source_id"))} AS data
FROM tidemill.monitor_event
WHERE monitor = $1 AND ($2::text IS NULL OR entity = $2) AND tick >= $3
ORDER BY tick DESC, at DESC LIMIT $4
"""


async def make_partitions(database: Database, now: float, *, back: int = 2, ahead: int = 1) -> list[str]:
    """Create the missing partitions of the weeks around now; returns the new ones."""
    existing, made = set(await list_partitions(database, "monitor_event")), list[str]()
    this = int(now // WEEK)
    for week in range(max(0, this - back), this + ahead + 1):
        name = f"monitor_event_w{week}"
        bounds = f"FOR VALUES FROM ({week * WEEK}) TO ({(week + 1) * WEEK}) WITH (toast_tuple_target = 8160)"
        if name not in existing and await make_partition(database, "monitor_event", name, bounds):
            made.append(name)
    return made


async def drop_old(database: Database, now: float) -> list[str]:
    """Drop events older than every monitor keeps, and ticks older than their monitor keeps."""
    row = await database.fetchrow(LONGEST_KEPT)
    oldest = now - (row["keep"] if row else 0)
    dropped = []
    for name in await list_partitions(database, "monitor_event"):
        week = _PARTITION.match(name)
        if week is not None and (int(week[1]) + 1) * WEEK <= oldest and await drop_partition(database, name):
            dropped.append(name)
    await database.fetch(DELETE_UNPARTITIONED_EVENTS, oldest)
    await database.fetch(FORGET_TICKS, now)
    await database.fetch(DELETE_OLD_SETTINGS)
    return dropped


async def read_span(
    database: Database, monitor: str, since: float, until: float, entities: list[str] | None = None
) -> AsyncIterator[asyncpg.Record]:
    """The events of a time span, per entity, streamed in any number."""
    async with database.transaction() as connection:
        async for row in connection.cursor(database.sql(READ_SPAN), monitor, since, until, entities, prefetch=5000):
            yield row


async def read_ticks(
    database: Database, monitor: str, since: float, until: float
) -> list[tuple[int, float, float | None]]:
    rows = await database.fetch(READ_TICKS_BETWEEN, monitor, since, until)
    return [(row["number"], row["at"], row["clock"]) for row in rows]


async def read_tail(
    database: Database,
    monitor: str,
    *,
    entity: str | None,
    tick: int,
    limit: int,
) -> list[asyncpg.Record]:
    """The newest events, newest first; only those that arrived with a tick or later."""
    return await database.fetch(READ_TAIL, monitor, entity, tick, limit)


def moment(text: str, *, what: str = "time") -> float:
    """Parse an ISO date or time to seconds since 1970; without a zone it is UTC."""
    try:
        read = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(
            f"{what}: {text!r} is not a date or time; write it as in 2026-03-02 or 2026-03-02T08:00"
        ) from error
    return (read if read.tzinfo is not None else read.replace(tzinfo=UTC)).timestamp()
