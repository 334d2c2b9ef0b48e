"""Enqueueing on the caller's own connection: the job exists if and only if the caller's transaction commits.

Accepts an open asyncpg or psycopg connection (sync or async), or an SQLAlchemy connection or session (sync or async).
The transaction belongs to the caller: this module never commits or rolls back.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tidemill.core.errors import ConfigError
from tidemill.core.job import JobRef, NewJob
from tidemill.store.database import LIST_APPLICATIONS, Database
from tidemill.store.jobs.insert import InsertStatements, insert_statements


async def insert_async(database: Database, connection: Any, jobs: Sequence[NewJob]) -> list[JobRef]:
    """Store jobs through a caller's async connection."""
    kind, talk, rows = _kind(connection), _statements(database, jobs), None
    if kind not in _FETCH_ASYNC:
        raise ConfigError(f"a {kind} connection is not async: enqueue with `app.enqueue_sync(..., conn=conn)`")
    try:
        while True:
            rows = await _FETCH_ASYNC[kind](connection, *_next_statement(database, talk, rows))
    except StopIteration as done:
        return done.value


def insert_sync(database: Database, connection: Any, jobs: Sequence[NewJob]) -> list[JobRef]:
    """Store jobs through a caller's sync connection."""
    kind, talk, rows = _kind(connection), _statements(database, jobs), None
    if kind not in _FETCH_SYNC:
        raise ConfigError(f"a {kind} connection is async: enqueue with `await app.enqueue(..., conn=conn)`")
    try:
        while True:
            rows = _FETCH_SYNC[kind](connection, *_next_statement(database, talk, rows))
    except StopIteration as done:
        return done.value


def _statements(database: Database, jobs: Sequence[NewJob]) -> InsertStatements:
    """The statements that store jobs, preceded by a lookup of the application's schema if it is unknown."""
    if not database.applications:
        database.located((yield LIST_APPLICATIONS, ()))
    return (yield from insert_statements(jobs))


def _next_statement(database: Database, talk: InsertStatements, rows: Any) -> tuple[str, tuple[Any, ...]]:
    """Give the rows of the last statement to the insert_statements; returns the next statement and its parameters."""
    statement, params = next(talk) if rows is None else talk.send([_values(row) for row in rows])
    return database.sql(statement), params


def _kind(connection: Any) -> str:
    module = type(connection).__module__
    name = type(connection).__name__
    if module.startswith("asyncpg"):
        return "asyncpg"
    if module.startswith("psycopg"):
        return "psycopg async" if name.startswith("Async") else "psycopg"
    for base in type(connection).__mro__:
        if base.__module__.startswith("sqlalchemy"):
            return "sqlalchemy async" if base.__name__.startswith(("Async", "async_")) else "sqlalchemy"
    raise ConfigError(f"conn= takes an asyncpg, psycopg or SQLAlchemy connection or session, not a {module}.{name}")


def _named(sql: str, form: str) -> str:
    return re.sub(r"\$(\d+)", lambda match: form.format(f"p{match[1]}"), sql)


def _clause(sql: str) -> Any:
    from sqlalchemy import text  # optional dependency, installed if the caller uses it

    return text(_named(sql.replace("::", r"\:\:"), ":{}"))  # otherwise SQLAlchemy reads a cast as a parameter


def _numbered(params: tuple[Any, ...]) -> dict[str, Any]:
    return {f"p{index}": value for index, value in enumerate(params, 1)}


def _values(row: Any) -> tuple[Any, ...]:
    # A caller's connection may return rows as mappings.
    return tuple(row.values()) if isinstance(row, dict) else tuple(row)


async def _fetch_psycopg(connection: Any, sql: str, params: tuple[Any, ...]) -> Any:
    cursor = await connection.execute(_named(sql, "%({})s"), _numbered(params))
    return await cursor.fetchall()


async def _fetch_sqlalchemy(connection: Any, sql: str, params: tuple[Any, ...]) -> Any:
    return (await connection.execute(_clause(sql), _numbered(params))).fetchall()


_FETCH_ASYNC = {
    "asyncpg": lambda connection, sql, params: connection.fetch(sql, *params),
    "psycopg async": _fetch_psycopg,
    "sqlalchemy async": _fetch_sqlalchemy,
}
_FETCH_SYNC = {
    "psycopg": lambda connection, sql, params: connection.execute(_named(sql, "%({})s"), _numbered(params)).fetchall(),
    "sqlalchemy": lambda connection, sql, params: connection.execute(_clause(sql), _numbered(params)).fetchall(),
}
