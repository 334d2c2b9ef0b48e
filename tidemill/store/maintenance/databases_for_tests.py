"""Databases for tests: cloned from a migrated template in some milliseconds, each with a clock that tests move.

A test database looks up `now()` in the schema `test_clock` before PostgreSQL's own. There it is the real time plus a
shift, so that every statement, default and function of Tidemill follows the clock of the test.
"""

from __future__ import annotations

import itertools
import os
import signal
from typing import Any

import asyncpg
import msgspec

from tidemill.store.connection.url import database_of, with_database
from tidemill.store.database import Database, DatabaseSettings
from tidemill.store.jobs.sweeps import FIND_THROTTLED
from tidemill.store.maintenance.work_left import COUNT_WORK, WorkLeft
from tidemill.store.migrate import migrate

CLOCK_FUNCTIONS = ("now", "transaction_timestamp", "statement_timestamp", "clock_timestamp")

MAKE_CLOCK = """
CREATE SCHEMA test_clock;
CREATE TABLE test_clock.shift (seconds float8 NOT NULL);
INSERT INTO test_clock.shift VALUES (0);
GRANT USAGE ON SCHEMA test_clock TO PUBLIC;
GRANT SELECT ON test_clock.shift TO PUBLIC;
""" + "".join(
    f"CREATE FUNCTION test_clock.{name}() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE AS "
    f"'SELECT pg_catalog.{name}() + make_interval(secs => seconds) FROM test_clock.shift';\n"
    for name in CLOCK_FUNCTIONS
)

SEARCH_PATH = "test_clock, pg_catalog, public"

SET_CLOCK = "UPDATE test_clock.shift SET seconds = $1"

#: Counts work that could go on now, and concurrency keys that jobs which are due are about to be let in by.
WORK_LEFT = f"SELECT *, (SELECT count(*) FROM ({FIND_THROTTLED}) AS keys) AS throttled FROM ({COUNT_WORK}) AS work"

#: Extends the leases of processes and of ranges of the log: their owners live in real time.
EXTEND_LEASES = """
WITH ranges AS (UPDATE tidemill.log_range SET lease_until = lease_until + make_interval(secs => $1))
UPDATE tidemill.worker
SET lease_until = lease_until + make_interval(secs => $1), seen_at = seen_at + make_interval(secs => $1)
WHERE ended_at IS NULL
"""

#: Ends all processes, which were killed: a sweep gives what they had to others.
END_PROCESSES = """
WITH ranges AS (UPDATE tidemill.log_range SET lease_until = now())
UPDATE tidemill.worker
SET lease_until = now(), ended_at = now(), end_reason = 'it was killed', status = 'ended', running = 0
WHERE ended_at IS NULL
"""

#: Seconds until the next moment at which something is due.
NEXT_DUE = """
SELECT extract(epoch FROM min(at) - now())::float8 FROM (
    SELECT min(due_at) AS at FROM tidemill.job WHERE state = 'ready' AND due_at > now()
    UNION ALL SELECT min(deadline) FROM tidemill.job WHERE deadline > now()
    UNION ALL SELECT min(start_at) FROM tidemill.run WHERE start_at > now()
    UNION ALL SELECT now() + make_interval(secs => min(1 / key_rate)) FROM tidemill.run
        WHERE rate_key IS NOT NULL AND start_at <= now() AND state = 'running'
    UNION ALL SELECT min(due_at) FROM tidemill.inbox WHERE due_at > now() AND NOT suspended
    UNION ALL SELECT min(due_at) FROM tidemill.stream_retry WHERE due_at > now()
    UNION ALL SELECT min(retry_at) FROM tidemill.state_failure WHERE retry_at > now()
    UNION ALL SELECT min(least(next_fire, check_at)) FROM tidemill.schedule
        WHERE least(next_fire, check_at) > now() AND NOT paused
    UNION ALL SELECT to_timestamp(min(due_at)) FROM tidemill.monitor_entity
        WHERE due_at > extract(epoch FROM now())
    UNION ALL SELECT min(realert_at) FROM tidemill.alert WHERE realert_at > now() AND resolved_at IS NULL) AS due
"""

#: Entities whose events or timers are not evaluated yet, and alerts that are to open again, of monitors that run.
COUNT_DUE_ENTITIES = """
SELECT count(*) FROM tidemill.monitor AS m JOIN tidemill.monitor_entity AS e ON e.monitor = m.name
WHERE NOT m.paused AND e.active AND (e.head > e.folded OR e.due_at <= extract(epoch FROM now()) OR EXISTS (
    SELECT FROM tidemill.alert AS a WHERE a.monitor = e.monitor AND a.entity = e.entity AND a.resolved_at IS NULL
    AND a.realert_at <= now()))
"""

