"""Stores what is known of finished messages, many together: deletes their rows, remembers their ids."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from tidemill.store.database import Database, Executor
from tidemill.store.database_errors import is_transient

T = TypeVar("T")


async def store_finished(
    database: Database, finished: list[T], store: Callable[[Executor, list[T]], Awaitable[Any]]
) -> list[T]:
    """Empty the list and store its entries; returns them. Entries that could not be stored are put back."""
    entries = finished[:]
    finished.clear()
    if not entries:
        return entries
    try:
        async with database.acquire() as connection:
            await store(connection, entries)
    except BaseException as error:
        finished += entries  # Put back also when cancelled: the last flush stores them.
        if not is_transient(error):
            raise
        return []
    return entries
