"""Runs in the database: starting, ownership under a lease, sending, listing and retention.

An owner is a worker incarnation. It writes what happens to its runs in turns: see `turns`.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import asyncpg

from tidemill.core.codec import storable
from tidemill.core.errors import NotFoundError
from tidemill.core.job import check_key
from tidemill.store.database import Database, Executor, is_safe_to_retry, is_unavailable
from tidemill.store.jobs.archive import NOTIFY_RUNS
from tidemill.store.runs.turns import ORPHANED, UNWANTED, relatives_sql
from tidemill.store.transaction import Transaction

#: Notifies owners that a run was started or has something in its inbox.
RUNS_CHANNEL = "runs"

#: Keys with this prefix are internal; users cannot choose them.
OWN_KEY = "~"

#: The kind of all runs of dags; the kind of a flow's run is its workflow's name.
DAG_KIND = ":dag"

#: Runs in these states have not ended.
LIVE_RUN_STATES = ("running", "needs_attention")

#: Stores a new run with its input; if the key is taken, returns the run that has it.
START_RUN = """
WITH made AS (
    INSERT INTO tidemill.run (workflow, version, key, input, origin, owner, parent, parent_work, kind)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
    ON CONFLICT (workflow, key) WHERE key IS NOT NULL DO NOTHING
    RETURNING id),
news AS (SELECT pg_notify('tidemill_runs', '') FROM made WHERE $6::bigint IS NULL)
SELECT id, true AS created, (SELECT count(*) FROM news) FROM made
UNION ALL
SELECT id, false, 0 FROM tidemill.run WHERE workflow = $1 AND key = $3 AND NOT EXISTS (SELECT FROM made)
"""

#: Claims runs without an owner that have something to do, except the first claim of limited kinds ($5). A run that was
#: started by another version of its workflow is left to an owner with that version, as long as there is one.
CLAIM_RUNS = """
UPDATE tidemill.run SET owner = $1, turn = 0 WHERE id = ANY (ARRAY(
    SELECT id FROM tidemill.run AS r
    WHERE state = 'running' AND owner IS NULL AND awake AND kind = ANY ($2)
      AND (seq > 0 OR kind <> ALL ($5))
      AND (seq = 0 OR version = coalesce(($4::text[])[array_position($2, kind)], version) OR NOT EXISTS (
          SELECT FROM tidemill.worker AS w WHERE w.ended_at IS NULL AND w.lease_until > now()
          AND w.versions ->> ('run ' || r.kind) = r.version))
    ORDER BY id LIMIT $3 FOR UPDATE SKIP LOCKED))
  AND EXISTS (SELECT FROM tidemill.worker WHERE id = $1 AND ended_at IS NULL)
RETURNING id, kind, version, seq, input
"""

#: Serialises the first claims of limited kinds, so that two owners do not use the same slot.
LOCK_SLOTS = "SELECT pg_advisory_xact_lock(hashtext('tidemill.run_slot'))"

#: Frees the slots of runs that have ended or need attention, or whose owner was lost before they began.
FREE_SLOTS = """
DELETE FROM tidemill.run_slot AS s WHERE NOT EXISTS (
    SELECT FROM tidemill.run AS r
    WHERE r.id = s.run_id AND r.state = 'running' AND (r.seq > 0 OR r.owner IS NOT NULL))
"""

#: Claims new runs of limited kinds, oldest first, while their kind has free slots. A run keeps its slot until it ends.
CLAIM_LIMITED = """
WITH room AS MATERIALIZED (
    SELECT k.kind, k.most - (SELECT count(*) FROM tidemill.run_slot AS s WHERE s.kind = k.kind) AS free
    FROM unnest($2::text[], $4::int[]) AS k(kind, most)),
picked AS MATERIALIZED (
    SELECT r.id, r.kind FROM room CROSS JOIN LATERAL (
        SELECT id, kind FROM tidemill.run
        WHERE state = 'running' AND owner IS NULL AND awake AND kind = room.kind AND seq = 0
        ORDER BY id LIMIT greatest(room.free, 0) FOR UPDATE SKIP LOCKED) AS r
    WHERE EXISTS (SELECT FROM tidemill.worker WHERE id = $1 AND ended_at IS NULL)
    LIMIT $3),
slots AS (INSERT INTO tidemill.run_slot (run_id, kind) SELECT id, kind FROM picked ON CONFLICT DO NOTHING)
UPDATE tidemill.run AS r SET owner = $1, turn = 0 FROM picked WHERE r.id = picked.id
RETURNING r.id, r.kind, r.version, r.seq, r.input
"""

#: Runs of this owner that it does not know of: the response to a claim or a start was lost.
OWN_RUNS = """
SELECT id, kind, version, seq, input FROM tidemill.run
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

