"""What runs publish to their followers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidemill.store.database import Database

#: Publishes something of a run from a process that does not own it. Serialised with the owner's turns: otherwise a
#: reader that has seen a number would miss a smaller one that commits later.
PUBLISH = """
WITH held AS MATERIALIZED (SELECT id FROM tidemill.run WHERE id = $1 FOR NO KEY UPDATE)
INSERT INTO tidemill.published (run_id, data) SELECT held.id, p.data FROM held, unnest($2::json[]) AS p(data)
"""


LAST_PUBLISHED = "SELECT seq FROM tidemill.published WHERE run_id = $1 ORDER BY seq DESC LIMIT 1"


READ_PUBLISHED = "SELECT seq, at, data FROM tidemill.published WHERE run_id = $1 AND seq > $2 ORDER BY seq LIMIT $3"


async def publish(database: Database, run_id: int, shown: Sequence[bytes]) -> None:
    """Publish something of a run."""
    await database.fetch(PUBLISH, run_id, list(shown))


async def read_published(database: Database, run_id: int, *, after: int = 0, limit: int = 1000) -> list[Any]:
    """What a run has published after a number: (seq, at, data) each."""
    return await database.fetch(READ_PUBLISHED, run_id, after, limit)


async def last_published(database: Database, run_id: int) -> int:
    """The number of the last event that a run has published; 0 if there is none."""
    row = await database.fetchrow(LAST_PUBLISHED, run_id)
    return 0 if row is None else row["seq"]
