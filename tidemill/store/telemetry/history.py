"""What was done in each half hour of the last month, by task, by queue, by host and by worker process.

Every process adds to the current half hour with the statement that reports its counts, so that a name has a row only
while something happens. `ran` and `waited` are histograms over `BOUNDS`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal

import asyncpg
import msgspec

from tidemill.store.database import Database

#: Upper bounds of the histograms' buckets, in seconds: from an idle queue's latency to a night's work.
BOUNDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0,
)  # fmt: skip
BEYOND = "+Inf"

#: The length of a slot, and how long slots are kept.
SLOT = 1800
KEPT_DAYS = 31

Kind = Literal["task", "queue", "host", "worker"]

_PLACES = {bound: place for place, bound in enumerate((*map(str, BOUNDS), BEYOND))}
_FAILED = ("failed", "retried")

#: The count of how long jobs of a task had waited, for the history alone: metrics have it by queue.
TASK_WAIT = "task_wait"


def _added(column: str) -> str:
    return f"ARRAY(SELECT a + b FROM unnest(h.{column}, excluded.{column}) WITH ORDINALITY AS t (a, b, n) ORDER BY n)"


#: Adds the work of a process to the current slot: a part of the statement that reports its counts.
ADD_WORK = f"""
INSERT INTO tidemill.work_history AS h (at, kind, name, ended, failed, seconds, ran, waited)
SELECT date_bin('{SLOT} seconds', now(), 'epoch'), w.* FROM json_to_recordset($8::json) AS w (
    kind text, name text, ended bigint, failed bigint, seconds float8, ran integer[], waited integer[])
ORDER BY kind, name
ON CONFLICT (kind, name, at) DO UPDATE SET ended = h.ended + excluded.ended, failed = h.failed + excluded.failed,
    seconds = h.seconds + excluded.seconds, ran = {_added("ran")}, waited = {_added("waited")}
"""

#: The slots of one name since `$3`, oldest first.
READ_HISTORY = """
SELECT at, ended, failed, seconds, ran, waited FROM tidemill.work_history
WHERE kind = $1 AND name = $2 AND at >= $3 ORDER BY at
"""

#: The sums of every name since `$2`, those that took most time first.
READ_SUMS = """
WITH slots AS (SELECT * FROM tidemill.work_history WHERE kind = $1 AND at >= $2),
     sums AS (SELECT name, sum(ended)::bigint AS ended, sum(failed)::bigint AS failed, sum(seconds) AS seconds
              FROM slots GROUP BY name ORDER BY seconds DESC, name LIMIT $3)
SELECT s.*, ARRAY(SELECT sum(v)::bigint FROM slots AS o, unnest(o.ran) WITH ORDINALITY AS u (v, n)
                  WHERE o.name = s.name GROUP BY n ORDER BY n) AS ran
FROM sums AS s ORDER BY seconds DESC, name
"""

FORGET_WORK = f"DELETE FROM tidemill.work_history WHERE at < now() - interval '{KEPT_DAYS} days'"


class CountedWork(msgspec.Struct):
    """What a process did of one task, in one queue, or altogether since its last report."""

    kind: Kind
    name: str
    ended: int = 0
    failed: int = 0
    seconds: float = 0.0
    ran: list[int] = msgspec.field(default_factory=lambda: [0] * len(_PLACES))
    waited: list[int] = msgspec.field(default_factory=lambda: [0] * len(_PLACES))


def work_of(host: str, pid: int, counts: Mapping[tuple[str, tuple[str, ...]], float]) -> list[CountedWork]:
    """The counts of a process by task, queue, host and worker, which is named `host:pid`."""
    found: dict[tuple[Kind, str], CountedWork] = {}

    def of(kind: Kind, name: str) -> CountedWork:
        return found.setdefault((kind, name), CountedWork(kind, name))

    for (name, labels), value in counts.items():
        if name in ("ended", "run", "run_sum"):
            of_all = (of("queue", labels[0]), of("task", labels[1]), of("host", host), of("worker", f"{host}:{pid}"))
            for work in of_all:
                if name == "run":
                    work.ran[_PLACES[labels[2]]] += int(value)
                elif name == "run_sum":
                    work.seconds += value
                else:
                    work.ended += int(value)
                    work.failed += int(value) if labels[2] in _FAILED else 0
        elif name == "wait":
            for work in (of("queue", labels[0]), of("host", host), of("worker", f"{host}:{pid}")):
                work.waited[_PLACES[labels[1]]] += int(value)
        elif name == TASK_WAIT:
            of("task", labels[0]).waited[_PLACES[labels[1]]] += int(value)
    return list(found.values())


async def read_history(database: Database, kind: Kind, name: str, since: datetime) -> list[asyncpg.Record]:
    """The slots of a task, queue, host or worker, oldest first."""
    return await database.fetch(READ_HISTORY, kind, name, since)


async def read_sums(database: Database, kind: Kind, since: datetime, *, most: int) -> list[asyncpg.Record]:
    """The sums of all tasks, queues, hosts or workers, those that took most time first."""
    return await database.fetch(READ_SUMS, kind, since, most)


async def forget_work(database: Database) -> None:
    """Delete slots that are too old."""
    await database.fetch(FORGET_WORK)


def within(histogram: Sequence[int], part: float) -> float | None:
    """The bound within which this part of the times falls; None beyond the last one, or without any."""
    wanted, so_far = sum(histogram) * part, 0
    for bound, number in zip(BOUNDS, histogram, strict=False):
        so_far += number
        if so_far >= wanted > 0:
            return bound
    return None