#: The jobs of a task, unfinished and finished, in the order in which they were enqueued.
JOBS_OF_TASK = """
SELECT id, state, queue, task, attempt, failures, losses, created_at, due_at, started_at, NULL AS finished_at, progress,
       note, args, NULL AS result, errors FROM tidemill.job WHERE task = $1
UNION ALL
SELECT id, state, queue, task, attempt, failures, losses, created_at, due_at, started_at, finished_at, NULL,
       note, args, result, errors FROM tidemill.job_history WHERE task = $1
ORDER BY id
"""

#: The messages of a topic of the log, in order.
PUBLISHED = "SELECT payload FROM tidemill.log_message WHERE topic = $1 ORDER BY position"


class TestDatabases:
    """Clones databases from a template on one server."""

    __test__ = False

    def __init__(self, url: str, *, durable: bool = True) -> None:
        """`durable=False` is for a server that only tests use: it does not wait for the disk."""
        self._url, self._durable = url, durable
        self._names = itertools.count(1)
        self._prefix = f"tidemill_test_{os.getpid()}"
        self._template = f"{self._prefix}_template"

    async def open(self) -> None:
        """Make the template."""
        self._admin = await asyncpg.connect(self._url)
        if not self._durable:
            await self._admin.execute("ALTER SYSTEM SET fsync = off")
            await self._admin.execute("SELECT pg_reload_conf()")
        await self._make(self._template, "template1")
        url = with_database(self._url, self._template)
        connection = await asyncpg.connect(url)
        await connection.execute(MAKE_CLOCK)
        await connection.close()
        async with Database(DatabaseSettings(url=url)) as database:
            await migrate(database)

    async def create(self) -> str:
        """The URL of a new, migrated database."""
        return await self._make(f"{self._prefix}_{next(self._names)}", self._template)

    async def drop(self, url: str) -> None:
        """Drop a database, with the connections to it."""
        await self._drop(database_of(url))

    async def close(self) -> None:
        await self._drop(self._template)
        await self._admin.close()

    async def _make(self, name: str, template: str) -> str:
        await self._admin.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        await self._admin.execute(f"ALTER DATABASE {name} SET search_path = {SEARCH_PATH}")
        return with_database(self._url, name)

    async def _drop(self, name: str) -> None:
        await self._admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


async def set_clock(database: Database, shift: float) -> None:
    """Let the clock of a test database be this many seconds ahead of the real time."""
    await database.run(lambda connection: connection.execute(SET_CLOCK, shift))


async def extend_leases(database: Database, seconds: float) -> None:
    """Let no lease lapse because the clock moves."""
    await database.run(lambda connection: connection.execute(database.sql(EXTEND_LEASES), seconds))


async def end_processes(database: Database) -> None:
    """End all processes, which were killed, without waiting for their leases."""
    await database.run(lambda connection: connection.execute(database.sql(END_PROCESSES)))


def die_after(statements: int) -> None:
    """Kill this process, without any clean-up, when it has run this many statements from now on."""
    left = itertools.count(statements - 1, -1)
    run_query = asyncpg.Connection._do_execute  # pyright: ignore[reportAttributeAccessIssue]  # Every statement passes it.

    async def counted(*args: Any, **options: Any) -> Any:
        done = await run_query(*args, **options)
        if next(left) <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    asyncpg.Connection._do_execute = counted  # pyright: ignore[reportAttributeAccessIssue]


async def next_due(database: Database) -> float | None:
    """Seconds until something is due; None if nothing waits for time."""
    rows = await database.fetch(NEXT_DUE)
    return rows[0][0]


async def count_due_entities(database: Database) -> int:
    """How many entities of monitors have something to evaluate now."""
    rows = await database.fetch(COUNT_DUE_ENTITIES)
    return rows[0][0]


async def count_owned_runs(database: Database) -> int:
    """How many runs a process has."""
    rows = await database.fetch("SELECT count(*) FROM tidemill.run WHERE state = 'running' AND owner IS NOT NULL")
    return rows[0][0]


async def count_work_left(database: Database) -> WorkLeft:
    """What could go on now, together with jobs that maintenance is about to let in; all of it at one moment."""
    (row,) = await database.fetch(WORK_LEFT, None)
    return WorkLeft(row["jobs"] + row["throttled"], row["runs"], row["messages"], row["schedules"])


async def list_jobs_of_task(database: Database, task: str) -> list[asyncpg.Record]:
    """The jobs of a task, unfinished and finished."""
    return await database.fetch(JOBS_OF_TASK, task)


async def read_published(database: Database, topic: str) -> list[Any]:
    """The messages of a topic: JSON as values, everything else as bytes."""
    return [_value(row["payload"]) for row in await database.fetch(PUBLISHED, topic)]


def _value(payload: bytes) -> Any:
    try:
        return msgspec.json.decode(payload)
    except msgspec.DecodeError:
        return payload
