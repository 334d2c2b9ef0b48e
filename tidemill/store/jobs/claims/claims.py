"""Claiming and finishing jobs: the hot path, many rows per statement, one round trip per turn.

A worker's turn is one statement: it finishes the last batch and claims the next. A claim sets jobs to `running` under
the worker's id and the job's next attempt number. A finish must name both, so a stale owner changes nothing. Finished
rows move to the history in the same statement.

`LowWater` keeps claims fast while a long transaction is open: rows claimed since its start are dead but cannot be
vacuumed, and an index scan from the front would read them again for every claim. So a claim starts where the last one
ended. It scans from the front only now and then, because a retry, a higher-priority job or a late commit may have added
a job behind the mark; these scans take at most a fixed share of the time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Any, NamedTuple

from tidemill.core.blame import group_size
from tidemill.core.codec import decode
from tidemill.core.jobs.job import PRIORITIES, ClaimedJob, Finish, Requeue
from tidemill.store.database import Connection, Database, Executor, columns
from tidemill.store.jobs.batches.batch_end import end_batches
from tidemill.store.jobs.claims import successors
from tidemill.store.jobs.claims.suspects import CLAIM_SUSPECTS, FIND_SUSPECTS
from tidemill.store.jobs.history.archive import ENDED_IN, NOTIFY_CALLED, NOTIFY_RUNS, archive_sql, end_callbacks
from tidemill.store.jobs.insert import ADMIT_THROTTLED, WAKE, notify_queues
from tidemill.store.jobs.sealing import sealed_ends
from tidemill.store.jobs.workers import NOTIFY_CONTROL, release_jobs

_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
_LEVELS = len(PRIORITIES)
_CLAIMED_COLUMNS = 14  # of every claim: the first fields of `ClaimedJob`
_PLAIN_COLUMNS = 15  # of a plain claim; a turn that hands over says in one more whether a job was handed over

#: The order in which a claim reads the priorities of a queue.
HIGHEST_FIRST, LOWEST_FIRST = "generate_series(9, 0, -1)", "generate_series(0, 9)"

# At or after the low-water mark of this queue and priority.
_FROM_MARK = """(due_at, id) >= (({0}::timestamptz[])[(wanted.ord - 1) * 10 + p.priority + 1],
                                   ({1}::bigint[])[(wanted.ord - 1) * 10 + p.priority + 1])"""

# Ready and due jobs of each queue, best first, starting at the low-water mark of the queue and priority.
_PICK = f"""
    SELECT picked.ctid FROM unnest($1::text[], $2::int[]) WITH ORDINALITY AS wanted(queue, room, ord)
    CROSS JOIN LATERAL (
        SELECT level.ctid FROM {HIGHEST_FIRST} AS p(priority) CROSS JOIN LATERAL (
            SELECT ctid FROM tidemill.job
            WHERE queue = wanted.queue AND priority = p.priority AND state = 'ready' AND due_at <= now()
              AND {_FROM_MARK.format("$3", "$4")}
              AND fair_key IS NULL AND suspicions = 0 AND task <> ALL ($5::text[])
            ORDER BY due_at, id LIMIT wanted.room FOR UPDATE SKIP LOCKED) AS level
        LIMIT wanted.room) AS picked
"""

# Sets the picked jobs to running, unless the worker has ended.
_CLAIM = """
    UPDATE tidemill.job SET state = 'running', worker_id = {worker}, attempt = attempt + 1, started_at = now(),
                            note = NULL, progress = NULL
    WHERE ctid = ANY (ARRAY({pick}))
      AND EXISTS (SELECT FROM tidemill.worker WHERE id = {worker} AND ended_at IS NULL)
    RETURNING id, attempt, queue, task, args, options, failures, losses,
              concurrency_key IS NOT NULL AS keyed, deadline <= now() AS expired, cancel_reason, priority, due_at,
              origin{more}
"""

# The finished jobs that the worker still owns: id, attempt (1 unless given) and worker must match. The LIMIT keeps the
# planner from replacing one index lookup per job with a scan of the whole table.
_OWNED = """
    CROSS JOIN LATERAL (
        SELECT j.ctid AS place, j.* FROM tidemill.job AS j
        WHERE j.id = d.id AND j.attempt = coalesce(d.attempt, 1) AND j.worker_id = {worker} AND j.state = 'running'
        LIMIT 1) AS owned