#: Due inbox rows of this owner's runs, except those that it has already read: ticks from outside, ends of jobs, timers.
#: Each run is looked up by its id, whatever the planner assumes about the tables.
DUE_INBOX = """
SELECT id, run_id, timer, work, data FROM (
    SELECT i.* FROM tidemill.inbox AS i CROSS JOIN LATERAL (
        SELECT FROM tidemill.run WHERE id = i.run_id AND coalesce(owner, 0) = $1 LIMIT 1) AS mine
    WHERE i.due_at <= now() AND NOT i.suspended AND (i.id IN (SELECT unnest($2::bigint[]))) IS NOT TRUE
    ORDER BY i.due_at LIMIT $3) AS due
ORDER BY id
"""

#: Wakes sleeping runs with something due, deletes messages for ended runs, and suspends those for runs that need
#: attention. Also returns the seconds until the next timer.
WAKE_RUNS = """
WITH due AS MATERIALIZED (SELECT DISTINCT run_id FROM tidemill.inbox WHERE due_at <= now() AND NOT suspended),
woken AS (
    UPDATE tidemill.run SET awake = true WHERE id = ANY (ARRAY(
        SELECT id FROM tidemill.run
        WHERE id = ANY (ARRAY(SELECT run_id FROM due)) AND state = 'running' AND owner IS NULL AND NOT awake
        ORDER BY id FOR UPDATE SKIP LOCKED))
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
       (SELECT extract(epoch FROM min(due_at) - now())::float8
        FROM tidemill.inbox WHERE due_at > now() AND NOT suspended) AS next
FROM woken
"""

#: Puts a tick from outside into a run's inbox and wakes the run.
SEND = """
WITH target AS (
    UPDATE tidemill.run SET awake = true WHERE id = $1 AND state IN ('running', 'needs_attention') RETURNING id),
put AS (INSERT INTO tidemill.inbox (run_id, data) SELECT id, $2::json FROM target RETURNING run_id)
SELECT run_id, pg_notify('tidemill_runs', '') FROM put
"""

# Ticks are compared as text: `->>` rejects a document that has a NUL anywhere.

#: Whether a tick that was sent to a run is in its inbox or journal.
HAS_ARRIVED = """
SELECT FROM tidemill.inbox WHERE run_id = $1 AND strpos(data::text, '"token":' || to_json($2::text)) > 0
UNION ALL
SELECT FROM tidemill.tick WHERE run_id = $1 AND strpos(data::text, '"token":' || to_json($2::text)) > 0
"""

#: Appends a tick to a run that needs attention, which has no owner to do it, and wakes the run.
RETRY_STOPPED = """
WITH held AS (
    UPDATE tidemill.run SET state = 'running', awake = true, note = NULL, seq = seq + 1
    WHERE id = $1 AND state = 'needs_attention' AND owner IS NULL RETURNING id, seq),
ticks AS (INSERT INTO tidemill.tick (run_id, seq, data) SELECT id, seq, $2::json FROM held)
SELECT id, pg_notify('tidemill_runs', '') FROM held
"""

#: Ends a run that needs attention, which has no owner to do it, and requests the cancellation of its jobs.
CANCEL_STOPPED = f"""
WITH over AS (
    UPDATE tidemill.run SET state = 'cancelled', ended_at = now(), note = $2 WHERE id = $1 AND state = 'needs_attention'
    RETURNING id, key, parent, parent_work, state, result, error, note),
gone AS (DELETE FROM tidemill.inbox WHERE run_id IN (SELECT id FROM over)),
unasked AS (DELETE FROM tidemill.run_input WHERE run_id IN (SELECT id FROM over)),
unwanted AS (
    UPDATE tidemill.job SET cancel_reason = '{UNWANTED}'
    WHERE run_id = ANY (ARRAY(SELECT id FROM over)) AND cancel_reason IS NULL RETURNING id),
{relatives_sql("over")}
SELECT id, (SELECT count(pg_notify('tidemill_control', '')) FROM (SELECT FROM unwanted LIMIT 1) AS u),
       {NOTIFY_RUNS}, {ORPHANED} FROM over
"""

#: Releases the runs of owners that have ended.
FREE_RUNS = """
WITH freed AS (
    UPDATE tidemill.run SET owner = NULL, awake = true WHERE id = ANY (ARRAY(
        SELECT id FROM tidemill.run
        WHERE owner IS NOT NULL AND owner = ANY (ARRAY(SELECT id FROM tidemill.worker WHERE ended_at IS NOT NULL))
        ORDER BY id FOR UPDATE SKIP LOCKED))
    RETURNING id)
SELECT count(*) AS n, CASE WHEN count(*) > 0 THEN pg_notify('tidemill_runs', '') END FROM freed
"""

