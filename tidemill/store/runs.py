"""Runs in the database: started in one round trip, owned under a lease, journaled by group commit.

An owner is a worker incarnation. Everything it writes for its runs in one turn goes into one statement, which takes
only what it still owns; the journal's primary key is the fence behind that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import asyncpg
import msgspec

from tidemill.core.errors import NotFoundError
from tidemill.store.database import Connection, Database, columns

#: News for owners: a run was started, or something is on its way to one.
RUNS_CHANNEL = "runs"

#: A new run with its input; a taken key gives the run that has it.
START_RUN = """
WITH made AS (
    INSERT INTO tidemill.run (workflow, version, key, input, origin, owner) VALUES ($1, $2, $3, $4, $5, $6)
    ON CONFLICT (workflow, key) WHERE key IS NOT NULL DO NOTHING
    RETURNING id),
news AS (SELECT pg_notify('tidemill_runs', '') FROM made WHERE $6::bigint IS NULL)
SELECT id, true AS created, (SELECT count(*) FROM news) FROM made
UNION ALL
SELECT id, false, 0 FROM tidemill.run WHERE workflow = $1 AND key = $3 AND NOT EXISTS (SELECT FROM made)
"""

#: Take runs that have something to do and no owner.
CLAIM_RUNS = """
UPDATE tidemill.run SET owner = $1 WHERE id = ANY (ARRAY(
    SELECT id FROM tidemill.run
    WHERE state = 'running' AND owner IS NULL AND awake AND workflow = ANY ($2) ORDER BY id LIMIT $3
    FOR UPDATE SKIP LOCKED))
  AND EXISTS (SELECT FROM tidemill.worker WHERE id = $1 AND ended_at IS NULL)
RETURNING id, workflow, version, seq, input
"""

#: What claimed runs are resumed from.
LOAD_SNAPSHOTS = "SELECT run_id, seq, data FROM tidemill.snapshot WHERE run_id = ANY ($1)"
LOAD_TICKS = """
SELECT t.run_id, t.seq, t.data FROM tidemill.tick AS t
LEFT JOIN tidemill.snapshot AS s ON s.run_id = t.run_id
WHERE t.run_id = ANY ($1) AND t.seq > coalesce(s.seq, 0) ORDER BY t.run_id, t.seq
"""

#: What is due for these runs: ticks from outside and timers.
DUE_INBOX = """
SELECT id, run_id, timer, data FROM tidemill.inbox WHERE run_id = ANY ($1) AND due_at <= now() ORDER BY id LIMIT 5000
"""

#: Seconds until the next timer of these runs.
NEXT_TIMER = "SELECT extract(epoch FROM min(due_at) - now())::float8 FROM tidemill.inbox WHERE run_id = ANY ($1)"

#: Runs that sleep while something is due for them wake up.
WAKE_RUNS = """
WITH due AS (SELECT DISTINCT run_id FROM tidemill.inbox WHERE due_at <= now()),
woken AS (
    UPDATE tidemill.run SET awake = true
    WHERE id IN (SELECT run_id FROM due) AND state = 'running' AND owner IS NULL AND NOT awake RETURNING id)
SELECT count(*) AS n, CASE WHEN count(*) > 0 THEN pg_notify('tidemill_runs', '') END FROM woken
"""

#: One turn of an owner over all its runs: ticks, what they publish, timers set and dropped, inbox rows used up,
#: runs ended, snapshots taken, idle runs let go. Returns the runs that were still its own.
COMMIT_TURN = """
WITH mine AS MATERIALIZED (
    SELECT r.id, w.seq AS last, w.state, w.result, w.error, w.note, w.release
    FROM unnest($2::bigint[], $3::bigint[], $4::text[], $5::json[], $6::json[], $7::text[], $8::boolean[], $9::bigint[])
        AS w(run_id, seq, state, result, error, note, release, before)
    CROSS JOIN LATERAL (
        SELECT id FROM tidemill.run WHERE id = w.run_id AND owner = $1 AND seq = w.before FOR UPDATE) AS r),
