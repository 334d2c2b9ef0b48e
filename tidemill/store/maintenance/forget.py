"""Deleting what is stored about a person or an object: everything under one key, or jobs with one tag.

A key is the `unique_key` or `concurrency_key` of jobs, the key of a run or of a published message, or the name of an
entity of a monitor or a pipeline. What unfinished work still needs is left, and counted.
"""

from __future__ import annotations

from tidemill.store.transaction import Transaction

LIVE = "('running', 'needs_attention')"

#: The ended runs with a key, with their journals, snapshots, published events, inboxes and questions.
_RUNS = f"""
WITH old AS MATERIALIZED (
    SELECT id FROM tidemill.run WHERE key = $1 AND state NOT IN {LIVE} FOR UPDATE),
ticks AS (DELETE FROM tidemill.tick WHERE run_id IN (SELECT id FROM old) RETURNING 1),
shown AS (DELETE FROM tidemill.published WHERE run_id IN (SELECT id FROM old) RETURNING 1),
waiting AS (DELETE FROM tidemill.inbox WHERE run_id IN (SELECT id FROM old)),
asked AS (DELETE FROM tidemill.run_input WHERE run_id IN (SELECT id FROM old)),
snaps AS (DELETE FROM tidemill.snapshot WHERE run_id IN (SELECT id FROM old)),
logs AS (DELETE FROM tidemill.run_log WHERE run_id IN (SELECT id FROM old) RETURNING 1),
gone AS (DELETE FROM tidemill.run WHERE id IN (SELECT id FROM old))
SELECT array(SELECT id FROM old) AS ids, (SELECT count(*) FROM ticks) AS ticks, (SELECT count(*) FROM shown) AS shown,
       (SELECT count(*) FROM logs) AS logs
"""

#: The finished jobs of a key or tag, and those of these runs.
_JOBS = """
DELETE FROM tidemill.job_history
WHERE unique_key = $1 OR concurrency_key = $1 OR $2 = ANY (tags) OR run_id = ANY ($3::bigint[]) RETURNING id
"""
_JOB_LOGS = "DELETE FROM tidemill.job_log WHERE job_id = ANY ($1::bigint[]) RETURNING 1"
_WINDOWS = "DELETE FROM tidemill.unique_window WHERE unique_key = $1 RETURNING 1"
_LIMITS = """
DELETE FROM tidemill.concurrency_key
WHERE key = $1 AND NOT EXISTS (SELECT FROM tidemill.job WHERE concurrency_key = $1) RETURNING 1
"""

#: What audit entries say of these jobs and runs; that something was done to them stays.
_AUDIT = """
UPDATE installation.audit SET before = NULL, after = '{"$forgotten": true}'
WHERE (before IS NOT NULL OR after IS NOT NULL) AND application IS NOT DISTINCT FROM $3
  AND (target = ANY ($1::text[]) OR split_part(target, ' ', 1) = ANY ($2::text[])) RETURNING 1
"""

#: A message that a consumer group has not reached, or is working on.
_UNREAD = """
(EXISTS (SELECT FROM tidemill.log_group AS g WHERE g.topic = e.topic AND (g.xid, g.id) < (e.xid, e.id))
 OR EXISTS (SELECT FROM tidemill.log_range AS r WHERE r.topic = e.topic
            AND (e.xid, e.id) > (r.from_xid, r.from_id) AND (e.xid, e.id) <= (r.to_xid, r.to_id)))
"""

#: Messages stand in rows of many: those with the key become `null`, in their place.
_MESSAGES = f"""
WITH changed AS (
    UPDATE tidemill.event_log AS e SET
        payloads = ARRAY(SELECT CASE WHEN e.keys[i] = $1 THEN 'null'::bytea ELSE e.payloads[i] END
                         FROM generate_subscripts(e.payloads, 1) AS i ORDER BY i),
        headers = CASE WHEN e.headers IS NOT NULL THEN
                  ARRAY(SELECT CASE WHEN e.keys[i] = $1 THEN NULL ELSE e.headers[i] END
                        FROM generate_subscripts(e.headers, 1) AS i ORDER BY i) END,
        keys = ARRAY(SELECT nullif(e.keys[i], $1) FROM generate_subscripts(e.keys, 1) AS i ORDER BY i)
    WHERE $1 = ANY (e.keys) AND NOT {_UNREAD} RETURNING e.id)
SELECT count(*) FROM changed
"""
_DEAD_LETTERS = "DELETE FROM tidemill.dead_letter WHERE key = convert_to($1, 'UTF8') RETURNING 1"
_OUTBOX = "DELETE FROM tidemill.stream_outbox WHERE key = $1 RETURNING 1"

_ENTITY = """t.entity = $1 AND NOT EXISTS (
    SELECT FROM tidemill.monitor_entity AS n WHERE n.monitor = t.monitor AND n.entity = $1 AND n.active)"""
