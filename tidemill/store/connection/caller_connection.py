"""Statements on the caller's own connection: what they store exists if and only if the caller's transaction commits.

Accepts an open asyncpg or psycopg connection (sync or async), an SQLAlchemy connection or session (sync or async), or
Django's connection. The transaction belongs to the caller: this module never commits or rolls back.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import Any, TypeVar

from tidemill.core.errors import ConfigError, SchemaError
from tidemill.store.database import LIST_APPLICATIONS, Database

T = TypeVar("T")

Rows = Sequence[Sequence[Any]]

_PSYCOPG_IDLE = 0

#: The SQLSTATE of a table or a schema that does not exist.
_NO_TABLE = ("42P01", "3F000")

#: Statements for any driver: yields each with its parameters, which are text, numbers or lists of them, and receives
#: its rows.
Statements = Generator[tuple[str, tuple[Any, ...]], Rows, T]


async def run_async(database: Database, connection: Any, statements: Statements[T]) -> T:
    """Run statements on a caller's async connection."""
    kind, generator, rows = _kind(connection), _located(database, statements), None
    if kind not in _FETCH_ASYNC:
        raise ConfigError(
            f"a {kind} connection is not async: use the form for plain code, such as "
            "`app.enqueue_sync(..., conn=conn)` or `app.start_sync(..., conn=conn)`"
        )
    async with nested_async(connection) if _commits_each(kind, connection) else nullcontext():
        with _naming_its_database(database):
            try:
                while True:
                    rows = await _FETCH_ASYNC[kind](connection, *_next_statement(database, generator, rows))
            except StopIteration as done:
                return done.value


def run_sync(database: Database, connection: Any, statements: Statements[T]) -> T:
    """Run statements on a caller's sync connection."""
    kind, generator, rows = _kind(connection), _located(database, statements), None
    if kind not in _FETCH_SYNC:
        raise ConfigError(
            f"a {kind} connection is async: use the form for async code, such as "
            "`await app.enqueue(..., conn=conn)` or `await app.start(..., conn=conn)`"
        )
    block = nested_sync(connection) if _commits_each(kind, connection) else nullcontext()
    with _naming_its_database(database), block:
        try:
            while True:
                rows = _FETCH_SYNC[kind](connection, *_next_statement(database, generator, rows))
        except StopIteration as done:
            return done.value


def nested_async(connection: Any) -> Any:
    """A block on a caller's async connection that is rolled back as a whole: a transaction, or a savepoint in one."""
    kind = _kind(connection)
    if kind == "sqlalchemy async":
        return _nested_sqlalchemy_async(_session_of(connection))
    if kind not in _FETCH_ASYNC:
        raise ConfigError(f"a {kind} connection is not async: use `with app.atomic_sync(conn)`")
    return connection.transaction()


def nested_sync(connection: Any) -> Any:
    """The same on a caller's sync connection."""
    kind = _kind(connection)
    if kind == "django":
        from django.db.transaction import atomic  # pyright: ignore[reportMissingImports] - the caller has it

        return atomic(using=connection.alias)
    if kind == "sqlalchemy":
        return _nested_sqlalchemy(_session_of(connection))
    if kind not in _FETCH_SYNC:
        raise ConfigError(f"a {kind} connection is async: use `async with app.atomic(conn)`")
    return connection.transaction()


@contextmanager
def _nested_sqlalchemy(connection: Any) -> Iterator[None]:
    from sqlalchemy.engine import Connection

    def refuse_autocommit() -> None:
        _refuse_autocommit(connection if isinstance(connection, Connection) else connection.connection())

    if is_open := connection.in_transaction():
        refuse_autocommit()  # it cannot even make a savepoint
    with connection.begin_nested() if is_open else connection.begin():
        refuse_autocommit()
        yield


@asynccontextmanager
async def _nested_sqlalchemy_async(connection: Any) -> AsyncIterator[None]:
    from sqlalchemy.ext.asyncio import AsyncConnection

    async def refuse_autocommit() -> None:
        core = connection if isinstance(connection, AsyncConnection) else await connection.connection()
        _refuse_autocommit(core.sync_connection)

    if is_open := connection.in_transaction():
        await refuse_autocommit()  # it cannot even make a savepoint
    async with connection.begin_nested() if is_open else connection.begin():
        await refuse_autocommit()
        yield


def _commits_each(kind: str, connection: Any) -> bool:
    """Whether the connection would commit each statement by itself, so that several need a transaction around them.

    SQLAlchemy begins none on a connection that is set to AUTOCOMMIT.
    """
    match kind:
        case "asyncpg":
            return not connection.is_in_transaction()
        case "psycopg" | "psycopg async":
            return connection.autocommit and connection.info.transaction_status == _PSYCOPG_IDLE
        case "django":
            return connection.get_autocommit()
    return False


def _session_of(connection: Any) -> Any:
    """The session itself, of one that SQLAlchemy keeps for each thread or task."""
    return connection.registry() if hasattr(connection, "registry") else connection


def _refuse_autocommit(connection: Any) -> None:
    if getattr(connection.connection.dbapi_connection, "autocommit", False):
        raise ConfigError(
            "this SQLAlchemy connection commits after every statement (isolation_level='AUTOCOMMIT'), so a block "
            "of several cannot be all or nothing: use a connection with another isolation level"
        )


def _located(database: Database, statements: Statements[T]) -> Statements[T]:
    """The statements, preceded by a lookup of the application's schema if it is unknown."""
    if not database.applications:
        database.located((yield LIST_APPLICATIONS, ()))
    return (yield from statements)


