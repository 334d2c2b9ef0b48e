"""Sending to runs: what a process sends at the same time is stored by one statement, with one notification.

    if not await send_together(database, 7, tick):      # the run is locked, has ended or does not exist
        ...                                             # send it by itself

A commit that notifies waits for all others that do: single sends would be committed one after the other.
"""

from __future__ import annotations

import asyncio
from typing import Any
from weakref import WeakKeyDictionary

from tidemill.core.errors import StoreError
from tidemill.store.database import Database
from tidemill.store.database_errors import is_unavailable

MOST_AT_ONCE = 500

#: Puts ticks into the inboxes of runs that nothing else locks, and wakes them; returns those runs. It waits for no lock
#: while it holds others.
SEND_TOGETHER = """
WITH held AS MATERIALIZED (
    SELECT id FROM tidemill.run WHERE id = ANY ($1::bigint[]) AND state IN ('running', 'needs_attention')
    ORDER BY id FOR NO KEY UPDATE SKIP LOCKED),
woken AS (UPDATE tidemill.run SET awake = start_at IS NULL WHERE id = ANY (ARRAY(SELECT id FROM held))),
put AS (
    INSERT INTO tidemill.inbox (run_id, data)
    SELECT run_id, data
    FROM ROWS FROM (unnest($1::bigint[]), json_array_elements($2::json)) WITH ORDINALITY AS s(run_id, data, place)
    WHERE run_id IN (SELECT id FROM held) ORDER BY place RETURNING run_id)
SELECT run_id, pg_notify('tidemill_runs', '') FROM put
"""


class RunSends:
    """What one process sends to runs in one database."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, bytes, asyncio.Future[bool]]] = []
        self._task: asyncio.Task[None] | None = None

    async def send(self, database: Database, run_id: int, tick: bytes) -> bool:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._send_all(database), name="tidemill-sends")
        sent: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((run_id, tick, sent))
        return await sent

    async def _send_all(self, database: Database) -> None:
        while self._waiting:
            sends, self._waiting = self._waiting[:MOST_AT_ONCE], self._waiting[MOST_AT_ONCE:]
            sends = [each for each in sends if not each[2].done()]
            try:
                arrived = await _send(database, sends) if len(sends) > 1 else set[int]()
            except BaseException as error:
                for _, _, sent in sends:
                    _settle(sent, error)
                if not isinstance(error, Exception):
                    raise
            else:
                for run_id, _, sent in sends:
                    _settle(sent, run_id in arrived)


async def _send(database: Database, sends: list[tuple[int, bytes, Any]]) -> set[int]:
    ticks = b"[" + b",".join(tick for _, tick, _ in sends) + b"]"
    try:
        async with database.transaction(patience=30.0) as connection:
            rows = await connection.fetch(database.sql(SEND_TOGETHER), [run_id for run_id, _, _ in sends], ticks)
        return {row["run_id"] for row in rows}
    except Exception as error:
        if is_unavailable(error) or isinstance(error, StoreError):
            raise
        return set()  # The database refuses one of them: the caller sends each by itself.


def _settle(sent: asyncio.Future[bool], outcome: bool | BaseException) -> None:
    if sent.done():
        return
    if isinstance(outcome, Exception):
        sent.set_exception(outcome)
    elif isinstance(outcome, BaseException):
        sent.cancel()
    else:
        sent.set_result(outcome)


_SENDS: WeakKeyDictionary[Database, RunSends] = WeakKeyDictionary()


async def send_together(database: Database, run_id: int, tick: bytes) -> bool:
    """Put a tick into a run's inbox, together with others; False if it has to be sent by itself."""
    found = _SENDS.get(database)
    if found is None:
        found = _SENDS[database] = RunSends()
    return await found.send(database, run_id, tick)
