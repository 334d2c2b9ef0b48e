"""Runs, their journals and what they published, as people are shown them: large values are cut."""

from __future__ import annotations

from typing import Any

from tidemill.core.errors import NotFoundError
from tidemill.store.database import Database
from tidemill.store.large_values import cut, place_of
from tidemill.store.runs.published import EVENT_GAP

_VALUES = ", ".join(
    f"{cut(f'r.{name}', place_of(f'run/{name}', 'r.id'))} AS {name}" for name in ("input", "result", "error")
)

#: A run and the process that drives it.
DESCRIBE_RUN = f"""
SELECT r.id, r.workflow, r.kind, r.state, r.key, r.seq, r.note, r.created_at, r.ended_at, r.forked_from, r.parent,
       r.version, r.origin, r.owner, r.awake, r.buffered, r.priority, r.deadline,
       r.start_at, r.rate_key, coalesce(r.tags, '{{}}') AS tags, w.host AS owner_host, w.pid AS owner_pid, {_VALUES}
FROM tidemill.run AS r LEFT JOIN tidemill.worker AS w ON w.id = r.owner WHERE r.id = $1
"""

#: A run's journal after a tick: beside its data, what kind of tick it is, and when it was written.
DESCRIBE_TICKS = f"""
SELECT seq, data->>'kind' AS kind, data->>'at' AS at, {cut("data", place_of("tick/data", "run_id", "seq"))} AS data
FROM tidemill.tick WHERE run_id = $1 AND seq > $2 ORDER BY seq LIMIT $3
"""

#: What a run has published after a number.
DESCRIBE_PUBLISHED = f"""
SELECT seq * {EVENT_GAP} AS number, {cut("data", place_of("published/data", "run_id", "seq"))} AS data
FROM tidemill.published WHERE run_id = $1 AND seq > $2::bigint / {EVENT_GAP} ORDER BY seq LIMIT $3
"""


async def describe_run(database: Database, run_id: int) -> Any:
    """A run; an error if there is none."""
    row = await database.fetchrow(DESCRIBE_RUN, run_id)
    if row is None:
        raise NotFoundError(f"there is no run {run_id}: `tidemill runs` lists them")
    return row


async def describe_ticks(database: Database, run_id: int, *, after: int, limit: int) -> list[Any]:
    return await database.fetch(DESCRIBE_TICKS, run_id, after, limit)


async def describe_published(database: Database, run_id: int, *, after: int, limit: int) -> list[Any]:
    return await database.fetch(DESCRIBE_PUBLISHED, run_id, after, limit)