"""

_ENDED = """
    SELECT owned.*, d.state AS final, d.result, d.note AS last_note, d.error, d.lost
    FROM unnest({0}::bigint[], {1}::int[], {2}::json[], {3}::text[], {4}::text[], {5}::json[], {6}::boolean[])
        AS d(id, attempt, result, state, note, error, lost)
"""

_SUCCEEDED = """
    SELECT owned.*, d.result FROM unnest({0}::bigint[], {1}::int[], {2}::json[]) AS d(id, attempt, result)
"""


def _archive_ended(where: str, *, together: bool) -> str:
    return archive_sql(
        "owned",
        together=together,
        where=where,
        state="final",
        note="coalesce(last_note, note)",
        result="result",
        error="error",
        failures="least(failures + (final = 'failed' AND NOT lost)::int, 32767)",
        losses="least(losses + lost::int, 32767)",
        errors="tidemill.with_error(errors, error)",
    )


#: Moves finished jobs to the history; returns those that the worker still owned. Locks the rows first, so that a
#: concurrent progress report or cancel request cannot interfere.
FINISH_JOBS = f"""
WITH locked AS MATERIALIZED (
    SELECT j.id FROM tidemill.job AS j, unnest($1::bigint[], $2::int[]) AS d(id, attempt)
    WHERE j.id = d.id AND j.attempt = d.attempt AND j.worker_id = $8 AND j.state = 'running'
    FOR UPDATE OF j),
owned AS MATERIALIZED ({_ENDED.format("$1", "$2", "$3", "$4", "$5", "$6", "$7")}{_OWNED.format(worker="$8")}),
gone AS (
    DELETE FROM tidemill.job AS j USING locked WHERE j.id = locked.id RETURNING j.id),
{_archive_ended("id IN (SELECT id FROM gone)", together=False)},{end_callbacks("id IN (SELECT id FROM gone)")}
SELECT id, concurrency_key, batch_id, {NOTIFY_RUNS}, {NOTIFY_CALLED} FROM archived
"""


# IS TRUE keeps the planner from a join whose size it would misestimate.
_GONE = "(id IN (SELECT id FROM gone)) IS TRUE"


def _archive_succeeded(successor: str = "NULL") -> str:
    return archive_sql(
        "owned", where=_GONE, state="'succeeded'", note="note", result="result", successor=successor, together=True
    )


class ClaimStatements(NamedTuple):
    """A claim alone, and together with the results of jobs: the whole turn of a busy worker in one statement.

    The last row of such a turn has the number of finished jobs, and in the place of arguments their batches. Rows are
    found by key once and deleted by ctid. A row that changed in between (a progress report) may be skipped: the count
    shows it, and FINISH_JOBS then finishes it.
    """

    claim: str
    succeed_and_claim: str
    """For jobs that have all succeeded: most turns, with half the parameters."""
    finish_and_claim: str
    hand_over_and_claim: str
    """For jobs that have all succeeded, and of which some are followed by others: plain claims only."""


def claim_statements(pick: str, *, parameters: int, more: Sequence[str], before: str = "") -> ClaimStatements:
    """The statements that claim the jobs that `pick` selects by ctid; the last of its parameters is the worker's id.

    A claim also returns the columns `more`. `before` are parts of the statement that `pick` refers to. What hands over
    needs a `pick` with the parameters of plain claims.
    """
    worker = f"${parameters}"
    claim = _CLAIM.format(pick=pick, worker=worker, more="".join(f", {name}" for name in more))
    given = [f"${parameters + n}" for n in range(1, 8)]

    def finish_and(owned: str, archive: str, notified: str = NOTIFY_RUNS, handed: str = "") -> str:
        more_columns = [*more, "false"] if handed else more
        return f"""