#: Requests the cancellation of runs whose start was stored after their parent had ended.
CANCEL_ORPHANS = """
WITH asked AS (
    INSERT INTO tidemill.inbox (run_id, data)
    SELECT c.id, json_build_object('kind', 'cancel_asked', 'at', extract(epoch FROM now()),
                                   'reason', 'the run that started it, r' || c.parent || ', has ended')
    FROM tidemill.run AS c JOIN tidemill.run AS p ON p.id = c.parent
    WHERE c.parent IS NOT NULL AND c.ended_at IS NULL AND p.ended_at IS NOT NULL AND NOT EXISTS (
        SELECT FROM tidemill.inbox AS i WHERE i.run_id = c.id AND i.data::text ~ '^{"kind" ?: ?"cancel_asked"')
    RETURNING run_id)
SELECT count(*) AS n, CASE WHEN count(*) > 0 THEN pg_notify('tidemill_runs', 'wake') END FROM asked
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
FORK_RUN = """
WITH made AS (
    INSERT INTO tidemill.run (workflow, kind, version, input, seq, origin, forked_from, awake)
    SELECT workflow, kind, $3, input, $2 + cardinality($5::json[]), $4, id, false FROM tidemill.run WHERE id = $1
    RETURNING id),
ticks AS (
    INSERT INTO tidemill.tick (run_id, seq, data)
    SELECT made.id, t.seq, t.data FROM made, tidemill.tick AS t WHERE t.run_id = $1 AND t.seq <= $2),
more AS (
    INSERT INTO tidemill.tick (run_id, seq, data)
    SELECT made.id, $2 + e.ord, e.data FROM made, unnest($5::json[]) WITH ORDINALITY AS e(data, ord)),
timers AS (
    INSERT INTO tidemill.inbox (run_id, timer, due_at)
    SELECT made.id, w.timer, to_timestamp(w.due) FROM made, unnest($6::text[], $7::float8[]) AS w(timer, due))
SELECT id FROM made
"""

#: Makes a new run claimable.
WAKE_RUN = "UPDATE tidemill.run SET awake = true WHERE id = $1 RETURNING pg_notify('tidemill_runs', '')"

#: Notifies owners that there are runs to claim.
NOTIFY_OWNERS = "SELECT pg_notify('tidemill_runs', '')"

#: The questions of runs to people, longest waiting first.
LIST_INPUTS = """
SELECT i.run_id, i.node, i.prompt, i.schema, i.asked_at, i.due_at, r.workflow, r.kind FROM tidemill.run_input AS i
JOIN tidemill.run AS r ON r.id = i.run_id
WHERE ($1::bigint IS NULL OR i.run_id = $1)
  AND ($3::timestamptz IS NULL OR (i.asked_at, i.run_id, i.node) > ($3, $4::bigint, $5::text))
ORDER BY i.asked_at, i.run_id, i.node LIMIT $2
"""

#: Whether a node of a run waits for a person's input.
IS_ASKED = "SELECT EXISTS (SELECT FROM tidemill.run_input WHERE run_id = $1 AND node = $2) AS asked"

#: What a work item has noted, in the journal or the inbox.
NOTED_FOR_WORK = """
SELECT data FROM (
    SELECT data FROM tidemill.tick WHERE run_id = $1
    UNION ALL
    SELECT data FROM tidemill.inbox WHERE run_id = $1) AS told
WHERE data::text ~ ('^{"kind":"noted","at":[^,]+,"work":' || $2::bigint || ',')
"""

#: Publishes something of a run from a process that does not own it. Serialised with the owner's turns: otherwise a
#: reader that has seen a number would miss a smaller one that commits later.
PUBLISH = """
WITH held AS MATERIALIZED (SELECT id FROM tidemill.run WHERE id = $1 FOR NO KEY UPDATE)
INSERT INTO tidemill.published (run_id, data) SELECT held.id, p.data FROM held, unnest($2::json[]) AS p(data)
"""

#: The event classes that the last run workers of a kind had defined: those that are alive, or else the newest one.
KNOWN_EVENTS = """
SELECT DISTINCT unnest(events) AS name FROM (
    SELECT events, ended_at IS NULL AS lives, row_number() OVER (ORDER BY ended_at IS NULL DESC, id DESC) AS place
    FROM tidemill.worker WHERE events IS NOT NULL AND versions ->> ('run ' || $1) IS NOT NULL) AS w
