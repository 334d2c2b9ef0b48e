"""Finds rows that do not fit together: after a restore, a move, a change by hand, or while no maintenance runs."""

from __future__ import annotations

import msgspec

from tidemill.store.database import Database
from tidemill.store.jobs.schedules.schedules import DOES_FIRE

#: Seconds for which something may be out of order before it is a finding: maintenance mends most of it in less.
SETTLED = 60.0


class Check(msgspec.Struct, frozen=True):
    """A statement that returns the names of what is wrong; `$1`, if it has one, is how many seconds that has lasted."""

    name: str
    problem: str
    advice: str
    statement: str


class Finding(msgspec.Struct, frozen=True):
    """Rows that do not fit together."""

    application: str | None
    check: str
    problem: str
    advice: str
    count: int
    examples: list[str]


_MAINTENANCE = "run `tidemill maintenance` (or `tidemill up`), which mends this"

CHECKS = (
    Check(
        "silent-workers",
        "workers whose lease has lapsed and that were not ended",
        _MAINTENANCE,
        """SELECT host || ':' || pid FROM tidemill.worker
        WHERE ended_at IS NULL AND lease_until < now() - make_interval(secs => $1)""",
    ),
    Check(
        "jobs-without-worker",
        "running jobs of workers that have ended or do not exist",
        "retry them: `tidemill retry ID`",
        """SELECT 'job ' || j.id FROM tidemill.job AS j LEFT JOIN tidemill.worker AS w ON w.id = j.worker_id
        WHERE j.state = 'running' AND j.started_at < now() - make_interval(secs => $1)
              AND (w.id IS NULL OR w.ended_at < now() - make_interval(secs => $1))""",
    ),
    Check(
        "runs-without-worker",
        "runs held by workers that have ended or do not exist",
        _MAINTENANCE,
        """SELECT 'r' || r.id FROM tidemill.run AS r LEFT JOIN tidemill.worker AS w ON w.id = r.owner
        WHERE r.state = 'running' AND r.owner IS NOT NULL
              AND (w.id IS NULL OR w.ended_at < now() - make_interval(secs => $1))""",
    ),
    Check(
        "jobs-without-run",
        "unfinished jobs of runs that do not exist",
        "cancel them: `tidemill cancel ID`",
        """SELECT 'job ' || j.id FROM tidemill.job AS j
        WHERE j.run_id IS NOT NULL AND NOT EXISTS (SELECT FROM tidemill.run AS r WHERE r.id = j.run_id)
              AND j.created_at < now() - make_interval(secs => $1)""",
    ),
    Check(
        "messages-without-run",
        "messages to runs that do not exist",
        "the runs were deleted or not restored: restore them from a backup, or delete these rows of tidemill.inbox",
        """SELECT DISTINCT 'r' || i.run_id FROM tidemill.inbox AS i
        WHERE NOT EXISTS (SELECT FROM tidemill.run AS r WHERE r.id = i.run_id)""",
    ),
    Check(
        "stuck-concurrency-keys",
        "jobs that wait for a slot of a concurrency key of which no job runs",
        _MAINTENANCE,
        """SELECT DISTINCT 'key ' || t.concurrency_key FROM tidemill.job AS t
        WHERE t.state = 'throttled' AND t.due_at < now() - make_interval(secs => $1) AND NOT EXISTS (
            SELECT FROM tidemill.job AS r WHERE r.concurrency_key = t.concurrency_key AND r.state <> 'throttled')""",
    ),
    Check(
        "late-schedules",
        "schedules that are due and were not fired",
        _MAINTENANCE,
        f"""SELECT name FROM tidemill.schedule WHERE {DOES_FIRE} AND next_fire < now() - make_interval(secs => $1)""",
    ),
    Check(
        "sequences",
        "sequences behind their tables: new rows would collide with old ones",
        "restore with `tidemill db restore`, or set each sequence with setval()",
        """SELECT name FROM (VALUES
            ('tidemill.job_id_seq', greatest((SELECT max(id) FROM tidemill.job),
                                             (SELECT max(id) FROM tidemill.job_history))),
            ('tidemill.run_id_seq', (SELECT max(id) FROM tidemill.run)),
            ('tidemill.inbox_id_seq', (SELECT max(id) FROM tidemill.inbox)),
            ('tidemill.worker_id_seq', (SELECT max(id) FROM tidemill.worker))) AS s (name, most)
        WHERE most > coalesce(pg_sequence_last_value(name::regclass), 0)""",
    ),
    Check(
        "indexes",
        "indexes that are not valid and not used",
        "run `tidemill db migrate`, which builds again what a migration has left, or rebuild each: REINDEX INDEX "
        "CONCURRENTLY NAME",
        """SELECT i.indexrelid::regclass::text FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
        WHERE NOT i.indisvalid AND NOT EXISTS (SELECT FROM pg_stat_progress_create_index) AND c.relnamespace = (
            SELECT relnamespace FROM pg_class WHERE oid = 'tidemill.job'::regclass)""",
    ),
    Check(
        "open-transactions",
        "transactions that have been open for an hour: dead rows cannot be removed while they are",
        "end them, or the programs that forgot them: SELECT pg_terminate_backend(PID)",
        """SELECT 'pid ' || pid || coalesce(' ' || nullif(application_name, ''), '') FROM pg_stat_activity
        WHERE datname = current_database() AND xact_start < now() - make_interval(secs => $1 * 60)
        UNION ALL SELECT 'prepared ' || gid FROM pg_prepared_xacts
        WHERE database = current_database() AND prepared < now() - make_interval(secs => $1 * 60)""",
    ),
)

MOST_EXAMPLES = 5


async def find_misfits(database: Database, *, settled: float = SETTLED) -> list[Finding]:
    """Everything that does not fit together in the tables of the application, or of each if none was chosen."""
    known = list(database.applications or ())
    if database.application is not None or not known:
        return await _find_in(database, settled)
    found: list[Finding] = []
    for name in known:
        settings = msgspec.structs.replace(database.settings, application=name)
        async with Database(settings, label="tidemill check") as one:
            found += await _find_in(one, settled)
    return found


async def _find_in(database: Database, settled: float) -> list[Finding]:
    found: list[Finding] = []
    for check in CHECKS:
        rows = await database.fetch(check.statement, *([settled] if "$1" in check.statement else []))
        if rows:
            examples = [row[0] for row in rows[:MOST_EXAMPLES]]
            finding = Finding(database.application, check.name, check.problem, check.advice, len(rows), examples)
            found.append(finding)
    return found
