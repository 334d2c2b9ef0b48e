"""Throughput over time: the totals of the meter, stored every few seconds and kept for a day."""

from __future__ import annotations

import asyncpg

from tidemill.core.codec import decode
from tidemill.store.database import Database

EVERY = 10.0
KEPT_HOURS = 24

#: Stores the totals, unless a process has within the last `$1` seconds; deletes rows that are too old.
NOTE_PACE = f"""
WITH ended AS (
    SELECT coalesce(sum(value), 0) AS done,
           coalesce(sum(value) FILTER (WHERE (labels::json ->> 2) NOT IN ('succeeded', 'snoozed')), 0) AS failed
    FROM tidemill.meter WHERE name = 'ended'),
waits AS (
    SELECT json_object_agg(queue, bounds) AS waits FROM (
        SELECT labels::json ->> 0 AS queue, json_object_agg(labels::json ->> 1, value) AS bounds
        FROM tidemill.meter WHERE name = 'wait' GROUP BY 1) AS each),
old AS (DELETE FROM tidemill.throughput WHERE at < now() - interval '{KEPT_HOURS} hours')
INSERT INTO tidemill.throughput (at, done, failed, waits)
SELECT now(), done, failed, coalesce(waits, '{{}}') FROM ended, waits
WHERE NOT EXISTS (SELECT FROM tidemill.throughput WHERE at > now() - make_interval(secs => $1))
ON CONFLICT (at) DO NOTHING
"""

#: The totals over the last `$1` seconds, thinned to one every `$2` seconds, oldest first.
READ_PACE = """
SELECT DISTINCT ON (slot) at, done, failed FROM (
    SELECT at, done, failed, floor(extract(epoch FROM at) / $2) AS slot FROM tidemill.throughput
    WHERE at > now() - make_interval(secs => $1)) AS noted
ORDER BY slot, at
"""

#: The newest totals of waiting times, and those of about `$1` seconds earlier.
READ_WAITS = """
(SELECT at, waits FROM tidemill.throughput WHERE at > now() - make_interval(secs => $1) ORDER BY at LIMIT 1)
UNION ALL
(SELECT at, waits FROM tidemill.throughput ORDER BY at DESC LIMIT 1)
"""

Waits = dict[str, dict[str, float]]


async def note_pace(database: Database, *, every: float = EVERY) -> None:
    """Store the current totals; several servers store them once."""
    await database.fetch(NOTE_PACE, every * 0.8)


async def read_pace(database: Database, *, within: float, every: float) -> list[asyncpg.Record]:
    """The totals over time."""
    return await database.fetch(READ_PACE, within, every)


async def read_waits(database: Database, *, within: float) -> Waits:
    """Per queue, how many jobs that started lately had waited up to each bound."""
    rows = await database.fetch(READ_WAITS, within)
    if len(rows) < 2 or rows[0]["at"] == rows[1]["at"]:
        return {}
    before, now = (decode(row["waits"], Waits) for row in rows)
    found: Waits = {}
    for queue, bounds in now.items():
        known = before.get(queue, {})
        lately = {bound: value - known.get(bound, 0.0) for bound, value in bounds.items()}
        if all(value >= 0 for value in lately.values()) and sum(lately.values()) > 0:
            found[queue] = lately
    return found
