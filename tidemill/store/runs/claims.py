"""Ownership of runs under a lease: claiming, loading what is claimed, waking, and releasing.

An owner is a worker incarnation. It writes what happens to its runs in turns: see `turns`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import asyncpg

from tidemill.core.blame import ALONE
from tidemill.store.database import Database, Executor

#: Notifies owners that a run was started or has something in its inbox.
RUNS_CHANNEL = "runs"


# A run of another version of its workflow, begun or not, is left to an owner with that version while there is one.
_OWN_VERSION = """(version = coalesce(($4::text[])[array_position($2, kind)], version) OR NOT EXISTS (
          SELECT FROM tidemill.worker AS w WHERE w.ended_at IS NULL AND w.lease_until > now()
          AND w.versions ->> ('run ' || r.kind) = r.version))"""

# A run that has not begun by its deadline never begins: maintenance ends it.
_IN_TIME = "(deadline > now() OR seq > 0) IS NOT FALSE"

# The order in which runs are claimed: the index of runs without an owner has it too.
_URGENT_FIRST = "coalesce(priority, 5::smallint) DESC, id"

# What arrives after the claim is announced, and so read later.
_HAS_MAIL = "EXISTS (SELECT FROM tidemill.inbox AS i WHERE i.run_id = {0}.id) AS has_mail"

#: Claims runs without an owner that have something to do, except the first claim of limited kinds ($5). What has held
#: them up before is over.
CLAIM_RUNS = f"""
UPDATE tidemill.run AS r SET owner = $1, turn = 0, note = NULL WHERE id = ANY (ARRAY(
    SELECT id FROM tidemill.run AS r
    WHERE state = 'running' AND owner IS NULL AND awake AND kind = ANY ($2) AND suspicions = $6
      AND (seq > 0 OR kind <> ALL ($5)) AND {_IN_TIME}
      AND {_OWN_VERSION}
    ORDER BY {_URGENT_FIRST} LIMIT $3 FOR UPDATE SKIP LOCKED))
  AND EXISTS (SELECT FROM tidemill.worker WHERE id = $1 AND ended_at IS NULL)
RETURNING id, kind, version, seq, input, losses, origin, priority, {_HAS_MAIL.format("r")}
"""


#: How often the least suspected run of these kinds is suspected that waits for an owner.
FIND_SUSPECTS = """
SELECT suspicions FROM tidemill.run
WHERE suspicions > 0 AND state = 'running' AND owner IS NULL AND awake AND kind = ANY ($1)
ORDER BY suspicions LIMIT 1
"""


#: Serialises the first claims of limited kinds, so that two owners do not use the same slot.
LOCK_SLOTS = "SELECT pg_advisory_xact_lock(hashtext('tidemill.run_slot'))"


#: Frees the slots of runs that have ended or need attention, or whose owner was lost before they began.
FREE_SLOTS = """
DELETE FROM tidemill.run_slot AS s WHERE NOT EXISTS (
    SELECT FROM tidemill.run AS r
    WHERE r.id = s.run_id AND r.state = 'running' AND (r.seq > 0 OR r.owner IS NOT NULL))
"""


#: Claims new runs of limited kinds, the most urgent and then the oldest first, while their kind has free slots. A run
#: keeps its slot until it ends.
CLAIM_LIMITED = f"""
WITH room AS MATERIALIZED (
    SELECT k.kind, k.most - (SELECT count(*) FROM tidemill.run_slot AS s WHERE s.kind = k.kind) AS free
    FROM unnest($2::text[], $5::int[]) AS k(kind, most)),
picked AS MATERIALIZED (
    SELECT r.id, r.kind FROM room CROSS JOIN LATERAL (
        SELECT id, kind FROM tidemill.run AS r
        WHERE state = 'running' AND owner IS NULL AND awake AND kind = room.kind AND seq = 0 AND {_IN_TIME}
          AND {_OWN_VERSION}
        ORDER BY {_URGENT_FIRST} LIMIT greatest(room.free, 0) FOR UPDATE SKIP LOCKED) AS r
    WHERE EXISTS (SELECT FROM tidemill.worker WHERE id = $1 AND ended_at IS NULL)
    LIMIT $3),
