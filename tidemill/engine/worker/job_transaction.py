"""The transaction of an attempt at a job: what the task writes in it commits with the job's result, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

from tidemill.core.jobs.job import Finish
from tidemill.store.database import Connection, Database
from tidemill.store.jobs.batches.batch_end import end_batches
from tidemill.store.jobs.claims.claims import finish_jobs

PATIENCE = 30.0


class Block:
    """A block of writes, and the lock of those inside it: savepoints only nest, so blocks side by side take turns."""

    __slots__ = ("around", "is_over", "lock", "transaction")

    def __init__(self, transaction: JobTransaction, around: Block | None = None) -> None:
        self.transaction = transaction
        self.around = around
        self.lock = asyncio.Lock()
        self.is_over = False


#: The block in which the calling code, or the code that has started its asyncio task, has opened the last one.
_entered: ContextVar[Block] = ContextVar("tidemill_block")


class JobTransaction:
    """Opened when the task first asks for it; one statement in it finishes the job, if its worker still owns it."""

    def __init__(self, database: Database, worker_id: int) -> None:
        self._database = database
        self._worker_id = worker_id
        self._connection: Connection | None = None
        self._transaction: Any = None
        self._whole = Block(self)

    @asynccontextmanager
    async def block(self) -> AsyncIterator[Connection]:
        """One block of the task's writes, inside the block that the calling code is in."""
        while True:
            around = self._innermost()
            async with around.lock:
                if around.is_over:  # Its end came first.
                    continue
                async with (connection := await self.open()).transaction():
                    block = Block(self, around)
                    _entered.set(block)
                    try:
                        yield connection
                    finally:
                        async with block.lock:  # Tasks that it has not waited for may have blocks inside it.
                            block.is_over = True
                return

    def _innermost(self) -> Block:
        """The innermost block that the calling code is in."""
        block = _entered.get(self._whole)
        while block.is_over and block.around is not None:
            block = block.around
        return block if block.transaction is self else self._whole

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
