"""The transaction of an attempt at a job: what the task writes in it commits with the job's result, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tidemill.core.jobs.job import Finish
from tidemill.store.database import Connection, Database
from tidemill.store.jobs.batches.batch_end import end_batches
from tidemill.store.jobs.claims.claims import finish_jobs

PATIENCE = 30.0


class JobTransaction:
    """Opened when the task first asks for it; one statement in it finishes the job, if its worker still owns it."""

    def __init__(self, database: Database, worker_id: int) -> None:
        self._database = database
        self._worker_id = worker_id
        self._connection: Connection | None = None
        self._transaction: Any = None
        self._block = asyncio.Lock()
        self._owner: asyncio.Task[Any] | None = None

    @asynccontextmanager
    async def block(self) -> AsyncIterator[Connection]:
        """One block of the task's writes; those of other asyncio tasks wait, since savepoints only nest."""
        me = asyncio.current_task()
        if self._owner is me:
            async with (connection := await self.open()).transaction():
                yield connection
            return
        async with self._block:
            self._owner = me
            try:
                async with (connection := await self.open()).transaction():
                    yield connection
            finally:
                self._owner = None

    async def open(self) -> Connection:
        """The connection, in a transaction that stays open until the job has ended."""
        if self._connection is None:
            connection = await self._database.connect(patience=PATIENCE)
            self._transaction = connection.transaction()
            await self._transaction.start()
            self._connection = connection
        return self._connection

    async def commit(self, ended: Finish) -> bool:
        """Finish the job and commit; False, and nothing is written, if the worker no longer owns it.

        After a lost connection it is unknown whether this has committed; a later end of the same attempt then changes
        nothing, since the job is no longer running.
        """
        if self._connection is None or self._transaction is None:
            return False
        owned = await finish_jobs(self._database, self._connection, self._worker_id, [ended])
        await (self._transaction.commit() if owned else self._transaction.rollback())
        # Once more after the commit: only now does this see what other transactions have counted meanwhile.
        batches = [batch for batch in owned.values() if batch is not None]
        await end_batches(self._database, batches, self._connection)
        return bool(owned)

    def close(self) -> None:
        """Close the connection, which rolls back what is not committed."""
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None
