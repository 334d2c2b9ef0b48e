"""Leases of states: which builder builds a state now, so that no other does.

A lease is held for a job, as long as a live worker runs it, or by a session that has taken an advisory lock: it ends
with the session's connection, or when the builder has been silent for long.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import asyncpg
import msgspec

from tidemill.store.database import Connection, Database, columns

#: Seconds after which the leases of a builder that has not renewed them lapse.
LAPSE = 60.0


_ID = re.compile(r"s([0-9a-f]{1,16})|j([0-9]{1,18})")


class LeaseHolder(msgspec.Struct, frozen=True):
    """The holder of leases: a session by its lock, or a job."""

    builder: str
    lock: int | None = None
    job: int | None = None

    @property
    def id(self) -> str:
        """A short name, unique in a database; `list_alive` knows it."""
        return f"s{self.lock:x}" if self.lock is not None else f"j{self.job}"


class Wanted(msgspec.Struct, frozen=True):
    """A state to lease: the version that it was planned on, and the key of its inputs."""

    entity: str
    version: int
    inputs: str


class Leased(msgspec.Struct):
    """The states that were leased, and those that could not be.

    `elsewhere` are those of other builders, `outdated` those that were built, have failed or changed since they were
    planned. `intents` are results of dead builders, by entity: (content, code, inputs, size). Of a paused stage nothing
    is leased.
    """

    granted: set[str]
    elsewhere: set[str]
    outdated: set[str]
    intents: dict[str, tuple[str, str, str, int]]
    is_paused: bool = False


#: Locks that sessions hold now, as `lock_session` takes them.
SESSIONS = """
SELECT (classid::bigint << 32) | objid::bigint AS lock FROM pg_locks
WHERE locktype = 'advisory' AND objsubid = 1 AND granted
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
#: Jobs that live workers run. One of a dead worker keeps its state until maintenance, if there is any, takes it back.
RUNNING_JOBS = """
SELECT j.id FROM tidemill.job AS j JOIN tidemill.worker AS w ON w.id = j.worker_id
WHERE j.state = 'running' AND w.ended_at IS NULL AND w.lease_until > now()
"""
#: Whether the lease of row `b` holds.
HOLDS = f"""(CASE WHEN b.job IS NOT NULL
      THEN EXISTS ({RUNNING_JOBS} AND j.id = b.job)
      ELSE b.lock IN (SELECT lock FROM sessions) AND b.seen_at > now() - make_interval(secs => {{lapse}}) END)"""

LOCK_SESSION = "SELECT pg_advisory_lock($1::bigint)"

#: Whether an operator has paused a stage or its pipeline.
IS_PAUSED = """EXISTS (
  SELECT FROM tidemill.state_control WHERE pipeline = $1 AND stage IN ('', $2) AND paused_by IS NOT NULL
)"""
#: Leases states that no other builder has a lease of, unless their stage is paused. The order is that of all
#: statements, so that none deadlock.
#: A lease taken since the statement began holds: the statement may not see yet that its job or session is alive.
TAKE_LEASES = f"""
WITH sessions AS MATERIALIZED ({SESSIONS})
INSERT INTO tidemill.state_building AS b (pipeline, stage, entity, builder, lock, job)
SELECT $1, $2, entity, $3, $4, $5 FROM unnest($6::text[]) AS new (entity) WHERE NOT {IS_PAUSED} ORDER BY entity
ON CONFLICT (pipeline, stage, entity) DO UPDATE
    SET builder = excluded.builder, lock = excluded.lock, job = excluded.job, began_at = now(), seen_at = now()
    WHERE (b.lock = $4 OR b.job = $5) IS TRUE
       OR b.seen_at <= statement_timestamp() AND NOT {HOLDS.format(lapse="$7")}
RETURNING entity
"""
#: Leased states, and their failures with this code that are not due: read after the leases were taken, they stay so.
READ_LEASED = """
SELECT entity, version, intent_content, intent_code, intent_inputs, intent_size, NULL::text AS failed_inputs
FROM tidemill.state WHERE pipeline = $1 AND stage = $2 AND entity = ANY ($4::text[])
UNION ALL
SELECT entity, NULL, NULL, NULL, NULL, NULL, inputs FROM tidemill.state_failure
WHERE pipeline = $1 AND stage = $2 AND code = $3 AND entity = ANY ($4::text[])
  AND (retry_at IS NULL OR retry_at > now() + interval '1 second')
"""
#: The states among these that were built or changed since they were planned.
FIND_CHANGED = """
SELECT new.entity FROM unnest($3::text[], $4::bigint[]) AS new (entity, version)
JOIN tidemill.state AS s ON s.pipeline = $1 AND s.stage = $2 AND s.entity = new.entity AND s.version <> new.version
"""
RELEASE = """
DELETE FROM tidemill.state_building AS b
WHERE b.pipeline = $1 AND b.stage = $2 AND b.entity = ANY ($3::text[]) AND (b.lock = $4 OR b.job = $5)
"""
RELEASE_ALL = "DELETE FROM tidemill.state_building WHERE lock = $1"
RENEW = "UPDATE tidemill.state_building SET seen_at = now() WHERE lock = $1"

