"""Operations on the database: for the application, for local commands, and for the server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

import asyncpg
import msgspec

from tidemill.core.accounts import READS_PAYLOADS, Caller, check_role
from tidemill.core.codec import decode
from tidemill.core.errors import ConfigError, ForbiddenError, PayloadError
from tidemill.ops.operator.operation import A, Operation, R
from tidemill.store.access.idempotency import IdempotencyKey, check_key, keep_answer
from tidemill.store.change_log import ChangeListener
from tidemill.store.database import Database
from tidemill.store.large_values import read_whole, value_place
from tidemill.store.transaction import Reader, Transaction

if TYPE_CHECKING:
    from tidemill.declarations import Declarations

T = TypeVar("T")

#: What the database or the codec say of values that no column can hold.
_UNSTORABLE = (asyncpg.DataError, UnicodeEncodeError, OverflowError, RecursionError)


class Encoded(msgspec.Struct, frozen=True):
    """A result that is JSON already, so that the server need not read and write it again."""

    json: bytes


def encoded(json: bytes, kind: type[T]) -> T:
    """JSON in place of the Struct that it holds, for an operation that declares this result."""
    return cast(T, Encoded(json))


class Local(msgspec.Struct, frozen=True, eq=False):
    """Does operations on a database in the name of one caller.

    With an idempotency `key`, an operation that was done before raises `AnsweredError`. The key is claimed in the first
    transaction of the operation, and the answer of an operation with one transaction is kept in it.
    """

    database: Database
    caller: Caller
    declared: Declarations | None = None
    key: IdempotencyKey | None = None

    @property
    def where(self) -> str:
        return self.database.where

    async def do(self, operation: Operation[A, R], args: A, /) -> R:
        """Do an operation, after the caller's role and the arguments have been checked."""
        result = await self._run(operation, operation.check(args))
        return decode(result.json, operation.result) if isinstance(result, Encoded) else result

    async def answer(self, operation: Operation[A, Any], args: A, /) -> bytes:
        """The result as JSON; the arguments have been checked by the code that read them."""
        result = await self._run(operation, args)
        return result.json if isinstance(result, Encoded) else msgspec.json.encode(result)

    async def read_value(self, place: str) -> AsyncIterator[bytes]:
        """A value that is too large for an answer, in pieces."""
        async for piece in read_whole(await self.readable(), *value_place(place)):
            yield piece

    async def readable(self) -> Database:
        """The database as the caller may read it: sealed payloads are opened for operators."""
        return await self.database.opening() if self.caller.may(READS_PAYLOADS) else self.database

    @asynccontextmanager
    async def watch(self, *topics: str) -> AsyncIterator[ChangeListener]:
        """Follow changes while the block lasts. Every change in the database ends a wait, whatever the topics."""
        async with ChangeListener(self.database) as listener:
            yield listener

    async def _run(self, operation: Operation[A, Any], args: A) -> Any:
        check_role(self.caller, operation.role)
        if operation.needs_application and self.declared is None:
            raise ConfigError(
                "this needs the application's code: name it (--app app.py), or work through its server (--server URL)"
            )
        more = (self.declared,) if operation.takes_application else ()
        key = None
        if self.key is not None and operation.acts and not operation.secret:
            key = msgspec.structs.replace(self.key, repeatable=operation.preview is not None)
        database = await self.readable()
        reader = Reader(database, self.caller.name, caller=self.caller, key=key)
        try:
            if operation.writes:
                async with reader.transaction() as tx:
                    result = await operation.run(tx, args, *more)
                    await self._keep(tx, key, operation, result)
            else:
                if key is not None:  # An operation that finds nothing left to change opens no transaction.
                    await check_key(self.database, key)
                result = await operation.run(reader, args, *more)
                if key is not None:
                    async with reader.transaction() as tx:
                        await self._keep(tx, key, operation, result)
            return result
        except PayloadError as error:
            if self.database.opens or self.database.codec is None or self.caller.may(READS_PAYLOADS):
                raise
            raise ForbiddenError(
                f"{operation.name} needs to read payloads, which are sealed: this needs the role {READS_PAYLOADS}"
            ) from error
        except _UNSTORABLE as error:
            raise ConfigError(" ".join(str(error).split()) or type(error).__name__) from error

    async def _keep(
        self, tx: Transaction, key: IdempotencyKey | None, operation: Operation[Any, Any], result: Any
    ) -> None:
        if key is not None:
            body = result.json if isinstance(result, Encoded) else msgspec.json.encode(result)
            await keep_answer(self.database, tx.connection, key, operation.status, body)