slots AS (INSERT INTO tidemill.run_slot (run_id, kind) SELECT id, kind FROM picked ON CONFLICT DO NOTHING)
UPDATE tidemill.run AS r SET owner = $1, turn = 0 FROM picked WHERE r.id = picked.id
RETURNING r.id, r.kind, r.version, r.seq, r.input, r.losses, r.origin, r.priority, {_HAS_MAIL.format("r")}
"""


#: Runs of this owner that it does not know of: the response to a claim or a start was lost.
OWN_RUNS = """
SELECT id, kind, version, seq, input, losses, origin, priority, true AS has_mail FROM tidemill.run
WHERE owner = $1 AND state = 'running' AND id <> ALL ($2::bigint[]) ORDER BY id LIMIT $3
"""


#: Wakes runs that did not match the code when they were last tried.
RESUME_RUNS = """
UPDATE tidemill.run SET state = 'running', awake = true, note = NULL WHERE state = 'needs_attention' AND kind = ANY ($1)
RETURNING id
"""


#: Makes messages due again that were suspended while their runs needed attention. Not part of `RESUME_RUNS`, which
#: would not see messages suspended while it waited for a run's lock.
RELEASE_SUSPENDED = "UPDATE tidemill.inbox SET suspended = false WHERE suspended AND run_id = ANY ($1)"


#: The snapshots and ticks that claimed runs are resumed from.
LOAD_SNAPSHOTS = "SELECT run_id, seq, data FROM tidemill.snapshot WHERE run_id = ANY ($1)"


LOAD_TICKS = """
SELECT t.run_id, t.seq, t.data FROM tidemill.tick AS t
LEFT JOIN tidemill.snapshot AS s ON s.run_id = t.run_id
WHERE t.run_id = ANY ($1) AND t.seq > coalesce(s.seq, 0) ORDER BY t.run_id, t.seq
"""


#: Both, as of one moment: a snapshot that is stored between two statements would hide the ticks before it.
LOAD_JOURNALS = f"""
SELECT run_id, seq, data, true AS is_snapshot FROM ({LOAD_SNAPSHOTS}) AS s
UNION ALL
SELECT run_id, seq, data, false FROM ({LOAD_TICKS}) AS t
ORDER BY run_id, seq
"""


#: Wakes sleeping runs with something due, deletes messages for ended runs, and suspends those for runs that need
#: attention. Also returns the seconds until the next timer, and whether a run waits for its rate: see `rates`.
WAKE_RUNS = """
WITH due AS MATERIALIZED (SELECT DISTINCT run_id FROM tidemill.inbox WHERE due_at <= now() AND NOT suspended),
woken AS (
    UPDATE tidemill.run SET awake = true WHERE id = ANY (ARRAY(
        SELECT id FROM tidemill.run
        WHERE id = ANY (ARRAY(SELECT run_id FROM due)) AND state = 'running' AND owner IS NULL AND NOT awake
          AND start_at IS NULL
        ORDER BY id FOR UPDATE SKIP LOCKED))
    RETURNING id),
begun AS (
    UPDATE tidemill.run SET awake = true, start_at = NULL WHERE id = ANY (ARRAY(
        SELECT id FROM tidemill.run WHERE start_at <= now() AND rate_key IS NULL ORDER BY id FOR UPDATE SKIP LOCKED))
    RETURNING id),
gone AS (
    DELETE FROM tidemill.inbox WHERE run_id = ANY (ARRAY(
        SELECT id FROM tidemill.run
        WHERE id = ANY (ARRAY(SELECT run_id FROM due)) AND state NOT IN ('running', 'needs_attention')))),
kept AS (
    UPDATE tidemill.inbox SET suspended = true WHERE due_at <= now() AND NOT suspended AND run_id = ANY (ARRAY(
        SELECT id FROM tidemill.run
        WHERE id = ANY (ARRAY(SELECT run_id FROM due)) AND state = 'needs_attention'
        ORDER BY id FOR UPDATE SKIP LOCKED)))
