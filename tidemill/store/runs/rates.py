"""Rate keys of runs: those that share one begin at most at its rate, over all run workers.

Such a run sleeps with a `start_at`. Each run worker begins those that their buckets let begin, the most urgent and then
the oldest first: a run that begins fills its bucket by one, and the bucket drains at the rate of its key.
"""

from __future__ import annotations

import time
from typing import Any

from tidemill.store.database import Database

SOONEST = 0.02  # Keys that are free at about the same moment are looked at together.
SHARE = 0.1  # of the time is spent on looking, however many keys there are

_WAITING = "rate_key IS NOT NULL AND start_at IS NOT NULL AND state = 'running'"
_DUE = f"{_WAITING} AND start_at <= now() AND (deadline > now()) IS NOT FALSE"
_FIRST = "coalesce(priority, 5::smallint) DESC, id"

# How much a bucket holds now.
_FILLED = "greatest(0, coalesce(k.filled - extract(epoch FROM clock_timestamp() - k.filled_at)::float8 * {rate}, 0))"

#: The keys with runs that are due, and how many seconds the first of each has to wait for its rate.
READ_WAITS = f"""
WITH RECURSIVE waiting AS (
    (SELECT rate_key FROM tidemill.run WHERE {_WAITING} ORDER BY rate_key LIMIT 1)
    UNION ALL
    SELECT next.rate_key FROM waiting CROSS JOIN LATERAL (
        SELECT rate_key FROM tidemill.run WHERE run.rate_key > waiting.rate_key AND {_WAITING}
        ORDER BY rate_key LIMIT 1) AS next)
SELECT waiting.rate_key AS key,
       greatest(0, ({_FILLED.format(rate="head.rate")} + 1 - head.burst - 0.00001) / head.rate) AS wait
FROM waiting CROSS JOIN LATERAL (
    SELECT key_rate AS rate, coalesce(key_burst, 1) AS burst FROM tidemill.run
    WHERE rate_key = waiting.rate_key AND {_DUE} ORDER BY {_FIRST} LIMIT 1) AS head
LEFT JOIN tidemill.rate_key AS k ON k.key = chr(31) || waiting.rate_key
"""

#: Makes the buckets of keys that have none.
ADD_BUCKETS = """
INSERT INTO tidemill.rate_key (key) SELECT chr(31) || key FROM unnest($1::text[]) AS key ORDER BY key
ON CONFLICT DO NOTHING
"""

#: Begins as many runs of each key as its rate lets begin now. Keys that another worker looks at are left to it.
BEGIN_RATED = f"""
WITH bucket AS MATERIALIZED (
    SELECT k.key, substr(k.key, 2) AS rate_key, k.filled, k.filled_at FROM tidemill.rate_key AS k
    WHERE k.key IN (SELECT chr(31) || key FROM unnest($1::text[]) AS key) ORDER BY k.key FOR UPDATE SKIP LOCKED),
room AS MATERIALIZED (
    SELECT k.key, k.rate_key, head.rate, {_FILLED.format(rate="head.rate")} AS filled,
           greatest(0, floor(head.burst - {_FILLED.format(rate="head.rate")} + 0.00001))::int AS room
    FROM bucket AS k CROSS JOIN LATERAL (
        SELECT key_rate AS rate, coalesce(key_burst, 1) AS burst FROM tidemill.run
        WHERE rate_key = k.rate_key AND {_DUE} ORDER BY {_FIRST} LIMIT 1) AS head),
begun AS (
    UPDATE tidemill.run SET awake = true, start_at = NULL WHERE id = ANY (ARRAY(
        SELECT picked.id FROM room CROSS JOIN LATERAL (
            SELECT id FROM tidemill.run WHERE rate_key = room.rate_key AND {_DUE}
            ORDER BY {_FIRST} LIMIT room.room FOR UPDATE SKIP LOCKED) AS picked))
    RETURNING rate_key),
counted AS (
    UPDATE tidemill.rate_key AS k SET filled = started.filled, filled_at = clock_timestamp(),
        empty_at = clock_timestamp() + make_interval(secs => started.filled / started.rate)
    FROM (SELECT room.key, room.rate, room.filled + count(*) AS filled FROM begun JOIN room USING (rate_key)
          GROUP BY room.key, room.rate, room.filled) AS started
    WHERE k.key = started.key)
SELECT count(*), CASE WHEN count(*) > 0 THEN pg_notify('tidemill_runs', '') END FROM begun
"""

#: How many seconds a run has to wait for its rate, and how many runs begin before it.
READ_RATE_WAIT = f"""
SELECT r.key_rate AS rate, ({_FILLED.format(rate="r.key_rate")} + 1 - coalesce(r.key_burst, 1)) / r.key_rate AS wait, (
    SELECT count(*) FROM (
        SELECT FROM tidemill.run AS o WHERE o.rate_key = r.rate_key AND {_DUE}
          AND (coalesce(o.priority, 5), -o.id) > (coalesce(r.priority, 5), -r.id) LIMIT 10000) AS before) AS ahead,
    EXISTS (SELECT FROM tidemill.worker AS w WHERE w.ended_at IS NULL AND w.lease_until > now()
            AND r.kind = ANY (w.tasks)) AS is_served
FROM tidemill.run AS r LEFT JOIN tidemill.rate_key AS k ON k.key = chr(31) || r.rate_key
WHERE r.id = $1 AND r.rate_key IS NOT NULL AND r.start_at <= now() AND r.state = 'running'
"""


async def read_rate_wait(database: Database, run_id: int) -> Any:
    """What a run waits for that waits for its rate; None if it does not."""
    return await database.fetchrow(READ_RATE_WAIT, run_id)


async def begin_rated(database: Database) -> float | None:
    """Begin runs as their rates allow; returns in how many seconds the next one may begin, None if none waits."""
    since = time.monotonic()
    waits = {row["key"]: row["wait"] for row in await database.fetch(READ_WAITS, patience=None)}
    if free := [key for key, wait in waits.items() if wait <= 0]:
        await database.fetch(ADD_BUCKETS, free, patience=None)
        await database.fetch(BEGIN_RATED, free, patience=None)
        waits = {row["key"]: row["wait"] for row in await database.fetch(READ_WAITS, patience=None)}
    if not waits:
        return None
    return max(min(waits.values()), SOONEST, (time.monotonic() - since) / SHARE)