#: The leases of a pipeline that hold.
LIST_LEASES = f"""
WITH sessions AS MATERIALIZED ({SESSIONS})
SELECT b.stage, b.entity, b.builder, b.job, b.began_at, b.lock FROM tidemill.state_building AS b
WHERE b.pipeline = $1 AND {HOLDS.format(lapse="$2")}
"""
#: Which of these sessions and jobs are alive.
LIST_ALIVE = f"""
SELECT 'lock' AS kind, lock AS number FROM ({SESSIONS}) AS sessions WHERE lock = ANY ($1::bigint[])
UNION ALL SELECT 'job', id FROM ({RUNNING_JOBS} AND j.id = ANY ($2::bigint[])) AS jobs
"""


async def lock_session(connection: Connection, lock: int) -> None:
    """Take the lock of a session until its connection closes."""
    await connection.execute(LOCK_SESSION, lock)


async def take_leases(
    database: Database, pipeline: str, stage: str, code: str, holder: LeaseHolder, states: Sequence[Wanted]
) -> Leased:
    """Lease the states that are free and still as they were planned."""
    entities = [each.entity for each in states]
    rows = await database.fetch(TAKE_LEASES, pipeline, stage, holder.builder, holder.lock, holder.job, entities, LAPSE)
    taken = [row["entity"] for row in rows]
    if not taken and await database.fetch(f"SELECT WHERE {IS_PAUSED}", pipeline, stage):
        return Leased(set(), set(), set(), {}, is_paused=True)
    planned = {each.entity: each for each in states}
    # A statement of its own, after the leases were taken: what it reads stays so.
    found = await database.fetch(READ_LEASED, pipeline, stage, code, taken) if taken else []
    versions = {row["entity"]: row["version"] for row in found if row["failed_inputs"] is None}
    # A state whose version differs was built or changed meanwhile; one with these inputs may have failed meanwhile.
    outdated = {entity for entity in taken if versions.get(entity, 0) != planned[entity].version}
    outdated |= {row["entity"] for row in found if row["failed_inputs"] == planned[row["entity"]].inputs}
    if outdated:
        await database.fetch(RELEASE, pipeline, stage, sorted(outdated), holder.lock, holder.job)
    intents = {
        row["entity"]: (row["intent_content"], row["intent_code"], row["intent_inputs"], row["intent_size"])
        for row in found
        if row["intent_content"] is not None and row["entity"] not in outdated
    }
    return Leased(set(taken) - outdated, set(entities).difference(taken), outdated, intents)


async def find_changed(database: Database, pipeline: str, stage: str, states: Iterable[tuple[str, int]]) -> set[str]:
    """The states among these, (entity, version) each, that were built or changed since they were planned."""
    rows = await database.fetch(FIND_CHANGED, pipeline, stage, *columns(list(states), 2))
    return {row["entity"] for row in rows}


async def release_leases(
    database: Database, pipeline: str, stage: str, holder: LeaseHolder, entities: Iterable[str]
) -> None:
    """Give up the leases of states that are not built."""
    await database.fetch(RELEASE, pipeline, stage, sorted(entities), holder.lock, holder.job)


async def release_all_leases(database: Database, lock: int) -> None:
    """Give up all leases of a session."""
    await database.fetch(RELEASE_ALL, lock)


async def renew_leases(database: Database, lock: int) -> None:
    """Renew the leases of a session."""
    await database.fetch(RENEW, lock)


async def list_leases(database: Database, pipeline: str) -> list[asyncpg.Record]:
    """The states that are being built, by whom and since when."""
    return await database.fetch(LIST_LEASES, pipeline, LAPSE)


async def list_alive(database: Database, ids: Iterable[str]) -> set[str]:
    """The holders among these that are alive, by their ids."""
    known = [found for found in map(_ID.fullmatch, ids) if found is not None]
    locks, jobs = [int(each[1], 16) for each in known if each[1]], [int(each[2]) for each in known if each[2]]
    rows = await database.fetch(LIST_ALIVE, locks, jobs)
    return {LeaseHolder("", **{row["kind"]: row["number"]}).id for row in rows}
