"""Telemetry in the database: samples of hosts for a day, totals of ended work, gauges of processes.

One process samples each host: it holds the host's row until it stops renewing it. One statement writes a sample,
deletes old ones and notifies the live views. Every process adds to the totals every few seconds in one statement, so
the totals outlive the processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import asyncpg

from tidemill.core.codec import decode, encode
from tidemill.core.errors import StoreError
from tidemill.store.database import Database, Executor, columns
from tidemill.store.jobs.batches.batches import count_unfinished_batches
from tidemill.store.jobs.queues import LIVE_AND_SERVED
from tidemill.store.streams.streams import read_status
from tidemill.store.telemetry.history import ADD_WORK, TASK_WAIT, forget_work, work_of

KEPT = 86_400.0
RECENT = 60.0
FORGET_AT_ONCE = 20

#: Writes a sample of a host, unless another process has sampled it within the last `$4` seconds. Deletes a few old
#: samples of the same host. Returns our processes on it, or nothing if another process samples it.
WRITE_SAMPLE = f"""
WITH mine AS (
    INSERT INTO installation.host AS h (name, sampler) VALUES ($1, $2)
    ON CONFLICT (name) DO UPDATE SET sampler = excluded.sampler, at = excluded.at
        WHERE h.sampler IN (excluded.sampler, '') OR h.at < now() - make_interval(secs => $4)
    RETURNING name, at),
kept AS (
    INSERT INTO installation.host_sample (host, at, data) SELECT name, at, $3 FROM mine
    ON CONFLICT (host, at) DO NOTHING),
forgotten AS (
    DELETE FROM installation.host_sample WHERE EXISTS (SELECT FROM mine) AND ctid = ANY (ARRAY(
        SELECT ctid FROM installation.host_sample WHERE host = $1 AND at < now() - make_interval(secs => $5)
        ORDER BY at LIMIT {FORGET_AT_ONCE})))
SELECT ARRAY(
    SELECT pid FROM tidemill.process WHERE host = $1 AND seen_at > now() - interval '1 minute'
    UNION SELECT pid FROM tidemill.worker WHERE host = $1 AND ended_at IS NULL) AS pids
FROM mine
"""

#: Whether a process may sample a host: no other process does.
MAY_SAMPLE = """
SELECT NOT EXISTS (SELECT FROM installation.host WHERE name = $1 AND sampler NOT IN ($2, '')
                   AND at >= now() - make_interval(secs => $3)) AS free
"""

#: Lets another process of the host sample it.
LEAVE_SAMPLING = "UPDATE installation.host SET sampler = '' WHERE name = $1 AND sampler = $2"

#: Every host that was sampled in the last `$1` seconds, with its newest sample.
LIST_HOSTS = """
SELECT h.name AS host, s.at, s.data, extract(epoch FROM now() - s.at)::float8 AS age
FROM installation.host AS h CROSS JOIN LATERAL (
    SELECT at, data FROM installation.host_sample WHERE host = h.name ORDER BY at DESC LIMIT 1) AS s
WHERE s.at > now() - make_interval(secs => $1) ORDER BY h.name
"""

#: The samples of one host within the last `$2` seconds, thinned to one every `$3` seconds, oldest first.
READ_SAMPLES = """
SELECT DISTINCT ON (slot) at, data FROM (
    SELECT at, data, floor(extract(epoch FROM at) / $3) AS slot FROM installation.host_sample
    WHERE host = $1 AND at > now() - make_interval(secs => $2)) AS samples
ORDER BY slot, at
"""

#: Adds the counts of a process since its last report, and stores its gauges. Rows are sorted, so that two processes
#: never deadlock.
REPORT = f"""
WITH me AS (
    INSERT INTO tidemill.process (host, pid, role, gauges) VALUES ($1, $2, $3, $4)
    ON CONFLICT (host, pid, role) DO UPDATE SET seen_at = now(), gauges = excluded.gauges),
work AS ({ADD_WORK})
INSERT INTO tidemill.meter AS m (name, labels, value)
SELECT * FROM unnest($5::text[], $6::text[], $7::float8[]) ORDER BY 1, 2
ON CONFLICT (name, labels) DO UPDATE SET value = m.value + excluded.value, at = now()
"""

#: Removes the gauges of a process that ends.
LEAVE = "DELETE FROM tidemill.process WHERE host = $1 AND pid = $2 AND role = $3"

#: All totals.
READ_TOTALS = "SELECT name, labels, value FROM tidemill.meter ORDER BY name, labels"

#: Processes that have reported lately.
LIST_PROCESSES = """
SELECT host, pid, role, gauges FROM tidemill.process WHERE seen_at > now() - make_interval(secs => $1)
ORDER BY host, pid, role
"""

#: The unfinished jobs of every queue, and how many jobs a worker runs at once (the default if none is alive).
#: Finished jobs are not counted: there may be many.
QUEUE_DEPTHS = f"""
WITH {LIVE_AND_SERVED}
SELECT queue, coalesce(waiting, 0) AS waiting, coalesce(scheduled, 0) AS scheduled,
       coalesce(throttled, 0) AS throttled, coalesce(no_worker, 0) AS no_worker,
       coalesce(running, 0) AS running, coalesce(oldest, 0) AS oldest, coalesce(workers, 0) AS workers,
       greatest(coalesce(slots, 10), 1) AS slots
