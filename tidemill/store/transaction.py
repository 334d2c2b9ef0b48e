"""Database access on behalf of a caller: `Reader` reads, `Transaction` writes and records the audit trail."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from tidemill.core.accounts import AccountRole, Caller
from tidemill.store.access.audit import write_audit
from tidemill.store.access.idempotency import IdempotencyKey, claim_key
from tidemill.store.database import Database, Executor

PATIENCE = 30.0


class Reader:
    """Reads on behalf of a caller, and opens transactions for changes that commit in batches."""

    __slots__ = ("_unclaimed", "by", "caller", "database")

    def __init__(
        self, database: Database, by: str, *, caller: Caller | None = None, key: IdempotencyKey | None = None
    ) -> None:
        self.database = database
        self.by = by
        self.caller = caller
        self._unclaimed = key

    def may(self, role: AccountRole) -> bool:
        """Whether the caller has a role."""
        return self.caller is not None and self.caller.may(role)

    async def fetch(self, statement: str, *args: Any) -> list[asyncpg.Record]:
        return await self.database.fetch(statement, *args)

    async def fetchrow(self, statement: str, *args: Any) -> asyncpg.Record | None:
        return await self.database.fetchrow(statement, *args)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """A transaction that commits when the block ends without an error. The first one claims the idempotency key."""
        async with self.database.transaction(patience=PATIENCE) as connection:
            if self._unclaimed is not None:
                await claim_key(self.database, connection, self._unclaimed)
            yield Transaction(self.database, connection, self.by, caller=self.caller)
        self._unclaimed = None


class Transaction:
    """An open transaction, and the caller on whose behalf it changes something."""

    __slots__ = ("by", "caller", "connection", "database")

    def __init__(self, database: Database, connection: Executor, by: str, *, caller: Caller | None = None) -> None:
        self.database = database
        self.connection = connection
        self.by = by
        self.caller = caller

    def may(self, role: AccountRole) -> bool:
        """Whether the caller has a role."""
        return self.caller is not None and self.caller.may(role)

    async def fetch(self, statement: str, *args: Any) -> list[asyncpg.Record]:
        return await self.connection.fetch(self.database.sql(statement), *args)

    async def fetchrow(self, statement: str, *args: Any) -> asyncpg.Record | None:
        return await self.connection.fetchrow(self.database.sql(statement), *args)

    async def fetchval(self, statement: str, *args: Any) -> Any:
        return await self.connection.fetchval(self.database.sql(statement), *args)

    async def execute(self, statement: str, *args: Any) -> str:
        return await self.connection.execute(self.database.sql(statement), *args)

    async def audit(self, action: str, target: str, *, before: object = None, after: object = None) -> None:
        """Record what the caller did to which object; the entry commits with the change."""
        await write_audit(
            self.database, self.connection, who=self.by, action=action, target=target, before=before, after=after
        )


@asynccontextmanager
async def transaction(database: Database, *, by: str) -> AsyncIterator[Transaction]:
    """A transaction on behalf of `by`, for code that has no `Reader`."""
    async with Reader(database, by).transaction() as tx:
        yield tx