WITH {before and f"{before}, "}owned AS MATERIALIZED ({owned}{_OWNED.format(worker=worker)}),
gone AS (
    DELETE FROM tidemill.job
    WHERE ctid = ANY (ARRAY(SELECT place FROM owned)) AND worker_id = {worker} AND state = 'running'
    RETURNING id),
{archive},
claimed AS ({claim}){handed and f",{handed}"}
SELECT *{handed and ", false"} FROM claimed
{handed and f"UNION ALL {successors.CLAIMED}"}
UNION ALL
SELECT count(*), ({notified})::int, NULL, NULL, {ENDED_IN}, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
{", NULL" * len(more_columns)} FROM archived
"""

    return ClaimStatements(
        f"WITH {before} {claim}" if before else claim,
        finish_and(_SUCCEEDED.format(*given), _archive_succeeded()),
        finish_and(
            _ENDED.format(*given),
            f"{_archive_ended(_GONE, together=True)},{end_callbacks(_GONE)}",
            f"{NOTIFY_RUNS} + {NOTIFY_CALLED}",
        ),
        ""
        if successors.HANDS_OVER not in more
        else finish_and(
            successors.SUCCEEDED.format(*given),
            _archive_succeeded(successors.FOLLOWED_BY),
            f"{NOTIFY_RUNS} + {successors.NOTIFY_HANDED}",
            successors.handed_sql(worker, _GONE),
        ),
    )


#: Claims up to `room` due jobs of each queue.
PLAIN_CLAIMS = claim_statements(_PICK, parameters=6, more=(successors.HANDS_OVER,))
CLAIM_JOBS, SUCCEED_AND_CLAIM, FINISH_AND_CLAIM, _ = PLAIN_CLAIMS
_LOWEST_FIRST = ClaimStatements(*(statement.replace(HIGHEST_FIRST, LOWEST_FIRST) for statement in PLAIN_CLAIMS))

#: Puts jobs back to be claimed again; failures and losses are counted separately.
REQUEUE_JOBS = f"""
UPDATE tidemill.job AS j
SET state = CASE WHEN j.concurrency_key IS NOT NULL AND d.state = 'ready' THEN 'throttled' ELSE d.state END,
    due_at = CASE WHEN d.delay > 0 THEN now() + make_interval(secs => d.delay) ELSE j.due_at END,
    failures = least(j.failures + d.failed::int, 32767), losses = least(j.losses + d.lost::int, 32767), note = d.note,
    worker_id = NULL, started_at = NULL, progress = NULL,
    errors = tidemill.with_error(j.errors, d.error), suspicions = coalesce(d.suspicions, j.suspicions),
    refused_by = CASE WHEN d.refused_by IS NULL OR d.refused_by = ANY (j.refused_by) THEN j.refused_by
                      ELSE array_append(j.refused_by, d.refused_by) END
FROM unnest($1::bigint[], $2::int[], $3::float8[], $4::text[], $5::boolean[], $6::boolean[], $7::json[],
            $8::text[], $9::text[], $10::smallint[])
    AS d(id, attempt, delay, note, failed, lost, error, state, refused_by, suspicions)
WHERE j.id = d.id AND j.attempt = d.attempt AND j.worker_id = $11 AND j.state = 'running'
RETURNING j.id, {WAKE.format("j.")} AS wake, j.concurrency_key
"""

#: Admits jobs that wait for the concurrency keys of jobs that have just finished.
ADMIT_AFTER = """
SELECT tidemill.admit_throttled(ARRAY(
    SELECT DISTINCT concurrency_key FROM tidemill.job_history
    WHERE id = ANY ($1::bigint[]) AND concurrency_key IS NOT NULL ORDER BY 1))
"""

#: Claims from a rate-limited queue, limited by the tokens in its bucket.
CLAIM_LIMITED = "SELECT * FROM tidemill.claim_limited($1, $2, $3, $4, $5)"

#: Seconds until the next job of these queues is due; NULL if none waits, zero or less if one has become due since the
#: last claim.
NEXT_DUE = f"""
SELECT extract(epoch FROM min(level.due_at) - now())::float8 AS seconds
FROM unnest($1::text[]) WITH ORDINALITY AS wanted(queue, ord)
CROSS JOIN generate_series(0, 9) AS p(priority) CROSS JOIN LATERAL (
    SELECT due_at FROM tidemill.job
    WHERE queue = wanted.queue AND priority = p.priority AND state = 'ready' AND fair_key IS NULL
      AND suspicions = 0 AND task <> ALL ($4::text[])
      AND {_FROM_MARK.format("$2", "$3")}
    ORDER BY due_at LIMIT 1) AS level
