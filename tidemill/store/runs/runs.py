"""Runs in the database: starting, forking, reading and deleting them."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import asyncpg

from tidemill.core.errors import NotFoundError
from tidemill.core.jobs.job import check_key
from tidemill.store.connection.caller_connection import Statements
from tidemill.store.database import Database, columns
from tidemill.store.runs.claims import LOAD_SNAPSHOTS, LOAD_TICKS
from tidemill.store.runs.run_turn import MOMENT, NewRun
from tidemill.store.runs.sealing import seal_run_tick
from tidemill.store.transaction import Transaction

#: Keys with this prefix are internal; users cannot choose them.
OWN_KEY = "~"

#: Runs in these states have not ended.
LIVE_RUN_STATES = ("running", "needs_attention")

#: Stores a new run with its input; if the key is taken, returns the run that has it.
START_RUN = """
WITH made AS (
    INSERT INTO tidemill.run (workflow, version, key, input, origin, owner, parent, parent_work, kind, tags, start_at,
                              awake, priority, deadline, rate_key, key_rate, key_burst)
    SELECT $1::text, $2::text, $3::text, $4::text::json, $5::text::json, $6::bigint, $7::bigint, $8::bigint, $9::text,
           $10::text[], start_at, start_at IS NULL, $13::int,
           coalesce(to_timestamp($14::float8), now() + make_interval(secs => $15::float8)), $16::text,
           CASE WHEN $16::text IS NOT NULL THEN $17::float8 END, CASE WHEN $16::text IS NOT NULL THEN $18::float8 END
    FROM (SELECT coalesce(to_timestamp($11::float8), now() + make_interval(secs => $12::float8),
                          CASE WHEN $16::text IS NOT NULL THEN now() END) AS start_at) AS later
    ON CONFLICT (workflow, key) WHERE key IS NOT NULL DO NOTHING
    RETURNING id, awake),
news AS (
    SELECT pg_notify('tidemill_runs', CASE WHEN awake THEN '' ELSE 'wake' END) FROM made WHERE $6::bigint IS NULL)
SELECT id, true AS created, (SELECT count(*) FROM news) FROM made
UNION ALL
SELECT id, false, 0 FROM tidemill.run WHERE workflow = $1::text AND key = $3::text AND NOT EXISTS (SELECT FROM made)
"""

#: Deletes a batch of runs that ended long ago, with all their rows.
FORGET_RUNS = """
WITH old AS MATERIALIZED (
    SELECT id FROM tidemill.run WHERE ended_at < now() - make_interval(days => $1) ORDER BY ended_at LIMIT 500
    FOR UPDATE SKIP LOCKED),
ticks AS (DELETE FROM tidemill.tick WHERE run_id IN (SELECT id FROM old)),
shown AS (DELETE FROM tidemill.published WHERE run_id IN (SELECT id FROM old)),
waiting AS (DELETE FROM tidemill.inbox WHERE run_id IN (SELECT id FROM old)),
asked AS (DELETE FROM tidemill.run_input WHERE run_id IN (SELECT id FROM old)),
snaps AS (DELETE FROM tidemill.snapshot WHERE run_id IN (SELECT id FROM old))
DELETE FROM tidemill.run WHERE id IN (SELECT id FROM old) RETURNING id
"""

#: Stores a new run that begins after tick `$2` of another, asleep until its timers are set.
FORK_RUN = f"""
WITH made AS (
    INSERT INTO tidemill.run (workflow, kind, version, input, seq, origin, forked_from, awake, priority)
    SELECT workflow, kind, $3, input, $2 + cardinality($5::json[]), $4, id, false, priority
    FROM tidemill.run WHERE id = $1
    RETURNING id),
ticks AS (
    INSERT INTO tidemill.tick (run_id, seq, data)
    SELECT made.id, t.seq, t.data FROM made, tidemill.tick AS t WHERE t.run_id = $1 AND t.seq <= $2),
more AS (
    INSERT INTO tidemill.tick (run_id, seq, data)
    SELECT made.id, $2 + e.ord, e.data FROM made, unnest($5::json[]) WITH ORDINALITY AS e(data, ord)),
timers AS (
    INSERT INTO tidemill.inbox (run_id, timer, due_at)
    SELECT made.id, w.timer, {MOMENT.format("w.due")} FROM made, unnest($6::text[], $7::float8[]) AS w(timer, due))
