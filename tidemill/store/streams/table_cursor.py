"""Reading a user's table in the order of (time, id), a page at a time."""

from __future__ import annotations

import re
from typing import Any

import asyncpg
import msgspec

from tidemill.core.errors import ConfigError, StoreError
from tidemill.store.database import Database
from tidemill.store.database_errors import is_unavailable

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?\Z")


class TableCursor(msgspec.Struct, frozen=True):
    """A table, and its columns for the id, the time and the entity of a row."""

    table: str
    id: str
    time: str
    of: str | None = None

    def validate(self) -> TableCursor:
        for name in (self.table, self.id, self.time, *(() if self.of is None else (self.of,))):
            if not _NAME.match(name):
                raise ConfigError(f"{name!r} is not a valid name of a table or column")
        return self


async def read_table(
    database: Database,
    cursor: TableCursor,
    since: float | None,
    after: tuple[Any, Any] | None,
    entity: str | None,
    limit: int,
) -> list[asyncpg.Record]:
    """The next rows: `data` is the row as JSON, `at` its time in seconds, `exact` and `id` where to continue."""
    conditions, args = [], []
    if since is not None:
        args.append(since)
        conditions.append(f"t.{cursor.time} >= to_timestamp(${len(args)}::float8)")
    if after is not None:
        args += after
        conditions.append(f"(t.{cursor.time}, t.{cursor.id}) > (${len(args) - 1}, ${len(args)})")
    if entity is not None:
        args.append(entity)
        conditions.append(f"t.{cursor.of}::text = ${len(args)}")
    args.append(limit)
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    statement = (
        f"SELECT t.{cursor.id} AS id, t.{cursor.time} AS exact, extract(epoch FROM t.{cursor.time})::float8 AS at, "
        f"row_to_json(t) AS data FROM {cursor.table} AS t {where} "
        f"ORDER BY t.{cursor.time}, t.{cursor.id} LIMIT ${len(args)}"
    )
    try:
        return await database.run(lambda connection: connection.fetch(statement, *args), patience=5.0)
    except asyncpg.PostgresError as error:
        if is_unavailable(error):
            raise
        raise StoreError(f"table {cursor.table} cannot be read: {error}") from error