#: What is stored about an entity that no monitor follows now.
_ENTITIES = (
    f"DELETE FROM tidemill.monitor_event AS t WHERE {_ENTITY} RETURNING 1",
    f"DELETE FROM tidemill.monitor_checkpoint AS t WHERE {_ENTITY} RETURNING 1",
    f"DELETE FROM tidemill.monitor_rebuild AS t WHERE {_ENTITY} RETURNING 1",
    f"DELETE FROM tidemill.monitor_problem AS t WHERE {_ENTITY} RETURNING 1",
    f"""WITH gone AS (DELETE FROM tidemill.alert AS t WHERE {_ENTITY} RETURNING id),
entries AS (DELETE FROM tidemill.alert_history WHERE alert IN (SELECT id FROM gone)),
notices AS (DELETE FROM tidemill.alert_notice WHERE alert IN (SELECT id FROM gone)) SELECT 1 FROM gone""",
    "DELETE FROM tidemill.monitor_entity WHERE entity = $1 AND NOT active RETURNING 1",
)

# A path with the entity as one of its parts, with or without an ending.
_PATH = r"path ~ ('(^|/)' || regexp_replace($1, '([^[:alnum:]])', '\\\1', 'g') || '(\.[^/]*)?(/|$)')"
_HANDED_OVER = f"""
DELETE FROM tidemill.stream_handed_over WHERE message_id = $1 OR (kind = 'state' AND {_PATH.replace("path", "id", 1)})
"""
_PIPELINES = "SELECT DISTINCT pipeline FROM tidemill.state WHERE entity = $1"
#: The states of an entity that are kept in the database, and what is known of its builds.
_STATES = (
    f"DELETE FROM tidemill.state_blob WHERE store IN ({_PIPELINES}) AND {_PATH} RETURNING 1",
    f"DELETE FROM tidemill.state_origin WHERE pipeline IN ({_PIPELINES}) AND {_PATH} RETURNING 1",
    "DELETE FROM tidemill.state_failure WHERE entity = $1 RETURNING 1",
    "DELETE FROM tidemill.state_build WHERE entity = $1 RETURNING 1",
    "DELETE FROM tidemill.state_content WHERE entity = $1 RETURNING 1",
)
_FILES = f"""
SELECT count(*) FROM tidemill.state_file AS f WHERE pipeline IN ({_PIPELINES}) AND {_PATH}
  AND NOT EXISTS (SELECT FROM tidemill.state_blob AS b WHERE b.store = f.pipeline AND b.path = f.path)
"""
_STATE_ROWS = "DELETE FROM tidemill.state WHERE entity = $1 RETURNING 1"

#: What is left, because unfinished work needs it or because it is not in the database.
_LEFT = {
    "jobs": """
SELECT count(*) FROM tidemill.job WHERE unique_key = $1 OR concurrency_key = $1 OR $2 = ANY (tags)
   OR run_id IN (SELECT id FROM tidemill.run WHERE key = $1)""",
    "runs": f"SELECT count(*) FROM tidemill.run WHERE key = $1 AND state IN {LIVE} AND $2::text IS NULL",
    "messages": f"""
SELECT count(*) FROM tidemill.event_log AS e WHERE $1 = ANY (keys) AND {_UNREAD} AND $2::text IS NULL""",
    "retries": "SELECT count(*) FROM tidemill.stream_retry WHERE key = convert_to($1, 'UTF8') AND $2::text IS NULL",
    "entities": "SELECT count(*) FROM tidemill.monitor_entity WHERE entity = $1 AND active AND $2::text IS NULL",
}


async def forget(tx: Transaction, *, key: str | None, tag: str | None) -> tuple[dict[str, int], dict[str, int]]:
    """Delete what is stored under a key or tag; returns how much of each was deleted, and how much is left."""
    left = {name: await tx.fetchval(statement, key, tag) for name, statement in _LEFT.items()}
    removed: dict[str, int] = {}
    runs: list[int] = []
    if key is not None:
        row = await tx.fetchrow(_RUNS, key)
        if row is not None:
            runs = row["ids"]
            removed |= {"runs": len(runs), "journal": row["ticks"], "published": row["shown"], "logs": row["logs"]}
    jobs = [row["id"] for row in await tx.fetch(_JOBS, key, tag, runs)]
    removed["jobs"] = len(jobs)
    removed["logs"] = removed.get("logs", 0) + len(await tx.fetch(_JOB_LOGS, jobs))
    names = [str(each) for each in jobs], [f"r{each}" for each in runs]
    removed["audit"] = len(await tx.fetch(_AUDIT, *names, tx.database.application))
    if key is not None:
        await tx.fetch(_WINDOWS, key)
        await tx.fetch(_LIMITS, key)
        await tx.fetch(_HANDED_OVER, key)
        removed["messages"] = await tx.fetchval(_MESSAGES, key)
        removed["dead letters"] = len(await tx.fetch(_DEAD_LETTERS, key))
        removed["items for sinks"] = len(await tx.fetch(_OUTBOX, key))
        removed["entities"] = sum([len(await tx.fetch(each, key)) for each in _ENTITIES])
        left["files"] = await tx.fetchval(_FILES, key)
        removed["states"] = sum([len(await tx.fetch(each, key)) for each in _STATES])
        if not left["files"]:  # A pipeline that finds its file without its row would take it for a new one.
            removed["states"] += len(await tx.fetch(_STATE_ROWS, key))
    return _some(removed), _some(left)


def _some(counts: dict[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}
