"""The connections that an application may already have open: every driver behind one face, for tests to enqueue on."""

from __future__ import annotations

import inspect
import os
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import psycopg
from django import setup
from django.conf import settings
from django.db import connections
from django.db.backends.postgresql.base import DatabaseWrapper
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import DictRow, dict_row, scalar_row
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from tidemill import App, BatchHandle, JobHandle
from tidemill.store.connection.caller_connection import Statements, run_async, run_sync
from tidemill.store.database import Database


class Caller:
    """An application's own connection with an open transaction."""

    def __init__(self, connection: Any, *, plain: bool, clause: Callable[[str], Any] = str) -> None:
        self.connection = connection
        self.own = connection
        self._plain = plain
        self._clause = clause

    async def enqueue(self, app: App, task: Any, **options: Any) -> JobHandle[Any]:
        if self._plain:
            return app.enqueue_sync(task, conn=self.own, **options)
        return await app.enqueue(task, conn=self.own, **options)

    async def start(self, app: App, what: Any, **options: Any) -> Any:
        if self._plain:
            return app.start_sync(what, conn=self.own, **options)
        return await app.start(what, conn=self.own, **options)

    async def send_event(self, run: Any, event: Any, **options: Any) -> None:
        if self._plain:
            return run.send_event_sync(event, conn=self.own, **options)
        return await run.send_event(event, conn=self.own, **options)

    async def publish(self, app: App, topic: str, value: Any, **options: Any) -> None:
        if self._plain:
            return app.publish_sync(topic, value, conn=self.own, **options)
        return await app.publish(topic, value, conn=self.own, **options)

    async def enqueue_many(
        self, app: App, task: Any, calls: list[dict[str, Any]], **options: Any
    ) -> list[JobHandle[Any]]:
        if self._plain:
            return app.jobs.enqueue_many_sync((task.call(**call) for call in calls), conn=self.own, **options)
        return await app.enqueue_many(task, calls, conn=self.own, **options)

    async def batch(self, app: App, calls: Iterable[Any], **options: Any) -> BatchHandle[Any]:
        if self._plain:
            return app.jobs.batch_sync(calls, conn=self.own, **options)
        return await app.batch(calls, conn=self.own, **options)

    async def submit(self, app: App, run: Any, node: str, value: Any, **options: Any) -> bool:
        if self._plain:
            return app.submit_sync(run, node, value, conn=self.own, **options)
        return await app.submit(run, node, value, conn=self.own, **options)

    async def write_state(self, app: App, pattern: str, entity: Any, content: Any, **options: Any) -> str:
        if self._plain:
            return app.states().write_sync(pattern, entity, content, conn=self.own, **options)
        return await app.states().write(pattern, entity, content, conn=self.own, **options)

    @asynccontextmanager
    async def atomic(self, app: App) -> AsyncIterator[Any]:
        """A block of `app.atomic`, whose calls are awaited for plain connections, too."""
        if self._plain:
            with app.atomic_sync(self.own) as tx:
                yield _Awaited(tx)
        else:
            async with app.atomic(self.own) as tx:
                yield tx

    async def fetch(self, database: Database, statement: str) -> Any:
        """The rows of a statement on this connection."""

        def statements() -> Statements[Any]:
            return (yield statement, ())

        own = statements()
        return run_sync(database, self.own, own) if self._plain else await run_async(database, self.own, own)

    async def execute(self, statement: str) -> None:
        """Run a statement of the application's own."""
        await _settled(self.connection.execute(self._clause(statement)))

    async def commit(self) -> None:
        await _settled(self.connection.commit())

    async def rollback(self) -> None:
        await _settled(self.connection.rollback())


class _Awaited:
    """A plain block with the methods of an async one."""

    def __init__(self, block: Any) -> None:
        self._block = block

    async def enqueue(self, call: Any, **options: Any) -> Any:
        return self._block.enqueue(call, **options)


class AsyncpgCaller(Caller):
    """asyncpg has no implicit transaction: it is begun, committed and rolled back as any asyncpg user does."""

    async def begin(self) -> AsyncpgCaller:
        self._transaction = self.connection.transaction()
        await self._transaction.start()
        return self

    async def commit(self) -> None:
        await self._transaction.commit()
        await self.begin()

    async def rollback(self) -> None:
        await self._transaction.rollback()
        await self.begin()


@asynccontextmanager
async def psycopg_plain(url: str) -> AsyncIterator[Caller]:
    with psycopg.connect(url) as connection:
        yield Caller(connection, plain=True, clause=str.encode)


