"""Versions of workflows: their definitions, how many runs each drives, and runs that are moved to another one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from tidemill.store.database import Database
from tidemill.store.runs.claims import LOAD_JOURNALS, RELEASE_SUSPENDED
from tidemill.store.runs.runs import LIVE_RUN_STATES
from tidemill.store.transaction import Transaction

#: The definition of a version of a workflow, by kind and version.
Definitions = dict[tuple[str, str], bytes]

#: Stores the definitions of versions that are not known yet.
DECLARE_VERSIONS = """
INSERT INTO tidemill.flow_version (kind, version, definition)
SELECT * FROM unnest($1::text[], $2::text[], $3::json[]) AS v(kind, version, definition)
ON CONFLICT DO NOTHING
"""

#: The definitions of these versions.
READ_VERSIONS = """
SELECT v.kind, v.version, v.definition FROM tidemill.flow_version AS v
JOIN unnest($1::text[], $2::text[]) AS w(kind, version) ON w.kind = v.kind AND w.version = v.version
"""

#: The definitions of all versions of a workflow.
FLOW_VERSIONS = "SELECT version, definition FROM tidemill.flow_version WHERE kind = $1"

#: How many unfinished runs of a workflow each version has, the newest version first.
COUNT_VERSIONS = """
SELECT r.version, count(*) AS runs, count(*) FILTER (WHERE r.state = 'needs_attention') AS needs_attention,
       min(v.created_at) AS since,
       EXISTS (SELECT FROM tidemill.worker AS w WHERE w.ended_at IS NULL AND w.lease_until > now()
               AND w.versions ->> ('run ' || $1) = r.version) AS alive
FROM tidemill.run AS r LEFT JOIN tidemill.flow_version AS v ON v.kind = $1 AND v.version = r.version
WHERE r.kind = $1 AND r.state = ANY ($2) GROUP BY r.version ORDER BY min(v.created_at) DESC NULLS LAST, r.version
"""

#: Unfinished runs after an id, in order; of one workflow or version, or of all.
LIVE_RUNS = """
SELECT id, kind, workflow, version, seq, state, owner, input FROM tidemill.run
WHERE state = ANY ($1) AND id > $2 AND ($3::text IS NULL OR workflow = $3) AND ($4::text IS NULL OR version = $4)
  AND ($5::text IS NULL OR kind = $5) AND ($6::text IS NULL OR kind <> $6)
ORDER BY id LIMIT $7
"""

#: Locks a run that no run worker owns.
HOLD_RUN = """
SELECT id, kind, version, seq, state, owner FROM tidemill.run
WHERE id = $1 AND state = ANY ($2) AND owner IS NULL FOR UPDATE SKIP LOCKED
"""

#: Appends a tick to a run that no run worker owns and gives the run another version.
MIGRATE_RUN = """
WITH held AS (
    UPDATE tidemill.run SET state = 'running', awake = true, note = NULL, seq = seq + 1, version = $3
    WHERE id = $1 AND owner IS NULL RETURNING id, seq)
INSERT INTO tidemill.tick (run_id, seq, data) SELECT id, seq, $2::json FROM held
RETURNING pg_notify('tidemill_runs', '')
"""

#: Gives a run that no run worker owns another version, and wakes it.
RETAG_RUN = """
UPDATE tidemill.run SET state = 'running', awake = true, note = NULL, version = $2
WHERE id = $1 AND owner IS NULL RETURNING pg_notify('tidemill_runs', '')
"""

#: Gives the questions of a run to people other names.
RENAME_INPUTS = """
UPDATE tidemill.run_input AS i SET node = n.now FROM unnest($2::text[], $3::text[]) AS n(before, now)
WHERE i.run_id = $1 AND i.node = n.before
"""


async def declare_versions(database: Database, versions: Mapping[str, tuple[str, bytes]]) -> None:
    """Store the definition of the version of each kind."""
    rows = [(kind, version, data) for kind, (version, data) in versions.items()]
    await database.fetch(DECLARE_VERSIONS, *(list(column) for column in zip(*rows, strict=True)), patience=None)


async def read_definitions(at: Database | Transaction, wanted: Iterable[tuple[str, str]]) -> Definitions:
    """The definitions of these kinds and versions, as far as they are known."""
    kinds, versions = [], []
    for kind, version in wanted:
        kinds.append(kind)
        versions.append(version)
    rows = await at.fetch(READ_VERSIONS, kinds, versions) if kinds else []
    return {(row["kind"], row["version"]): row["definition"] for row in rows}


async def flow_definitions(at: Database | Transaction, kind: str) -> dict[str, bytes]:
    """The definitions of all versions of a workflow."""
    return {row["version"]: row["definition"] for row in await at.fetch(FLOW_VERSIONS, kind)}


async def count_versions(database: Database, kind: str) -> list[Any]:
    """How many unfinished runs of a workflow each version has."""
    return await database.fetch(COUNT_VERSIONS, kind, list(LIVE_RUN_STATES))


async def live_runs(
    at: Database | Transaction,
    *,
    after: int,
    limit: int,
    workflow: str | None = None,
    version: str | None = None,
    kind: str | None = None,
    but: str | None = None,
) -> list[Any]:
    """Unfinished runs after an id: of a kind, or of all kinds but one."""
    return await at.fetch(LIVE_RUNS, list(LIVE_RUN_STATES), after, workflow, version, kind, but, limit)


async def load_journals(
    fetch: Callable[..., Awaitable[list[Any]]], numbers: Sequence[int]
) -> tuple[dict[int, bytes], dict[int, list[bytes]]]:
    """The newest snapshot of each run, and the ticks after it; `fetch` runs a statement."""
    snapshots: dict[int, bytes] = {}
    ticks: dict[int, list[bytes]] = {}
    for row in await fetch(LOAD_JOURNALS, list(numbers)):
        if row["is_snapshot"]:
            snapshots[row["run_id"]] = row["data"]
        else:
            ticks.setdefault(row["run_id"], []).append(row["data"])
    return snapshots, ticks


async def hold_run(tx: Transaction, number: int) -> Any | None:
    """Lock an unfinished run that no run worker owns; None if one does, or it has ended."""
    rows = await tx.fetch(HOLD_RUN, number, list(LIVE_RUN_STATES))
    return rows[0] if rows else None


async def move_run(
    tx: Transaction, number: int, tick: bytes | None, version: str, renamed: Sequence[tuple[str, str]]
) -> None:
    """Give a run that this transaction holds another version, with the tick of its migration, and wake it."""
    if tick is None:
        await tx.fetch(RETAG_RUN, number, version)
    else:
        await tx.fetch(MIGRATE_RUN, number, tick, version)
    await tx.fetch(RELEASE_SUSPENDED, [number])
    if renamed:
        await tx.fetch(RENAME_INPUTS, number, [before for before, _ in renamed], [now for _, now in renamed])
