"""The inbox of runs: ticks from outside, the cancellation and the retry of a run."""

from __future__ import annotations

import asyncio

from tidemill.core.codec import storable
from tidemill.core.errors import NotFoundError
from tidemill.store.connection.caller_connection import Statements
from tidemill.store.database import Database
from tidemill.store.database_errors import PAUSE_READ_ONLY, is_full, is_safe_to_retry, is_unavailable
from tidemill.store.jobs.history.archive import NOTIFY_RUNS
from tidemill.store.runs.claims import RELEASE_SUSPENDED
from tidemill.store.runs.runs import show_run
from tidemill.store.runs.sealing import seal_run_tick
from tidemill.store.runs.sends import send_together
from tidemill.store.runs.turns import ORPHANED, UNWANTED, relatives_sql
from tidemill.store.transaction import Transaction

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


#: Puts a tick from outside into a run's inbox and wakes the run.
SEND = """
WITH target AS (
    UPDATE tidemill.run SET awake = start_at IS NULL
    WHERE id = $1 AND state IN ('running', 'needs_attention') RETURNING id),
put AS (INSERT INTO tidemill.inbox (run_id, data) SELECT id, $2::json FROM target RETURNING run_id)
SELECT run_id, pg_notify('tidemill_runs', '') FROM put
"""


#: The same for any driver's connection, and with `$3` or `$4` for a later moment.
SEND_LATER = """
WITH later AS (SELECT coalesce(to_timestamp($3::float8), now() + make_interval(secs => $4::float8)) AS due_at),
target AS (
    UPDATE tidemill.run SET awake = start_at IS NULL AND (awake OR (SELECT due_at FROM later) IS NULL)
    WHERE id = $1::bigint AND state IN ('running', 'needs_attention') RETURNING id),
put AS (
    INSERT INTO tidemill.inbox (run_id, data, due_at)
    SELECT id, $2::text::json, coalesce(due_at, now()) FROM target, later RETURNING run_id)
SELECT run_id, pg_notify('tidemill_runs', 'wake') FROM put
"""


#: Begins a run at once that was to begin later, so that its cancellation is carried out. Owners that were
#: notified of the cancellation before found no run to claim.
BEGIN_NOW = """
UPDATE tidemill.run SET awake = true, start_at = NULL WHERE id = $1 AND start_at IS NOT NULL
RETURNING id, pg_notify('tidemill_runs', '')
"""


#: Whether the run was asked to end and has not taken that yet.
IS_CANCEL_ASKED = """
SELECT EXISTS (SELECT FROM tidemill.inbox WHERE run_id = $1 AND data::text ~ '^{"kind" ?: ?"cancel_asked"')
"""


#: Whether a tick that was sent to a run is in its inbox or journal.
HAS_ARRIVED = """
SELECT FROM tidemill.inbox WHERE run_id = $1 AND strpos(data::text, '"token":' || to_json($2::text)) > 0
UNION ALL
SELECT FROM tidemill.tick WHERE run_id = $1 AND strpos(data::text, '"token":' || to_json($2::text)) > 0
"""


#: Appends a tick to a run that needs attention, which has no owner to do it, and wakes the run.
RETRY_STOPPED = """
WITH held AS (
    UPDATE tidemill.run SET state = 'running', awake = true, note = NULL, seq = seq + 1, losses = 0
    WHERE id = $1 AND state = 'needs_attention' AND owner IS NULL RETURNING id, seq, suspicions),
ticks AS (INSERT INTO tidemill.tick (run_id, seq, data) SELECT id, seq, $2::json FROM held)
SELECT id, pg_notify('tidemill_runs', CASE WHEN suspicions > 0 THEN 'suspects' ELSE '' END) FROM held
"""


#: Lets a run that needs attention go on with its cancellation, if it has compensations to run: its owner runs them. Not
#: if it was cancelled before, so that it can be ended in any case.
CANCEL_WITH_COMPENSATIONS = """
WITH held AS (
    UPDATE tidemill.run AS r SET state = 'running', awake = true, note = NULL, seq = seq + 1
    WHERE id = $1 AND state = 'needs_attention' AND owner IS NULL
      AND NOT EXISTS (SELECT FROM tidemill.tick WHERE run_id = $1 AND data::text LIKE '{"kind":"cancel_asked"%')
      AND NOT EXISTS (SELECT FROM tidemill.inbox WHERE run_id = $1 AND data::text LIKE '{"kind":"cancel_asked"%')
      AND (EXISTS (SELECT FROM tidemill.tick
                   WHERE run_id = $1 AND strpos(data::text, '"kind":"did","name":"compensate ') > 0)
           OR EXISTS (SELECT FROM tidemill.snapshot
                      WHERE run_id = $1 AND strpos(data::text, '"compensations":[[') > 0))
    RETURNING id, seq),
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


#: Ends runs that have not begun when their deadline has passed.
EXPIRE_RUNS = """
WITH over AS (
    UPDATE tidemill.run SET state = 'expired', ended_at = now(), start_at = NULL, awake = false,
                            note = 'its deadline passed before it began'
    WHERE id = ANY (ARRAY(
        SELECT id FROM tidemill.run WHERE deadline <= now() AND state = 'running' AND seq = 0 AND owner IS NULL
        ORDER BY deadline LIMIT 1000 FOR UPDATE SKIP LOCKED))
    RETURNING id),