FROM live FULL JOIN served USING (queue) ORDER BY queue
"""

#: Workers that are alive, and silent ones; and the threads that have not come back in all of them.
COUNT_WORKERS = """
SELECT count(*) FILTER (WHERE lease_until > now() AND flagged_at IS NULL) AS alive,
       count(*) FILTER (WHERE lease_until <= now() OR flagged_at IS NOT NULL) AS silent,
       coalesce(sum(lost_threads), 0) AS lost_threads
FROM tidemill.worker WHERE ended_at IS NULL
"""

#: Deletes what is no longer updated: stopped hosts, killed processes, totals of removed tasks.
FORGET_SAMPLES = """
DELETE FROM installation.host_sample WHERE ctid = ANY (ARRAY(
    SELECT s.ctid FROM installation.host AS h CROSS JOIN LATERAL (
        SELECT ctid FROM installation.host_sample
        WHERE host = h.name AND at < now() - make_interval(secs => $1) ORDER BY at LIMIT 5000) AS s))
"""
FORGET_HOSTS = """
DELETE FROM installation.host AS h WHERE at < now() - make_interval(secs => $1)
  AND NOT EXISTS (SELECT FROM installation.host_sample WHERE host = h.name)
"""
FORGET_PROCESSES = "DELETE FROM tidemill.process WHERE seen_at < now() - interval '10 minutes'"
FORGET_TOTALS = "DELETE FROM tidemill.meter WHERE at < now() - interval '30 days'"

#: A count's name and its labels, in the fixed order of that name.
Key = tuple[str, tuple[str, ...]]


class ProcessPlace(NamedTuple):
    """The identity of a process: its host, process id and role."""

    host: str
    pid: int
    role: str


class Totals(NamedTuple):
    """Everything that `/metrics` shows, read at one time."""

    queues: list[asyncpg.Record]
    workers: asyncpg.Record
    hosts: list[asyncpg.Record]
    processes: list[asyncpg.Record]
    counts: dict[Key, float]
    streams: Sequence[asyncpg.Record] = ()
    batches: asyncpg.Record | None = None


async def may_sample(database: Database, host: str, sampler: str, *, lease: float) -> bool:
    """Whether no other process samples this host."""
    row = await database.fetchrow(MAY_SAMPLE, host, sampler, lease, patience=None)
    return row is not None and row["free"]


async def write_sample(
    database: Database, host: str, sampler: str, data: bytes, *, lease: float, kept: float = KEPT
) -> list[int] | None:
    """Store a sample of a host; returns our processes on it, or None if another process samples it."""
    row = await database.fetchrow(WRITE_SAMPLE, host, sampler, data, lease, kept, patience=None)
    return None if row is None else list(row["pids"])


async def leave_sampling(database: Database, host: str, sampler: str) -> None:
    """Let another process sample this host at once."""
    await database.fetch(LEAVE_SAMPLING, host, sampler, patience=2.0)


async def list_hosts(database: Database, *, within: float = 60.0) -> list[asyncpg.Record]:
    """The hosts with recent samples, each with its newest one."""
    return await database.fetch(LIST_HOSTS, within)


async def read_samples(
    database: Database, host: str, *, within: float = 3600.0, every: float = 1.0
) -> list[asyncpg.Record]:
    """The samples of a host, oldest first, at most one per `every` seconds."""
    return await database.fetch(READ_SAMPLES, host, within, every)


async def report(
    database: Database,
    place: ProcessPlace,
    gauges: Mapping[str, object],
    counts: Mapping[Key, float],
    *,
    connection: Executor | None = None,
) -> None:
    """Add a process's counts to the totals, and store its gauges."""
    rows = [(name, encode(labels).decode(), value) for (name, labels), value in counts.items() if name != TASK_WAIT]
    parameters = (*place, encode(gauges), *columns(rows, 3), encode(work_of(place.host, place.pid, counts)))
    if connection is not None:
        await connection.execute(database.sql(REPORT), *parameters)
    else:
        await database.fetch(REPORT, *parameters, patience=2.0)


async def leave(database: Database, place: ProcessPlace) -> None:
    """Remove the gauges of a process that has ended."""
    await database.fetch(LEAVE, *place, patience=2.0)


async def read_totals(database: Database) -> Totals:
    """All current totals and gauges."""
    counts: dict[Key, float] = {}
    try:
        rows = await database.fetch(READ_TOTALS)
    except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError) as error:
        raise StoreError("there is no schema yet: run `tidemill db migrate` or `tidemill maintenance`") from error
    for row in rows:
        counts[row["name"], tuple(decode(row["labels"], list[str]))] = row["value"]
    workers = await database.fetch(COUNT_WORKERS)
    return Totals(
        queues=await database.fetch(QUEUE_DEPTHS),
        workers=workers[0],
        hosts=await list_hosts(database, within=RECENT),
        processes=await database.fetch(LIST_PROCESSES, RECENT),
        counts=counts,
        streams=await read_status(database),
        batches=await count_unfinished_batches(database),
    )


async def forget_telemetry(database: Database) -> None:
    """Delete telemetry that is no longer updated."""
    for statement, parameters in (
        (FORGET_SAMPLES, (KEPT,)),
        (FORGET_HOSTS, (KEPT,)),
        (FORGET_PROCESSES, ()),
        (FORGET_TOTALS, ()),
    ):
        await database.fetch(statement, *parameters)
    await forget_work(database)
