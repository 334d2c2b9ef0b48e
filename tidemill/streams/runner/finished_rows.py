"""Deletes the rows of finished messages, many together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from tidemill.store.database import Database, Executor
from tidemill.store.database_errors import is_transient

T = TypeVar("T")


async def delete_finished(
    database: Database, finished: list[T], delete: Callable[[Executor, list[T]], Awaitable[Any]]
) -> list[T]:
    """Empty the list and delete its rows; returns them. Rows that could not be deleted are put back."""
    rows = finished[:]
    finished.clear()
    if not rows:
        return rows
    try:
        async with database.acquire() as connection:
            await delete(connection, rows)
    except BaseException as error:
        finished += rows  # Also when cancelled: the last flush deletes them.
        if not is_transient(error):
            raise
        return []
    return rows
