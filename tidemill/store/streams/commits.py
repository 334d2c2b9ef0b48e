"""Transactions that happen once, though the connection may be lost while they commit.

Each committer numbers its transactions, and a transaction begins by storing its number. If its answer is lost, it is
simply repeated: the number tells whether it was committed, and the row's lock waits for one that has not ended yet. No
transaction id is used: it means nothing in another cluster, nor in a standby that was promoted without the transaction.
"""

from __future__ import annotations

from uuid import UUID, uuid4

import msgspec

from tidemill.store.database import Database, Executor

#: Stores the number of a transaction; returns nothing if that one was committed.
BEGIN_COMMIT = """
INSERT INTO tidemill.stream_commit AS c (committer, number) VALUES ($1, $2)
ON CONFLICT (committer) DO UPDATE SET number = excluded.number, at = now() WHERE c.number <> excluded.number
RETURNING number
"""

#: Deletes the numbers of committers that have ended.
DROP_COMMITTERS = """
DELETE FROM tidemill.stream_commit WHERE committer = ANY ($1::uuid[]) OR at < now() - interval '1 day'
"""


class OnceCommitter(msgspec.Struct):
    """Runs one transaction at a time."""

    id: UUID = msgspec.field(default_factory=uuid4)
    number: int = 0

    def next(self) -> None:
        """Begin another transaction, which may be repeated until it is known to be committed."""
        self.number += 1

    async def is_new(self, database: Database, connection: Executor) -> bool:
        """Whether the transaction has its work still to do; to be called first in it."""
        return bool(await connection.fetch(database.sql(BEGIN_COMMIT), self.id, self.number))


async def drop_committers(database: Database, ids: list[UUID]) -> None:
    """Delete what is stored of these committers, and of those that have been silent for long."""
    await database.fetch(DROP_COMMITTERS, ids, patience=1.0)