SELECT count(*) AS n, CASE WHEN count(*) > 0 THEN pg_notify('tidemill_runs', '') END,
       extract(epoch FROM least(
           (SELECT min(due_at) FROM tidemill.inbox WHERE due_at > now() AND NOT suspended),
           (SELECT min(start_at) FROM tidemill.run WHERE start_at > now())) - now())::float8 AS next,
       EXISTS (SELECT FROM tidemill.run WHERE rate_key IS NOT NULL AND start_at <= now() AND state = 'running') AS rated
FROM (SELECT FROM woken UNION ALL SELECT FROM begun) AS ready
"""


#: The kind of all runs of dags; the kind of a flow's run is its workflow's name.
DAG_KIND = ":dag"


#: Releases the runs of owners that have ended. Those of a lost owner become suspects, if their steps may have run in
#: its process. If it held only one of them, that is a loss, and the run is suspected `$1` times: it runs alone.
FREE_RUNS = f"""
WITH gone AS MATERIALIZED (
    SELECT r.id, r.owner, r.seq > 0 AND r.kind <> '{DAG_KIND}' AND (
        SELECT w.status = 'lost' FROM tidemill.worker AS w WHERE w.id = r.owner) AS suspect
    FROM tidemill.run AS r
    WHERE owner IS NOT NULL AND owner = ANY (ARRAY(SELECT id FROM tidemill.worker WHERE ended_at IS NOT NULL))
    ORDER BY r.id FOR UPDATE SKIP LOCKED),
held AS MATERIALIZED (SELECT owner, count(*) FILTER (WHERE suspect) AS suspects FROM gone GROUP BY owner),
freed AS (
    UPDATE tidemill.run AS r SET owner = NULL, awake = true,
        losses = least(r.losses + (gone.suspect AND held.suspects = 1)::int, 32767),
        suspicions = CASE WHEN NOT gone.suspect THEN r.suspicions WHEN held.suspects = 1 THEN greatest(r.suspicions, $1)
                          ELSE least(r.suspicions + 1, 32767) END
    FROM gone JOIN held USING (owner) WHERE r.id = gone.id
    RETURNING r.id, r.suspicions)
SELECT count(*) AS n, CASE WHEN count(*) > 0 THEN pg_notify('tidemill_runs', '') END,
       CASE WHEN max(suspicions) > 0 THEN pg_notify('tidemill_runs', 'suspects') END FROM freed
"""


#: Notifies owners that there are runs to claim.
NOTIFY_OWNERS = "SELECT pg_notify('tidemill_runs', '')"


async def claim_runs(
    database: Database,
    owner: int,
    kinds: Sequence[str],
    versions: Sequence[str | None],
    room: int,
    limits: Sequence[int | None],
    suspicions: int = 0,
) -> list[Any]:
    """Claim runs of these kinds; of a kind with a limit, no more are begun and not ended than that.

    Suspects are claimed only together with others that are suspected as often.
    """
    limited = {kind: most for kind, most in zip(kinds, limits, strict=True) if most is not None}
    given = (owner, list(kinds), room, list(versions), list(limited), suspicions)
    rows = await database.fetch(CLAIM_RUNS, *given, patience=None)
    if not limited or len(rows) >= room or suspicions:
        return rows

    async def together(connection: Executor) -> list[asyncpg.Record]:
        async with connection.transaction():
            await connection.execute(database.sql(LOCK_SLOTS))
            await connection.execute(database.sql(FREE_SLOTS))
            own = [version for kind, version in zip(kinds, versions, strict=True) if kind in limited]
            given = (owner, list(limited), room - len(rows), own, list(limited.values()))
            return await connection.fetch(database.sql(CLAIM_LIMITED), *given)

    return rows + await database.run(together, patience=None)


async def free_runs(database: Database, *, patience: float | None = None) -> int:
    """Release the runs of owners that have ended; returns how many."""
    row = await database.fetchrow(FREE_RUNS, ALONE, patience=patience)
    return row["n"] if row else 0


async def resume_runs(database: Database, kinds: Sequence[str]) -> None:
    """Resume runs of these kinds that needed attention, with all messages suspended meanwhile."""

    async def together(connection: Executor) -> None:
        async with connection.transaction():
            rows = await connection.fetch(database.sql(RESUME_RUNS), list(kinds))
            await connection.execute(database.sql(RELEASE_SUSPENDED), [row["id"] for row in rows])

    await database.run(together, patience=None)
