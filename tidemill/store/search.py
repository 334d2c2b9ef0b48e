"""Search for jobs, runs and other objects by id, name, key or tag."""

from __future__ import annotations

import asyncpg
import msgspec

from tidemill.store.database import Database

#: A job or a run with this id.
FIND_ID = """
SELECT 'job' AS kind, id::text AS id, task AS name, state FROM tidemill.job WHERE id = $1
UNION ALL SELECT 'job', id::text, task, state FROM tidemill.job_history WHERE id = $1
UNION ALL SELECT 'run', id::text, workflow, state FROM tidemill.run WHERE id = $1
"""

#: Names that contain the words: `$1` is a pattern, `$2` the limit per kind.
FIND_NAMES = """
(SELECT DISTINCT 'queue' AS kind, queue AS id, queue AS name, NULL AS state
 FROM (SELECT unnest(queues) AS queue FROM tidemill.worker UNION SELECT name FROM tidemill.queue) AS q
 WHERE queue ILIKE $1 ORDER BY 2 LIMIT $2)
UNION ALL
(SELECT DISTINCT 'task', task, task, NULL FROM (SELECT unnest(tasks) AS task FROM tidemill.worker) AS t
 WHERE task ILIKE $1 AND task NOT LIKE 'run %' ORDER BY 2 LIMIT $2)
UNION ALL
(SELECT 'schedule', name, name, CASE WHEN paused THEN 'paused' END FROM tidemill.schedule
 WHERE name ILIKE $1 ORDER BY name LIMIT $2)
UNION ALL
(SELECT 'host', name, name, NULL FROM installation.host WHERE name ILIKE $1 ORDER BY name LIMIT $2)
"""

#: Every workflow that has runs; one index step each.
LIST_WORKFLOWS = """
WITH RECURSIVE each AS (
    (SELECT workflow, kind FROM tidemill.run ORDER BY workflow LIMIT 1)
    UNION ALL
    SELECT next.workflow, next.kind FROM each CROSS JOIN LATERAL (
        SELECT workflow, kind FROM tidemill.run WHERE workflow > each.workflow ORDER BY workflow LIMIT 1) AS next)
SELECT workflow, CASE WHEN kind = ':dag' THEN 'dag' ELSE 'flow' END AS shape FROM each LIMIT 1000
"""

#: Jobs and runs whose key begins with the words; `$2` is the first key that does not.
FIND_KEYS = """
(SELECT 'job' AS kind, id::text AS id, task AS name, state, unique_key AS why FROM tidemill.job
 WHERE unique_key >= $1 AND unique_key < $2 ORDER BY unique_key LIMIT $3)
UNION ALL
(SELECT 'job', id::text, task, state, unique_key FROM tidemill.job_history
 WHERE unique_key >= $1 AND unique_key < $2 ORDER BY unique_key LIMIT $3)
UNION ALL
(SELECT 'run', id::text, workflow, state, key FROM tidemill.run
 WHERE key >= $1 AND key < $2 AND key < '~' ORDER BY key LIMIT $3)
"""

#: Some jobs with this tag, unfinished ones first.
FIND_TAG = """
(SELECT 'job' AS kind, id::text AS id, task AS name, state FROM tidemill.job
 WHERE tags @> ARRAY[$1] LIMIT $2)
UNION ALL
(SELECT 'job', id::text, task, state FROM tidemill.job_history WHERE tags @> ARRAY[$1] LIMIT $2)
LIMIT $2
"""

_LAST = "\U0010ffff"


class Hit(msgspec.Struct, frozen=True):
    """One search result: its kind, the id it is shown by, and why it matches."""

    kind: str
    id: str
    name: str
    state: str | None = None
    why: str = ""


async def search(database: Database, words: str, *, limit: int = 8) -> list[Hit]:
    """The best matches: ids first, then names, keys and tags."""
    text = words.strip()
    if not text:
        return []
    found = await _by_id(database, text)
    pattern = "%" + text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
    found += [Hit(*row, why="name") for row in await database.fetch(FIND_NAMES, pattern, limit)]
    found += [
        Hit(row["shape"], row["workflow"], row["workflow"], why="name")
        for row in await list_workflows(database)
        if text.lower() in row["workflow"].lower()
    ][:limit]
    if not text.startswith("~"):
        rows = await database.fetch(FIND_KEYS, text, text + _LAST, limit)
        found += [Hit(row["kind"], row["id"], row["name"], row["state"], f"key {row['why']}") for row in rows]
    found += [Hit(*row, why=f"tag {text}") for row in await database.fetch(FIND_TAG, text, limit)]
    return list({(hit.kind, hit.id): hit for hit in reversed(found)}.values())[::-1][: 4 * limit]


async def list_workflows(database: Database) -> list[asyncpg.Record]:
    """The workflows and dags that have runs, with their shape."""
    return await database.fetch(LIST_WORKFLOWS)


async def _by_id(database: Database, text: str) -> list[Hit]:
    number = text.removeprefix("r").removeprefix("#")
    if not number.isascii() or not number.isdigit() or int(number) >= 2**63:
        return []
    rows = await database.fetch(FIND_ID, int(number))
    return [Hit(*row, why="id") for row in rows if not (text.startswith("r") and row["kind"] == "job")]