@asynccontextmanager
async def psycopg_async(url: str) -> AsyncIterator[Caller]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield Caller(connection, plain=False, clause=str.encode)


@asynccontextmanager
async def psycopg_with_scalar_rows(url: str) -> AsyncIterator[Caller]:
    """A connection whose rows are neither tuples nor have all columns."""
    with psycopg.Connection[Any].connect(url, row_factory=scalar_row) as connection:
        yield Caller(connection, plain=True, clause=str.encode)


@asynccontextmanager
async def psycopg_with_raw_queries(url: str) -> AsyncIterator[Caller]:
    """A connection whose statements have parameters such as `$1`, and whose rows are dicts."""
    async with await psycopg.AsyncConnection[DictRow].connect(url, row_factory=dict_row) as connection:
        connection.cursor_factory = psycopg.AsyncRawCursor[DictRow]
        yield Caller(connection, plain=False, clause=str.encode)


@asynccontextmanager
async def asyncpg_plain(url: str) -> AsyncIterator[Caller]:
    connection = await asyncpg.connect(url)
    yield await AsyncpgCaller(connection, plain=False).begin()
    connection.terminate()


@asynccontextmanager
async def asyncpg_pooled(url: str) -> AsyncIterator[Caller]:
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        caller = await AsyncpgCaller(connection, plain=False).begin()
        yield caller
        await caller._transaction.rollback()


@asynccontextmanager
async def sqlalchemy_core(url: str) -> AsyncIterator[Caller]:
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(url), poolclass=NullPool)
    with engine.connect() as connection:
        yield Caller(connection, plain=True, clause=text)


@asynccontextmanager
async def sqlalchemy_session(url: str) -> AsyncIterator[Caller]:
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(url), poolclass=NullPool)
    with Session(engine) as session:
        yield Caller(session, plain=True, clause=text)


@asynccontextmanager
async def sqlalchemy_async_core(url: str) -> AsyncIterator[Caller]:
    async with _async_engine(url).connect() as connection:
        yield Caller(connection, plain=False, clause=text)


@asynccontextmanager
async def sqlalchemy_async_session(url: str) -> AsyncIterator[Caller]:
    async with AsyncSession(_async_engine(url)) as session:
        yield Caller(session, plain=False, clause=text)


@asynccontextmanager
async def django(url: str) -> AsyncIterator[Caller]:
    """Django's own connection; `transaction.atomic` finds it by its alias."""
    if not settings.configured:
        settings.configure(DATABASES={"default": {}})
        setup()
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"  # These tests are coroutines.
    known = conninfo_to_dict(url)
    given = {name: known.get(name.lower(), "") for name in ("USER", "PASSWORD", "HOST", "PORT")}
    connection = DatabaseWrapper({
        **connections["default"].settings_dict, **given, "NAME": known["dbname"], "OPTIONS": {},
    })  # fmt: skip
    connections["default"] = connection
    connection.set_autocommit(False)
    yield DjangoCaller(connection, plain=True)
    connection.close()


class DjangoCaller(Caller):
    async def execute(self, statement: str) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(statement)


class NoConnection(Caller):
    """No connection of the caller's own: what is started is committed when the call returns."""

    def __init__(self, url: str, *, plain: bool) -> None:
        super().__init__(None, plain=plain)
        self._url = url

    async def fetch(self, database: Database, statement: str) -> Any:
        with psycopg.connect(self._url) as connection:
            return connection.execute(database.sql(statement).encode()).fetchall()

    async def rollback(self) -> None: ...


@asynccontextmanager
async def without_connection(url: str) -> AsyncIterator[Caller]:
    yield NoConnection(url, plain=False)


@asynccontextmanager
async def plain_without_connection(url: str) -> AsyncIterator[Caller]:
    yield NoConnection(url, plain=True)


CALLERS = {
    "Django": django,
    "psycopg": psycopg_plain,
    "psycopg async": psycopg_async,
    "psycopg with scalar rows": psycopg_with_scalar_rows,
    "psycopg async with raw queries": psycopg_with_raw_queries,
    "asyncpg": asyncpg_plain,
    "asyncpg pool": asyncpg_pooled,
    "SQLAlchemy Core": sqlalchemy_core,
    "SQLAlchemy Session": sqlalchemy_session,
    "SQLAlchemy AsyncConnection on asyncpg": sqlalchemy_async_core,
    "SQLAlchemy AsyncSession on asyncpg": sqlalchemy_async_session,
}


def _async_engine(url: str) -> Any:
    return create_async_engine("postgresql+asyncpg://", async_creator=lambda: asyncpg.connect(url), poolclass=NullPool)


async def _settled(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer
