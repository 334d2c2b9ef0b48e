"""Starting runs: what a process starts at the same time is stored by one statement, with one notification.

    number = await start_together(database, new)

A commit that notifies waits for all others that do: single starts would be committed and claimed one by one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from tidemill.core.errors import StoreError
from tidemill.store.database import Database, columns
from tidemill.store.database_errors import is_unavailable
from tidemill.store.runs.run_turn import NewRun
from tidemill.store.runs.runs import OWN_KEY, new_token, store_run

MOST_AT_ONCE = 200
MOST_BYTES = 4 * 1024 * 1024

#: Stores new runs, each under a key of its own: it is stored once, even if the first response was lost.
START_TOGETHER = """
WITH given AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::json[], $6::json[])
        WITH ORDINALITY AS g(key, kind, workflow, version, input, origin, place)),
made AS (
    INSERT INTO tidemill.run (key, kind, workflow, version, input, origin)
    SELECT key, kind, workflow, version, input, origin FROM given ORDER BY place
    ON CONFLICT (workflow, key) WHERE key IS NOT NULL DO NOTHING RETURNING key, id)
SELECT key, id, pg_notify('tidemill_runs', '') FROM made
UNION ALL
SELECT g.key, r.id, NULL FROM given AS g CROSS JOIN LATERAL (
    SELECT id FROM tidemill.run WHERE workflow = g.workflow AND key = g.key LIMIT 1) AS r
WHERE g.key NOT IN (SELECT key FROM made)
"""


class RunStarts:
    """The runs that one process starts in one database."""

    def __init__(self) -> None:
        self._waiting: list[tuple[NewRun, asyncio.Future[int]]] = []
        self._task: asyncio.Task[None] | None = None

    async def start(self, database: Database, new: NewRun) -> int:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._start_all(database), name="tidemill-starts")
        stored: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append((new, stored))
        return await stored

    async def _start_all(self, database: Database) -> None:
        while starts := self._take():
            try:
                numbers = await _store(database, [new for new, _ in starts])
            except BaseException as error:
                for _, stored in starts:
                    if not stored.done():
                        stored.set_exception(error) if isinstance(error, Exception) else stored.cancel()
                if not isinstance(error, Exception):
                    raise
            else:
                for (_, stored), number in zip(starts, numbers, strict=True):
                    if stored.done():
                        continue
                    if isinstance(number, BaseException):
                        stored.set_exception(number)
                    else:
                        stored.set_result(number)

    def _take(self) -> list[tuple[NewRun, asyncio.Future[int]]]:
        """The next starts that go into one statement; those that were given up before are left out."""
        self._waiting = [each for each in self._waiting if not each[1].done()]
        count, size = 0, 0
        while count < min(len(self._waiting), MOST_AT_ONCE) and (count == 0 or size < MOST_BYTES):
            size += len(self._waiting[count][0].input)
            count += 1
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return taken


async def _store(database: Database, runs: Sequence[NewRun]) -> Sequence[int | BaseException]:
    """The ids of new runs, or the error of one that the database refuses."""
    if len(runs) > 1:
        try:
            return await _store_together(database, runs)
        except Exception as error:
            if is_unavailable(error) or isinstance(error, StoreError):
                raise  # The runs may or may not be stored.
    alone = await asyncio.gather(*(store_run(database, new) for new in runs), return_exceptions=True)
    return [each if isinstance(each, BaseException) else each[0] for each in alone]


async def _store_together(database: Database, runs: Sequence[NewRun]) -> list[int]:
    keys = [OWN_KEY + new_token() for _ in runs]
    rows = [(new.kind, new.workflow, new.version, database.seal(bytes(new.input)), new.origin) for new in runs]
    numbers: dict[str, int] = {}
    while len(numbers) < len(runs):  # Repeated while an attempt whose response was lost is still being committed.
        found = await database.fetch(START_TOGETHER, keys, *columns(rows, 5))
        numbers = {row["key"]: row["id"] for row in found}
    return [numbers[key] for key in keys]


_STARTS: WeakKeyDictionary[Database, RunStarts] = WeakKeyDictionary()


async def start_together(database: Database, new: NewRun) -> int:
    """Store a new run that may begin at once, together with others; returns its id."""
    found = _STARTS.get(database)
    if found is None:
        found = _STARTS[database] = RunStarts()
    return await found.start(database, new)