gone AS (DELETE FROM tidemill.inbox WHERE run_id IN (SELECT id FROM over))
SELECT id FROM over
"""


#: What a work item has noted, in the journal or the inbox.
NOTED_FOR_WORK = """
SELECT data FROM (
    SELECT data FROM tidemill.tick WHERE run_id = $1
    UNION ALL
    SELECT data FROM tidemill.inbox WHERE run_id = $1) AS noted
WHERE data::text ~ ('^{"kind":"noted","at":[^,]+,"work":' || $2::bigint || ',')
"""


async def has_arrived(database: Database, run_id: int, token: str) -> bool:
    """Whether a tick with this token was sent to a run before."""
    return bool(await database.fetch(HAS_ARRIVED, run_id, token))


async def send_to_run(database: Database, run_id: int, tick: bytes, *, token: str | None = None) -> None:
    """Put a tick into a run's inbox; an error if the run does not exist or has ended.

    With a `token`, which the tick carries as well, it arrives once, even if the first response was lost.
    """
    uncertain, tick = False, seal_run_tick(database, tick)
    while True:
        if uncertain and token is not None and await has_arrived(database, run_id, token):
            return
        try:
            if await send_together(database, run_id, tick):
                return
            async with database.transaction(patience=30.0) as connection:
                if await connection.fetch(database.sql(SEND), run_id, tick):
                    return
            break
        except Exception as error:
            if not (is_unavailable(error) or is_safe_to_retry(error)):
                raise
            uncertain = uncertain or (token is not None and not is_safe_to_retry(error))
            if is_full(error):  # A standby behind a pooler answers at once: wait before the next try.
                await asyncio.sleep(PAUSE_READ_ONLY)
    row = await show_run(database, run_id)
    raise NotFoundError(f"run {run_id} has ended ({row['state']}): it accepts nothing more; start a new run")


def send_statements(
    database: Database, run_id: int, tick: bytes, *, at: float | None = None, delay: float | None = None
) -> Statements[None]:
    """The statements that put a tick into a run's inbox, for any driver; an error if the run has ended."""
    if not (yield SEND_LATER, (run_id, seal_run_tick(database, tick).decode(), at, delay)):
        raise NotFoundError(f"there is no run {run_id}, or it has ended: it accepts nothing more; start a new run")


async def send_within(tx: Transaction, run_id: int, tick: bytes) -> bool:
    """Put a tick into a run's inbox when the transaction commits; False if there is no such run, or it has ended."""
    return bool(await tx.fetch(SEND, run_id, seal_run_tick(tx.database, tick)))


async def cancel_within(tx: Transaction, run_id: int, tick: bytes, *, reason: str) -> bool:
    """Ask a run to end when the transaction commits; False if it has ended already."""
    if await tx.fetch(CANCEL_WITH_COMPENSATIONS, run_id, tick):
        await tx.fetch(RELEASE_SUSPENDED, [run_id])
        return True
    if not await send_within(tx, run_id, tick):
        return False
    await tx.fetch(BEGIN_NOW, run_id)
    await tx.fetch(CANCEL_STOPPED, run_id, storable(reason))
    return True


async def retry_stopped(tx: Transaction, run_id: int, tick: bytes) -> bool:
    """Append a tick to a run that needs attention and wake it; False if it does not need any."""
    if not await tx.fetch(RETRY_STOPPED, run_id, tick):
        return False
    await tx.fetch(RELEASE_SUSPENDED, [run_id])
    return True


async def cancel_run(database: Database, run_id: int, tick: bytes, *, reason: str) -> None:
    """Ask a run to end; one that needs attention and has nothing to compensate has ended when this returns."""
    if await database.fetch(CANCEL_WITH_COMPENSATIONS, run_id, tick):
        await database.fetch(RELEASE_SUSPENDED, [run_id])
        return
    await send_to_run(database, run_id, tick)
    await database.fetch(BEGIN_NOW, run_id)
    await database.fetch(CANCEL_STOPPED, run_id, storable(reason))
