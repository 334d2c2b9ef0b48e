"""What runs publish to their followers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidemill.store.database import Database

#: The numbers of published events are so far apart. Those between are for the internal events after each, which are not
#: stored: followers rebuild them from the journal.
EVENT_GAP = 2**20

#: Publishes something of a run from a process that does not own it. Serialised with the owner's turns: otherwise a
#: reader that has seen a number would miss a smaller one that commits later.
PUBLISH = """
WITH held AS MATERIALIZED (SELECT id, seq FROM tidemill.run WHERE id = $1 FOR NO KEY UPDATE)
INSERT INTO tidemill.published (run_id, tick, data)
SELECT held.id, held.seq, p.data FROM held, unnest($2::json[]) AS p(data)
"""

#: The last event, or the last up to a tick.
LAST_PUBLISHED = f"""
SELECT seq * {EVENT_GAP} AS number FROM tidemill.published WHERE run_id = $1 AND tick <= coalesce($2, tick)
ORDER BY seq DESC LIMIT 1
"""

#: The events after a number.
READ_PUBLISHED = f"""
SELECT seq * {EVENT_GAP} AS number, tick, at, data FROM tidemill.published
WHERE run_id = $1 AND seq > $2::bigint / {EVENT_GAP} ORDER BY seq LIMIT $3
"""


async def publish(database: Database, run_id: int, shown: Sequence[bytes]) -> None:
    """Publish something of a run."""
    await database.fetch(PUBLISH, run_id, database.seal_each(shown))


async def read_published(database: Database, run_id: int, *, after: int = 0, limit: int = 1000) -> list[Any]:
    """What a run has published after a number: (number, tick, at, data) each."""
    return await database.fetch(READ_PUBLISHED, run_id, after, limit)


async def last_published(database: Database, run_id: int, *, tick: int | None = None) -> int:
    """The number of the last event that a run has published, or had up to a tick; 0 if there is none."""
    row = await database.fetchrow(LAST_PUBLISHED, run_id, tick)
    return 0 if row is None else row["number"]
