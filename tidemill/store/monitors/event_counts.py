"""Recent activity of a monitor's entities: event counts in equal parts of a time span, for sparklines."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.store.database import Database

#: Events of each entity in each of `$4` equal parts of the last `$3` seconds.
COUNT_EVENTS = """
SELECT entity, least($4 - 1, floor((at - began) / ($3 / $4)))::int AS part, count(*) AS events
FROM (SELECT extract(epoch FROM now())::float8 - $3 AS began) AS span, tidemill.monitor_event
WHERE monitor = $1 AND entity = ANY ($2) AND at >= extract(epoch FROM now())::float8 - $3
GROUP BY 1, 2
"""


async def count_events(
    database: Database, monitor: str, entities: Sequence[str], *, within: float, parts: int
) -> dict[str, list[int]]:
    """For each entity with events, the number in each part, oldest first."""
    found: dict[str, list[int]] = {}
    for row in await database.fetch(COUNT_EVENTS, monitor, list(entities), within, parts):
        if 0 <= row["part"] < parts:
            found.setdefault(row["entity"], [0] * parts)[row["part"]] = row["events"]
    return found
