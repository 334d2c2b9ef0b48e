"""The history of states: their builds, and everything that is known about one state."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import asyncpg

from tidemill.store.database import Database
from tidemill.store.states.contents import DROP_OLD_CONTENTS

_SOME_BUILDS = 5000

_BUILDS = """
tidemill.state_build WHERE pipeline = $1 AND ($2::text IS NULL OR stage = $2) AND ($3::text IS NULL OR entity = $3)
"""
LIST_BUILDS = f"SELECT * FROM {_BUILDS} ORDER BY at DESC LIMIT $4"

#: The same in pages. Builds of the same time are ordered by ctid: rows here are never updated.
PAGE_BUILDS = f"""
SELECT ctid AS place, * FROM {_BUILDS} AND ($5::timestamptz IS NULL OR (at, ctid) < ($5, $6::tid))
ORDER BY at DESC, ctid DESC LIMIT $4
"""
#: One state, and its failure.
SHOW_STATE = "SELECT * FROM tidemill.state WHERE pipeline = $1 AND stage = $2 AND entity = $3"
SHOW_FAILURE = "SELECT * FROM tidemill.state_failure WHERE pipeline = $1 AND stage = $2 AND entity = $3"
#: Deletes a batch of old builds.
FORGET_BUILDS = """
DELETE FROM tidemill.state_build WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM tidemill.state_build WHERE at < now() - make_interval(days => $1) LIMIT 5000))
RETURNING 1
"""


async def list_builds(
    database: Database, pipeline: str, stage: str | None = None, entity: str | None = None, *, limit: int = 50
) -> list[asyncpg.Record]:
    """The newest builds."""
    return await database.fetch(LIST_BUILDS, pipeline, stage, entity, limit)


async def page_builds(
    database: Database,
    pipeline: str,
    stage: str | None,
    entity: str | None,
    *,
    before: tuple[datetime, int, int] | None,
    limit: int,
) -> list[asyncpg.Record]:
    """Builds, newest first, starting after a time and ctid."""
    at, place = (None, None) if before is None else (before[0], before[1:])
    return await database.fetch(PAGE_BUILDS, pipeline, stage, entity, limit, at, place)


async def show_state(database: Database, pipeline: str, stage: str, entity: str) -> dict[str, Any] | None:
    """Everything that is known about a state."""
    row = await database.fetchrow(SHOW_STATE, pipeline, stage, entity)
    return None if row is None else dict(row)


async def show_failure(database: Database, pipeline: str, stage: str, entity: str) -> dict[str, Any] | None:
    row = await database.fetchrow(SHOW_FAILURE, pipeline, stage, entity)
    return None if row is None else dict(row)


async def forget_builds(database: Database, *, keep_days: int) -> None:
    """Delete the builds and the earlier contents that are older than this."""
    await database.fetch(DROP_OLD_CONTENTS, keep_days)
    while len(await database.fetch(FORGET_BUILDS, keep_days)) == _SOME_BUILDS:
        continue


#: How long the last builds of some states took together, in seconds.
SUM_TOOK = """
SELECT coalesce(sum(took), 0)::float8 AS seconds FROM tidemill.state
WHERE pipeline = $1 AND stage = $2 AND entity = ANY ($3::text[])
"""


async def sum_took(database: Database, pipeline: str, stage: str, entities: Sequence[str]) -> float:
    """How many seconds the last builds of these states took together."""
    (row,) = await database.fetch(SUM_TOOK, pipeline, stage, list(entities))
    return row["seconds"]