"""

#: The running jobs among these with a cancel request.
FIND_CANCELS = "SELECT id, attempt, cancel_reason FROM tidemill.job WHERE id = ANY ($1) AND cancel_reason IS NOT NULL"

#: Stores the progress of running jobs.
REPORT_PROGRESS = """
UPDATE tidemill.job AS j SET progress = d.progress, note = d.note
FROM unnest($1::bigint[], $2::int[], $3::real[], $4::text[]) AS d(id, attempt, progress, note)
WHERE j.id = d.id AND j.attempt = d.attempt AND j.worker_id = $5
"""


class LowWater:
    """Where the next claim starts its scan, per queue and priority."""

    def __init__(self, queues: Sequence[str], *, share: float = 0.1) -> None:
        self._queues = {queue: index for index, queue in enumerate(queues)}
        self._share = share
        self.look_again_at = 0.0
        # The marks of before the last scan from the front, if it found nothing in any queue and no claim has followed.
        self._kept: tuple[list[datetime], list[int]] | None = None
        self._before: tuple[list[datetime], list[int]] | None = None
        self.reset()

    def reset(self) -> None:
        """Start the next scan from the front."""
        self._kept = self._before = None
        self._due = [_LONG_AGO] * (len(self._queues) * _LEVELS)
        self._ids = [0] * (len(self._queues) * _LEVELS)
        self.from_front = True

    def marks(self, queues: Sequence[str], now: float) -> tuple[list[datetime], list[int]]:
        """The marks for a claim on these queues at monotonic time `now`; the front when a full scan is due.

        The first claim after a quiet time starts at the marks: what has woken the worker is most likely new, and should
        not wait for a scan of all that has been claimed before. If it finds nothing, the next one scans from the front.
        """
        if self._kept is not None:
            (self._due, self._ids), self._kept = self._kept, None
        elif now >= self.look_again_at:
            before = self._due, self._ids
            self.reset()
            self._before = before if len(queues) == len(self._queues) else None
        return self.current(queues)

    def current(self, queues: Sequence[str]) -> tuple[list[datetime], list[int]]:
        """The current marks."""
        due: list[datetime] = []
        ids: list[int] = []
        for queue in queues:
            first = self._queues[queue] * _LEVELS
            due += self._due[first : first + _LEVELS]
            ids += self._ids[first : first + _LEVELS]
        return due, ids

    def claimed(self, rows: Sequence[tuple[str, int, datetime, int]], *, took: float, now: float) -> None:
        """Update the marks from a claim: its rows, and how long it took."""
        if self.from_front and not rows:
            self._kept = self._before
        for queue, priority, due_at, job_id in rows:
            at = self._queues[queue] * _LEVELS + priority
            if (due_at, job_id) > (self._due[at], self._ids[at]):
                self._due[at], self._ids[at] = due_at, job_id
        if self.from_front:
            # The longer a scan from the front takes, the rarer it gets: it takes a fixed share of the time.
            self.look_again_at = now + took / self._share
            self.from_front = False


class Turn(NamedTuple):
    """The result of a turn. `refused` results changed nothing: they were written before, or their jobs have another
    owner by now. From `look_again_at` on, a claim should scan from the front of the queues. `ahead` is how many of the
    jobs, at the front, go before jobs that were claimed earlier and have not started."""

    jobs: list[ClaimedJob]
    refused: int
    look_again_at: float
    ahead: int = 0


class Claims:
    """A worker's claims and finishes, on its own connection."""

    def __init__(
        self,
        database: Database,
        connection: Connection,
        worker_id: int,
        queues: Sequence[str],
        *,
        lowest_first: bool = False,
    ) -> None:
        self._database = database
        self.lowest_first = lowest_first
        self._plain = _LOWEST_FIRST if lowest_first else PLAIN_CLAIMS
        self.connection = connection
        self.worker_id = worker_id
        self._low_water = LowWater(queues)

    async def turn(
        self, finished: Sequence[Finish], wanted: dict[str, int], unknown: Sequence[str], now: float
    ) -> Turn:
        """Finish a batch and claim up to `wanted` jobs per queue, in one round trip."""
        queues = list(wanted)
        claim = (queues, list(wanted.values()), *self._low_water.marks(queues, now), unknown, self.worker_id)
        from_front = self._low_water.from_front
        rows, refused = await self.finish_and_claim(finished, self._plain, *claim)
        handed: list[Any] = []
        if rows and len(rows[0]) > _PLAIN_COLUMNS:  # The marks stay below these, which are younger than all others.
            handed = [row for row in rows if row[_PLAIN_COLUMNS]]
            rows = [row for row in rows if not row[_PLAIN_COLUMNS]]
        rows = self._in_turn(rows)
        took = time.monotonic() - now
        last = {(row[2], row[11]): row for row in rows}.values()  # of each queue and priority: rows are in order
        self._low_water.claimed([(row[2], row[11], row[12], row[0]) for row in last], took=took, now=now)
        # A scan from the front that found nothing is not repeated before the next notification.
        again = math.inf if from_front and not rows else self._low_water.look_again_at
        return Turn([claimed_job(row, hands_over=bool(row[14])) for row in (*rows, *handed)], refused, again)

    async def finish_and_claim(
        self, finished: Sequence[Finish], statements: ClaimStatements, *claim: Any
    ) -> tuple[list[Any], int]:
        """The rows that a claim returns, and how many of the finished jobs have another owner by now."""
        finished = _once_each(finished)
        if not finished:
            return await self.fetch(statements.claim, *claim), 0
        if all(job.state == "succeeded" and job.note is None and not job.calls_back for job in finished):
            is_plain = statements is self._plain and any(job.hands_over for job in finished)
            statement = statements.hand_over_and_claim if is_plain else statements.succeed_and_claim
            rows = await self.fetch(statement, *claim, *self._succeeded(finished))
        else:
            rows = await self.fetch(statements.finish_and_claim, *claim, *_finish_columns(self._database, finished))
        last = rows.pop()
        refused = len(finished) - last[0]
        if last[4] is not None:
            await end_batches(self._database, decode(last[4]), self.connection)
        if refused:
            refused -= len(await self.finish(finished))
        elif keyed := [job.id for job in finished if job.keyed]:
            await self.connection.execute(self._database.sql(ADMIT_AFTER), keyed)
        return rows, refused

    def _succeeded(self, finished: Sequence[Finish]) -> tuple[list[int], list[int], list[bytes | None]]:
        """The ids, attempts and results of jobs; no attempts if all are the first, no results if there are none."""
        attempts = [job.attempt for job in finished if job.attempt > 1] and [job.attempt for job in finished]
        results = [job.result for job in finished if job.result is not None] and [job.result for job in finished]
        return [job.id for job in finished], attempts, self._database.seal_each(results)

    def _in_turn(self, rows: list[Any]) -> list[Any]:
        """Rows in the order in which they start, which an UPDATE does not preserve; queues alternate."""
        sign = 1 if self.lowest_first else -1
        rows.sort(key=lambda row: (sign * row[11], row[12], row[0]))
        if len({row[2] for row in rows}) < 2:
            return rows
        by_queue: dict[str, list[Any]] = {}
        for row in rows:
            by_queue.setdefault(row[2], []).append(row)
        return [row for turn in zip_longest(*by_queue.values()) for row in turn if row is not None]

    async def claim_limited(self, queue: str, room: int, unknown: Sequence[str]) -> tuple[list[ClaimedJob], float]:
        """Claim from a rate-limited queue; also returns how long to wait for its next token."""
        rows = await self.fetch(CLAIM_LIMITED, queue, room, self.worker_id, list(unknown), self.lowest_first)
        wait = rows.pop()["wait"]
        return [claimed_job(row) for row in self._in_turn(rows)], wait

    async def claim_suspects(self, queues: Sequence[str], unknown: Sequence[str]) -> list[ClaimedJob]:
        """Claim suspects that may run together; the least suspected ones first."""
        found = await self.connection.fetchrow(self._database.sql(FIND_SUSPECTS), list(queues), list(unknown))
        if found is None or found["seconds"] > 0:
            return []
        level = found["suspicions"]
        given = (list(queues), list(unknown), level, self.worker_id, group_size(level))
        return [claimed_job(row) for row in self._in_turn(await self.fetch(CLAIM_SUSPECTS, *given))]

    async def finish(self, finished: Sequence[Finish]) -> list[int]:
        """Move jobs to the history; returns the ids that this worker still owned."""
        return list(await finish_jobs(self._database, self.connection, self.worker_id, finished))

    async def requeue(self, jobs: Sequence[Requeue]) -> list[int]:
        """Put jobs back; returns the ids that this worker still owned."""
        return await requeue_jobs(self._database, self.connection, self.worker_id, jobs)

    async def next_due(self, queues: Sequence[str], unknown: Sequence[str]) -> float | None:
        """Seconds until the next job of these queues is due."""
        marks = self._low_water.current(queues)
        return await self.connection.fetchval(self._database.sql(NEXT_DUE), list(queues), *marks, list(unknown))

    async def fetch(self, statement: str, *params: Any) -> list[Any]:
        """Run another claim statement on this connection."""
        return await self.connection.fetch(self._database.sql(statement), *params)

    async def release_unheld(self, held: Sequence[int]) -> list[int]:
        """Release jobs that the table says are ours but whose claim never reached us."""
        note = "its claim was lost with the connection"
        return await release_jobs(self._database, self.connection, self.worker_id, held, note=note)