def _next_statement(database: Database, generator: Statements[Any], rows: Any) -> tuple[str, tuple[Any, ...]]:
    """Give the rows of the last statement to the statements; returns the next one and its parameters."""
    statement, params = next(generator) if rows is None else generator.send([tuple(row) for row in rows])
    return database.sql(statement), params


@contextmanager
def _naming_its_database(database: Database) -> Iterator[None]:
    """Say what to do where a table of ours is missing: the connection probably leads to another database."""
    try:
        yield
    except Exception as error:
        cause = getattr(error, "orig", None) or error.__cause__ or error  # SQLAlchemy and Django wrap the driver's.
        if getattr(cause, "sqlstate", None) not in _NO_TABLE:
            raise
        raise SchemaError(
            f"the database of this connection has no table that the call needs ({str(cause).splitlines()[0]}): pass a "
            f"connection to the application's database, {database.where}, or run `tidemill db migrate` on this one"
        ) from error


def _kind(connection: Any) -> str:
    driver = next(filter(None, map(_driver, type(connection).__mro__)), "")  # Programs subclass connections; so do we.
    # A pool or engine would commit by itself, on another connection than the caller's; a cursor begins no transaction.
    if driver and hasattr(connection, _ONLY_CONNECTIONS_HAVE[driver]):
        return driver
    kind = type(connection)
    raise ConfigError(
        "conn= takes an asyncpg, psycopg 3, SQLAlchemy or Django connection, or an SQLAlchemy session, not a "
        f"{kind.__module__}.{kind.__name__}"
        + (
            "; of a pool, an engine, a factory of sessions or a cursor, pass the connection or session"
            if driver
            else ""
        )
    )


def _driver(kind: type) -> str:
    is_async = kind.__name__.startswith(("Async", "async_"))
    match kind.__module__.partition(".")[0]:
        case "asyncpg":
            return "asyncpg"
        case "psycopg" | "psycopg2" | "psycopg_pool":
            return "psycopg async" if is_async else "psycopg"
        case "sqlalchemy":
            return "sqlalchemy async" if is_async else "sqlalchemy"
        case "django":
            return "django"
    return ""


_ONLY_CONNECTIONS_HAVE = {
    "asyncpg": "transaction",
    "psycopg": "transaction",
    "psycopg async": "transaction",
    "sqlalchemy": "begin_nested",
    "sqlalchemy async": "begin_nested",
    "django": "alias",
}


def _named(sql: str, form: str) -> str:
    return re.sub(r"\$(\d+)", lambda match: form.format(f"p{match[1]}"), sql)


def _percent(sql: str) -> str:
    return _named(sql.replace("%", "%%"), "%({})s")


def _clause(sql: str) -> Any:
    from sqlalchemy import text  # optional dependency, installed if the caller uses it

    return text(_named(sql.replace("::", r"\:\:"), ":{}"))  # otherwise SQLAlchemy reads a cast as a parameter


def _numbered(params: tuple[Any, ...]) -> dict[str, Any]:
    return {f"p{index}": value for index, value in enumerate(params, 1)}


#: Rows of a cursor on the server would be declared with a SELECT, and ours are written by an INSERT.
_FETCHED_AT_ONCE = {"stream_results": False, "yield_per": None}


def _psycopg_cursor(connection: Any, sql: str, params: tuple[Any, ...]) -> tuple[Any, str, Any]:
    """A cursor, a statement and its parameters: a caller's connection may make rows of any class, or take `$1`."""
    import psycopg.rows

    cursor = connection.cursor(row_factory=psycopg.rows.tuple_row)
    if isinstance(cursor, tuple(getattr(psycopg, name, ()) for name in ("RawCursor", "AsyncRawCursor"))):  # since 3.2
        return cursor, sql, params
    return cursor, _percent(sql), _numbered(params)


async def _fetch_psycopg_async(connection: Any, sql: str, params: tuple[Any, ...]) -> Any:
    cursor, statement, values = _psycopg_cursor(connection, sql, params)
    async with cursor:
        return await (await cursor.execute(statement, values)).fetchall()


def _fetch_psycopg(connection: Any, sql: str, params: tuple[Any, ...]) -> Any:
    cursor, statement, values = _psycopg_cursor(connection, sql, params)
    with cursor:
        return cursor.execute(statement, values).fetchall()


async def _fetch_sqlalchemy_async(connection: Any, sql: str, params: tuple[Any, ...]) -> Any:
    given = _clause(sql), _numbered(params)
    return (await connection.execute(*given, execution_options=_FETCHED_AT_ONCE)).fetchall()


def _fetch_sqlalchemy(connection: Any, sql: str, params: tuple[Any, ...]) -> Any:
    return connection.execute(_clause(sql), _numbered(params), execution_options=_FETCHED_AT_ONCE).fetchall()


def _fetch_django(connection: Any, sql: str, params: tuple[Any, ...]) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(_percent(sql), _numbered(params))
        return cursor.fetchall()


_FETCH_ASYNC = {
    "asyncpg": lambda connection, sql, params: connection.fetch(sql, *params),
    "psycopg async": _fetch_psycopg_async,
    "sqlalchemy async": _fetch_sqlalchemy_async,
}
_FETCH_SYNC = {
    "psycopg": _fetch_psycopg,
    "sqlalchemy": _fetch_sqlalchemy,
    "django": _fetch_django,
}