SELECT id FROM made
"""

#: The questions to people of a new run.
ASK_AGAIN = f"""
INSERT INTO tidemill.run_input (run_id, node, prompt, schema, due_at)
SELECT $1, q.node, q.prompt, q.schema, {MOMENT.format("q.due")}
FROM unnest($2::text[], $3::text[], $4::json[], $5::float8[]) AS q(node, prompt, schema, due)
"""

#: Makes a new run claimable.
WAKE_RUN = "UPDATE tidemill.run SET awake = true WHERE id = $1 RETURNING pg_notify('tidemill_runs', '')"

#: The event classes of the last run workers that can drive a run: of those that are alive, or else of the newest one.
KNOWN_EVENTS = """
SELECT DISTINCT unnest(events) AS name FROM (
    SELECT events, ended_at IS NULL AS lives, row_number() OVER (ORDER BY ended_at IS NULL DESC, id DESC) AS place
    FROM tidemill.worker WHERE events IS NOT NULL AND versions ->> (
        SELECT 'run ' || kind FROM tidemill.run WHERE id = $1) IS NOT NULL) AS w
WHERE lives OR place = 1
"""

#: What must be known of runs in order to cancel them.
FIND_RUNS = "SELECT id, kind, state FROM tidemill.run WHERE id = ANY ($1::bigint[])"

#: One run.
SHOW_RUN = """
SELECT r.*, w.host AS owner_host, w.pid AS owner_pid FROM tidemill.run AS r
LEFT JOIN tidemill.worker AS w ON w.id = r.owner WHERE r.id = $1
"""

READ_ENDS = """
SELECT w.id, r.state, r.result, r.error, r.note FROM unnest($1::bigint[]) AS w(id)
LEFT JOIN tidemill.run AS r ON r.id = w.id WHERE r.state IS DISTINCT FROM 'running'
"""

#: A run's journal, and what it has published, after a number.
READ_TICKS = "SELECT seq, data FROM tidemill.tick WHERE run_id = $1 AND seq > $2 ORDER BY seq LIMIT $3"


def new_token() -> str:
    """A new token by which a sender finds out whether its tick has arrived."""
    return secrets.token_urlsafe(9)


async def start_run(
    at: Database | Transaction,
    *,
    workflow: str,
    version: str,
    input: bytes,
    key: str | None = None,
    origin: bytes | None = None,
    owner: int | None = None,
    parent: tuple[int, int] | None = None,
    kind: str | None = None,
) -> tuple[int, bool]:
    """Store a new run; returns its id, and whether it is new. `parent` is a run and its work item that waits.

    `kind` is what an owner must know in order to drive it: by default the workflow.
    """
    new = NewRun(kind or workflow, workflow, version, input, origin, key)
    return await store_run(at, new, owner=owner, parent=parent)


def repeated(row: Any, *, input: bytes, origin: bytes) -> NewRun:
    """A new run with the options of another one."""
    same = {name: row[name] for name in ("tags", "priority", "rate_key", "key_rate", "key_burst")}
    return NewRun(row["kind"], row["workflow"], row["version"], input, origin, **same)


async def store_run(
    at: Database | Transaction, new: NewRun, *, owner: int | None = None, parent: tuple[int, int] | None = None
) -> tuple[int, bool]:
    """Store a new run; returns its id, and whether it is new. `parent` is a run and its work item that waits."""
    database = at if isinstance(at, Database) else at.database
    statements = start_statements(database, new, owner=owner, parent=parent)
    try:
        statement, params = next(statements)
        while True:
            statement, params = statements.send([tuple(row) for row in await at.fetch(statement, *params)])
    except StopIteration as done:
        return done.value


def start_statements(
    database: Database, new: NewRun, *, owner: int | None = None, parent: tuple[int, int] | None = None
) -> Statements[tuple[int, bool]]:
    """The statements that store a new run, for any driver; they return its id, and whether it is new."""
    if new.key is not None:
        check_key("unique_key", new.key)
    # A start without a key gets an internal one, so that it happens once even if the first response was lost.
    own = None if new.key is not None else OWN_KEY + new_token()
    origin = None if new.origin is None else bytes(new.origin).decode()
    when = (new.at, new.delay, new.priority, new.deadline, new.deadline_in, new.rate_key, new.key_rate, new.key_burst)
    who = (origin, owner, *(parent or (None, None)), new.kind, new.tags, *when)
    given = database.seal(bytes(new.input)).decode()
    while True:
        rows = yield START_RUN, (new.workflow, new.version, own or new.key, given, *who)
        if rows:
            return rows[0][0], rows[0][1] or own is not None
        # The holder of the key was being stored at the same moment: try again.


async def fork_run(
    tx: Transaction,
    source: int,
    *,
    at: int,
    version: str,
    origin: bytes,
    more: Sequence[bytes] = (),
    timers: dict[str, float] | None = None,
    asks: Sequence[tuple[str, str, bytes | None, float | None]] = (),
) -> int:
    """Store a new run with another's first `at` ticks, and `more` after them; returns its id.

    `asks` are its open questions to people, each with its prompt, the schema of the answer and the due time.
    """
    waiting = timers or {}
    ticks = [seal_run_tick(tx.database, tick) for tick in more]
    number = await tx.fetchval(FORK_RUN, source, at, version, origin, ticks, list(waiting), list(waiting.values()))
    if number is None:
        raise NotFoundError(f"there is no run {source}: `tidemill runs` lists them")
    if asks:
        names, prompts, schemas, due = columns(asks, 4)
        await tx.fetch(ASK_AGAIN, number, names, list(map(tx.database.seal_text, prompts)), schemas, due)
    await tx.fetch(WAKE_RUN, number)
    return number


async def forget_runs(database: Database, *, keep_days: int) -> int:
    """Delete a batch of runs that ended more than this many days ago; returns how many. Call it until it returns 0."""
    return len(await database.fetch(FORGET_RUNS, keep_days, patience=None))


async def show_run(database: Database, run_id: int) -> asyncpg.Record:
    """Everything about one run."""
    row = await database.fetchrow(SHOW_RUN, run_id)
    if row is None:
        raise no_such_run(run_id)
    return row


def no_such_run(run_id: int) -> NotFoundError:
    """The error for the number of a run that does not exist."""
    return NotFoundError(f"there is no run {run_id}: `tidemill runs` lists them")


async def read_ends(database: Database, ids: Sequence[int]) -> list[asyncpg.Record]:
    """Id, state, result, error and note of those runs that no longer run; no state if there is no such run."""
    return await database.fetch(READ_ENDS, list(ids))


async def find_runs(database: Database, ids: Sequence[int], *, missing_ok: bool = False) -> list[asyncpg.Record]:
    """Id, kind and state of runs, in the order in which they are named; an error if one does not exist."""
    found = {row["id"]: row for row in await database.fetch(FIND_RUNS, list(ids))}
    if missing_ok:
        return list(found.values())
    if missing := [each for each in ids if each not in found]:
        raise no_such_run(missing[0])
    return [found[each] for each in ids]


async def read_ticks(database: Database, run_id: int, *, after: int = 0, limit: int = 100_000) -> list[Any]:
    """A run's journal from a point on: (seq, data) each."""
    return await database.fetch(READ_TICKS, run_id, after, limit)


async def load_run(database: Database, run_id: int) -> tuple[asyncpg.Record, bytes | None, list[bytes]]:
    """A run, its newest snapshot and the ticks after it: everything that its state is rebuilt from."""
    async with database.transaction(patience=30.0) as connection:
        await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        row = await connection.fetchrow(database.sql(SHOW_RUN), run_id)
        if row is None:
            raise no_such_run(run_id)
        snapshots = await connection.fetch(database.sql(LOAD_SNAPSHOTS), [run_id])
        ticks = await connection.fetch(database.sql(LOAD_TICKS), [run_id])
    return row, snapshots[0]["data"] if snapshots else None, [tick["data"] for tick in ticks]


async def read_snapshot(database: Database, run_id: int) -> tuple[int, bytes] | None:
    """The newest snapshot of a run, with its last tick."""
    rows = await database.fetch(LOAD_SNAPSHOTS, [run_id])
    return (rows[0]["seq"], rows[0]["data"]) if rows else None


async def known_events(at: Database | Transaction, run_id: int) -> list[str]:
    """The event classes that run workers know which can drive a run; empty if there has been none."""
    return [row["name"] for row in await at.fetch(KNOWN_EVENTS, run_id)]