async def report_progress(
    database: Database, worker_id: int, reports: Sequence[tuple[int, int, float | None, str | None]]
) -> None:
    """Store the progress of running jobs: (id, attempt, fraction, message) each."""
    ids, attempts, fractions, messages = columns(reports, 4)
    sealed = [database.seal_text(message) for message in messages]
    await database.fetch(REPORT_PROGRESS, ids, attempts, fractions, sealed, worker_id, patience=None)


async def find_cancels(database: Database, ids: Sequence[int]) -> list[tuple[int, int, str]]:
    """The running jobs among these with a cancel request: (id, attempt, reason) each."""
    if not ids:
        return []
    rows = await database.fetch(FIND_CANCELS, list(ids), patience=None)
    return [(row[0], row[1], row[2]) for row in rows]


async def finish_jobs(
    database: Database, connection: Executor, worker_id: int, finished: Sequence[Finish]
) -> dict[int, int | None]:
    """Move a worker's jobs to the history, and admit jobs that waited for their concurrency keys.

    Returns the jobs that the worker still owned, each with its batch. Batches end here, or by maintenance if another
    transaction ends their other jobs at the same time.
    """
    finished = _once_each(finished)
    rows = await connection.fetch(database.sql(FINISH_JOBS), *_finish_columns(database, finished), worker_id)
    await end_batches(database, {row[2] for row in rows if row[2] is not None}, connection)
    if keys := sorted({row[1] for row in rows if row[1] is not None}):
        await connection.execute(database.sql(ADMIT_THROTTLED), keys)
    return {row[0]: row[2] for row in rows}