WHERE lives OR place = 1
"""

#: What must be known of runs in order to cancel them.
FIND_RUNS = "SELECT id, kind, state FROM tidemill.run WHERE id = ANY ($1::bigint[])"

LIST_RUNS = """
SELECT id, workflow, kind, state, CASE WHEN key NOT LIKE '~%' THEN key END AS key, seq, owner, awake, note,
       created_at, ended_at FROM tidemill.run
WHERE ($1::text IS NULL OR state = $1) AND ($2::text IS NULL OR workflow = $2) AND ($3::bigint IS NULL OR id < $3)
ORDER BY id DESC LIMIT $4
"""

#: One run.
SHOW_RUN = """
SELECT r.*, w.host AS owner_host, w.pid AS owner_pid FROM tidemill.run AS r
LEFT JOIN tidemill.worker AS w ON w.id = r.owner WHERE r.id = $1
"""

#: A run's journal, and what it has published, after a number.
READ_TICKS = "SELECT seq, data FROM tidemill.tick WHERE run_id = $1 AND seq > $2 ORDER BY seq LIMIT $3"
LAST_PUBLISHED = "SELECT seq FROM tidemill.published WHERE run_id = $1 ORDER BY seq DESC LIMIT 1"
READ_PUBLISHED = "SELECT seq, at, data FROM tidemill.published WHERE run_id = $1 AND seq > $2 ORDER BY seq LIMIT $3"


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
    if key is not None:
        check_key("unique_key", key)
    # A start without a key gets an internal one, so that it happens once even if the first response was lost.
    own = None if key is not None else OWN_KEY + new_token()
    who = (origin, owner, *(parent or (None, None)), kind or workflow)
    while True:
        rows = await at.fetch(START_RUN, workflow, version, own or key, input, *who)
        if rows:
            return rows[0]["id"], rows[0]["created"] or own is not None
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
) -> int:
    """Store a new run with another's first `at` ticks, and `more` after them; returns its id."""
    waiting = timers or {}
    number = await tx.fetchval(FORK_RUN, source, at, version, origin, list(more), list(waiting), list(waiting.values()))
    if number is None:
        raise NotFoundError(f"there is no run {source}: `tidemill runs` lists them")
    await tx.fetch(WAKE_RUN, number)
    return number


async def claim_runs(
    database: Database,
    owner: int,
    kinds: Sequence[str],
    versions: Sequence[str | None],
    room: int,
    limits: Sequence[int | None],
) -> list[Any]:
    """Claim runs of these kinds; of a kind with a limit, no more are begun and not ended than that."""
    limited = {kind: most for kind, most in zip(kinds, limits, strict=True) if most is not None}
    rows = await database.fetch(CLAIM_RUNS, owner, list(kinds), room, list(versions), list(limited), patience=None)
    if not limited or len(rows) >= room:
        return rows

    async def together(connection: Executor) -> list[asyncpg.Record]:
        async with connection.transaction():
            await connection.execute(database.sql(LOCK_SLOTS))
            await connection.execute(database.sql(FREE_SLOTS))
            given = (owner, list(limited), room - len(rows), list(limited.values()))
            return await connection.fetch(database.sql(CLAIM_LIMITED), *given)

    return rows + await database.run(together, patience=None)


async def resume_runs(database: Database, kinds: Sequence[str]) -> None:
    """Resume runs of these kinds that needed attention, with all messages suspended meanwhile."""

    async def together(connection: Executor) -> None:
        async with connection.transaction():
            rows = await connection.fetch(database.sql(RESUME_RUNS), list(kinds))
            await connection.execute(database.sql(RELEASE_SUSPENDED), [row["id"] for row in rows])

    await database.run(together, patience=None)


async def forget_runs(database: Database, *, keep_days: int) -> int:
    """Delete a batch of runs that ended more than so many days ago; returns how many. Call it until it returns 0."""
    return len(await database.fetch(FORGET_RUNS, keep_days, patience=None))


def new_token() -> str:
    """A new token by which a sender can tell whether its tick has arrived."""
    return secrets.token_urlsafe(9)


async def has_arrived(database: Database, run_id: int, token: str) -> bool:
    """Whether a tick with this token was sent to a run before."""
    return bool(await database.fetch(HAS_ARRIVED, run_id, token))