ticks AS (
    INSERT INTO tidemill.tick (run_id, seq, data)
    SELECT * FROM unnest($10::bigint[], $11::bigint[], $12::json[]) AS t(run_id, seq, data)
    WHERE (run_id IN (SELECT id FROM mine)) IS TRUE),
shown AS (
    INSERT INTO tidemill.published (run_id, data)
    SELECT * FROM unnest($13::bigint[], $14::json[]) AS p(run_id, data)
    WHERE (run_id IN (SELECT id FROM mine)) IS TRUE),
used AS (
    DELETE FROM tidemill.inbox AS i USING unnest($15::bigint[], $16::bigint[]) AS u(run_id, id)
    WHERE i.id = u.id AND u.run_id IN (SELECT id FROM mine)),
dropped AS (
    DELETE FROM tidemill.inbox AS i USING unnest($17::bigint[], $18::text[]) AS d(run_id, timer)
    WHERE i.run_id = d.run_id AND i.timer = d.timer AND d.run_id IN (SELECT id FROM mine)),
timers AS (
    INSERT INTO tidemill.inbox (run_id, timer, due_at)
    SELECT run_id, timer, to_timestamp(due)
    FROM unnest($19::bigint[], $20::text[], $21::float8[]) AS t(run_id, timer, due)
    WHERE (run_id IN (SELECT id FROM mine)) IS TRUE
    ON CONFLICT (run_id, timer) WHERE timer IS NOT NULL DO UPDATE SET due_at = excluded.due_at),
snaps AS (
    INSERT INTO tidemill.snapshot (run_id, seq, data)
    SELECT * FROM unnest($22::bigint[], $23::bigint[], $24::json[]) AS s(run_id, seq, data)
    WHERE (run_id IN (SELECT id FROM mine)) IS TRUE
    ON CONFLICT (run_id) DO UPDATE SET seq = excluded.seq, data = excluded.data)
UPDATE tidemill.run AS r
SET seq = mine.last, state = coalesce(mine.state, r.state), result = coalesce(mine.result, r.result),
    error = coalesce(mine.error, r.error), note = coalesce(mine.note, r.note),
    ended_at = CASE WHEN mine.state IS NULL OR mine.state = 'parked' THEN r.ended_at ELSE now() END,
    owner = CASE WHEN mine.release OR mine.state IS NOT NULL THEN NULL ELSE r.owner END,
    awake = CASE WHEN mine.release THEN EXISTS (
        SELECT FROM tidemill.inbox AS i WHERE i.run_id = r.id AND i.due_at <= now() AND i.id <> ALL ($16::bigint[]))
        ELSE r.awake END
FROM mine WHERE r.id = mine.id
RETURNING r.id
"""

#: Something for a run from outside; wakes it if it sleeps.
SEND = """
WITH target AS (
    UPDATE tidemill.run SET awake = true WHERE id = $1 AND state IN ('running', 'parked') RETURNING id),
put AS (INSERT INTO tidemill.inbox (run_id, data) SELECT id, $2::json FROM target RETURNING run_id)
SELECT run_id, pg_notify('tidemill_runs', '') FROM put
"""

#: Runs of owners that have ended go to whoever comes.
FREE_RUNS = """
WITH freed AS (
    UPDATE tidemill.run SET owner = NULL, awake = true
    WHERE owner IS NOT NULL AND owner = ANY (ARRAY(SELECT id FROM tidemill.worker WHERE ended_at IS NOT NULL))
    RETURNING id)