_REQUEUED = ("id", "attempt", "delay", "note", "failed", "lost", "error", "state", "refused_by", "suspicions")


async def requeue_jobs(database: Database, connection: Executor, worker_id: int, jobs: Sequence[Requeue]) -> list[int]:
    """Put a worker's jobs back into their queues and notify the workers that can claim them."""
    if not jobs:
        return []
    values = [tuple(getattr(job, name) for name in _REQUEUED) for job in sealed_ends(database, jobs)]
    rows = await connection.fetch(database.sql(REQUEUE_JOBS), *columns(values, len(_REQUEUED)), worker_id)
    if any(job.suspicions for job in jobs):
        await connection.execute(database.sql(NOTIFY_CONTROL))
    if keys := sorted({row[2] for row in rows if row[2] is not None}):
        await connection.execute(database.sql(ADMIT_THROTTLED), keys)
    await notify_queues(database, connection, {row[1] for row in rows})
    return [row[0] for row in rows]


def _once_each(finished: Sequence[Finish]) -> Sequence[Finish]:
    if len({job.id for job in finished}) == len(finished):
        return finished
    return list({job.id: job for job in reversed(finished)}.values())[::-1]


def _finish_columns(database: Database, finished: Sequence[Finish]) -> list[list[Any]]:
    sealed = sealed_ends(database, finished)
    rows = [(f.id, f.attempt, database.seal_value(f.result), f.state, f.note, f.error, f.lost) for f in sealed]
    return columns(rows, 7)


def claimed_job(row: Any, *, hands_over: bool = False) -> ClaimedJob:
    """A row of a claim as a `ClaimedJob`."""
    return ClaimedJob(*row[:_CLAIMED_COLUMNS], hands_over=hands_over)