async def send_to_run(database: Database, run_id: int, tick: bytes, *, token: str | None = None) -> None:
    """Put a tick into a run's inbox; an error if the run does not exist or has ended.

    With a `token`, which the tick carries as well, it arrives once, even if the first response was lost.
    """
    uncertain = False
    while True:
        if uncertain and token is not None and await has_arrived(database, run_id, token):
            return
        try:
            async with database.transaction(patience=30.0) as connection:
                if await connection.fetch(database.sql(SEND), run_id, tick):
                    return
            break
        except Exception as error:
            if not is_unavailable(error):
                raise
            uncertain = uncertain or (token is not None and not is_safe_to_retry(error))
    row = await show_run(database, run_id)
    raise NotFoundError(f"run {run_id} has ended ({row['state']}): it accepts nothing more; start a new run")


async def send_within(tx: Transaction, run_id: int, tick: bytes) -> bool:
    """Put a tick into a run's inbox when the transaction commits; False if there is no such run, or it has ended."""
    return bool(await tx.fetch(SEND, run_id, tick))


async def cancel_within(tx: Transaction, run_id: int, tick: bytes, *, reason: str) -> bool:
    """Ask a run to end when the transaction commits; False if it has ended already."""
    if not await send_within(tx, run_id, tick):
        return False
    await tx.fetch(CANCEL_STOPPED, run_id, storable(reason))
    return True


async def retry_stopped(tx: Transaction, run_id: int, tick: bytes) -> bool:
    """Append a tick to a run that needs attention and wake it; False if it does not need any."""
    if not await tx.fetch(RETRY_STOPPED, run_id, tick):
        return False
    await tx.fetch(RELEASE_SUSPENDED, [run_id])
    return True


async def cancel_run(database: Database, run_id: int, tick: bytes, *, reason: str) -> None:
    """Ask a run to end; one that needs attention has ended when this returns."""
    await send_to_run(database, run_id, tick)
    await database.fetch(CANCEL_STOPPED, run_id, storable(reason))


async def show_run(database: Database, run_id: int) -> asyncpg.Record:
    """Everything about one run."""
    row = await database.fetchrow(SHOW_RUN, run_id)
    if row is None:
        raise NotFoundError(f"there is no run {run_id}: `tidemill runs` lists them")
    return row


async def find_runs(database: Database, ids: Sequence[int]) -> list[asyncpg.Record]:
    """Id, kind and state of runs, in the order in which they are named; an error if one does not exist."""
    found = {row["id"]: row for row in await database.fetch(FIND_RUNS, list(ids))}
    if missing := [each for each in ids if each not in found]:
        raise NotFoundError(f"there is no run {missing[0]}: `tidemill runs` lists them")
    return [found[each] for each in ids]


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


async def load_run(database: Database, run_id: int) -> tuple[asyncpg.Record, bytes | None, list[bytes]]:
    """A run, its newest snapshot and the ticks after it: everything that its state is rebuilt from."""
    async with database.transaction(patience=30.0) as connection:
        await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        row = await connection.fetchrow(database.sql(SHOW_RUN), run_id)
        if row is None:
            raise NotFoundError(f"there is no run {run_id}: `tidemill runs` lists them")
        snapshots = await connection.fetch(database.sql(LOAD_SNAPSHOTS), [run_id])
        ticks = await connection.fetch(database.sql(LOAD_TICKS), [run_id])
    return row, snapshots[0]["data"] if snapshots else None, [tick["data"] for tick in ticks]


async def list_inputs(
    database: Database,
    *,
    run_id: int | None = None,
    after: tuple[datetime, int, str] | None = None,
    limit: int = 200,
) -> list[asyncpg.Record]:
    """The questions of runs to people, longest waiting first, after a given one; of all runs, or of one."""
    return await database.fetch(LIST_INPUTS, run_id, limit, *(after or (None, None, None)))


async def is_asked(database: Database, run_id: int, node: str) -> bool:
    """Whether a node of a run waits for a person's input."""
    row = await database.fetchrow(IS_ASKED, run_id, node)
    return row is not None and row["asked"]


async def publish(database: Database, run_id: int, shown: Sequence[bytes]) -> None:
    """Publish something of a run."""
    await database.fetch(PUBLISH, run_id, list(shown))


async def read_published(database: Database, run_id: int, *, after: int = 0, limit: int = 1000) -> list[Any]:
    """What a run has published after a number: (seq, at, data) each."""
    return await database.fetch(READ_PUBLISHED, run_id, after, limit)


async def known_events(at: Database | Transaction, kind: str) -> list[str]:
    """The event classes that run workers of a kind know; empty if there has been none."""
    return [row["name"] for row in await at.fetch(KNOWN_EVENTS, kind)]


async def last_published(database: Database, run_id: int) -> int:
    """The number of the last event that a run has published; 0 if there is none."""
    row = await database.fetchrow(LAST_PUBLISHED, run_id)
    return 0 if row is None else row["seq"]