SELECT count(*) AS n, CASE WHEN count(*) > 0 THEN pg_notify('tidemill_runs', '') END FROM freed
"""

LIST_RUNS = """
SELECT id, workflow, state, key, seq, owner, awake, note, created_at, ended_at FROM tidemill.run
WHERE ($1::text IS NULL OR state = $1) AND ($2::text IS NULL OR workflow = $2) AND ($3::bigint IS NULL OR id < $3)
ORDER BY id DESC LIMIT $4
"""

SHOW_RUN = """
SELECT r.*, w.host AS owner_host, w.pid AS owner_pid FROM tidemill.run AS r
LEFT JOIN tidemill.worker AS w ON w.id = r.owner WHERE r.id = $1
"""

READ_TICKS = "SELECT seq, data FROM tidemill.tick WHERE run_id = $1 AND seq > $2 ORDER BY seq LIMIT $3"
READ_PUBLISHED = "SELECT seq, at, data FROM tidemill.published WHERE run_id = $1 AND seq > $2 ORDER BY seq LIMIT $3"


class RunTurn(msgspec.Struct):
    """What one run has to write down in one turn. `before` is the last tick that it knows to be stored."""

    run_id: int
    before: int
    last: int
    ticks: list[bytes] = []
    shown: list[bytes] = []
    used: list[int] = []
    timers: dict[str, float | None] = {}
    state: str | None = None
    result: bytes | None = None
    error: bytes | None = None
    note: str | None = None
    snapshot: bytes | None = None
    release: bool = False


async def start_run(
    database: Database,
    *,
    workflow: str,
    version: str,
    input: bytes,
    key: str | None = None,
    origin: bytes | None = None,
    owner: int | None = None,
) -> tuple[int, bool]:
    """Store a new run; returns its id, and whether it is new."""
    rows = await database.fetch(START_RUN, workflow, version, key, input, origin, owner)
    if not rows:  # The holder of the key was being stored at the same moment.
        return await start_run(
            database, workflow=workflow, version=version, input=input, key=key, origin=origin, owner=owner
        )
    return rows[0]["id"], rows[0]["created"]


async def commit_turn(database: Database, connection: Connection, owner: int, turns: Sequence[RunTurn]) -> set[int]:
    """Write down one turn of many runs; returns those that were still the owner's."""
    heads = [(t.run_id, t.last, t.state, t.result, t.error, t.note, t.release, t.before) for t in turns]
    ticks = [(t.run_id, t.before + n, data) for t in turns for n, data in enumerate(t.ticks, 1)]
    set_timers = [(t.run_id, name, due) for t in turns for name, due in t.timers.items() if due is not None]
    rows = await connection.fetch(
        database.sql(COMMIT_TURN),
        owner,
        *columns(heads, 8),
        *columns(ticks, 3),
        *columns([(t.run_id, data) for t in turns for data in t.shown], 2),
        *columns([(t.run_id, number) for t in turns for number in t.used], 2),
        *columns([(t.run_id, name) for t in turns for name, due in t.timers.items() if due is None], 2),
        *columns(set_timers, 3),
        *columns([(t.run_id, t.last, t.snapshot) for t in turns if t.snapshot is not None], 3),
    )
    return {row[0] for row in rows}


async def send_to_run(database: Database, run_id: int, tick: bytes) -> None:
    """Put a tick into a run's inbox; an error if there is no such run, or it has ended."""
    if not await database.fetch(SEND, run_id, tick):
        row = await show_run(database, run_id)
        raise NotFoundError(f"run {run_id} has ended ({row['state']}): it takes nothing more")


async def show_run(database: Database, run_id: int) -> asyncpg.Record:
    """Everything about one run."""
    row = await database.fetchrow(SHOW_RUN, run_id)
    if row is None:
        raise NotFoundError(f"there is no run {run_id}: `tidemill runs` lists them")
    return row


async def list_runs(
    database: Database,
    *,
    state: str | None = None,
    workflow: str | None = None,
    before: int | None = None,
    limit: int = 50,
) -> list[asyncpg.Record]:
    """Runs, newest first."""
    return await database.fetch(LIST_RUNS, state, workflow, before, limit)


async def read_ticks(database: Database, run_id: int, *, after: int = 0, limit: int = 100_000) -> list[Any]:
    """A run's journal from a point on: (seq, data) each."""
    return await database.fetch(READ_TICKS, run_id, after, limit)


async def read_published(database: Database, run_id: int, *, after: int = 0, limit: int = 1000) -> list[Any]:
    """What a run has shown from a point on: (seq, at, data) each."""
    return await database.fetch(READ_PUBLISHED, run_id, after, limit)
