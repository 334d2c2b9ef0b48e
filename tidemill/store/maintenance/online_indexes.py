"""Indexes of tables that may be large, built while everything goes on: `NNNN_name.online.sql` beside a migration.

A migration is one transaction, and an index that it builds keeps writers waiting until the end. So it builds only
those of small tables; maintenance and `tidemill db migrate` build the others concurrently afterwards. Code must work
without them. What a killed build leaves behind is an invalid index, which is dropped and built again.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from pathlib import Path

import asyncpg
import msgspec
import structlog

from tidemill.core.errors import ConfigError
from tidemill.store.database import Connection, Database, Executor
from tidemill.store.database_errors import CLASHES
from tidemill.store.schemas import in_schema

log = structlog.get_logger("tidemill.migrate")

SMALL_BYTES = 16 * 1024 * 1024  # An index of such a table is built within the migration, in well under a second.
WAIT_FOR_OTHER = 1.0  # Seconds between checks of a build by another process.

_LOCK_TIMEOUT = "2s"
_INDEX = re.compile(r"CREATE INDEX (\w+) ON (tidemill\.\w+)\s+(.*?);\s*", re.DOTALL)
_COMMENT = re.compile(r"^--.*\n", re.MULTILINE)
#: What else may fail while partitions come and go and others use the tables: it is tried again.
_RETRIED = (
    asyncpg.LockNotAvailableError,
    asyncpg.DuplicateTableError,
    asyncpg.UniqueViolationError,  # of the name in the catalogue: another process has begun to build it
    asyncpg.UndefinedTableError,
    asyncpg.UndefinedObjectError,
    *CLASHES,
)

TABLE_BYTES = """
SELECT pg_table_size($1::regclass) + coalesce(sum(pg_table_size(relid)), 0) FROM pg_partition_tree($1::regclass)
"""
IS_PARTITIONED = "SELECT relkind = 'p' FROM pg_class WHERE oid = $1::regclass"
#: Whether an index exists (NULL if not) and is complete.
IS_VALID = "SELECT (SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass($1))"
IS_BEING_BUILT = """
SELECT EXISTS (SELECT FROM pg_stat_progress_create_index AS b
               WHERE b.relid = $1::regclass OR b.relid IN (SELECT relid FROM pg_partition_tree($1::regclass)))
"""
#: The partitions of a table ($1) without an attached part of an index ($2).
UNINDEXED_PARTITIONS = """
SELECT c.relname::text FROM pg_inherits AS h JOIN pg_class AS c ON c.oid = h.inhrelid
WHERE h.inhparent = $1::regclass AND NOT EXISTS (
    SELECT FROM pg_inherits AS attached JOIN pg_index AS i ON i.indexrelid = attached.inhrelid
    WHERE attached.inhparent = $2::regclass AND i.indrelid = c.oid)
ORDER BY c.relname
"""


class OnlineIndex(msgspec.Struct, frozen=True):
    """An index of one schema: its own name, its table, and the rest of its definition."""

    schema: str
    name: str
    table: str
    rest: str

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}"

    def on_partition(self, partition: str) -> OnlineIndex:
        """The part of the index that belongs to a partition."""
        table = self.table.partition(".")[2]
        name = f"{partition}_{self.name.removeprefix(table).strip('_')}"
        return OnlineIndex(self.schema, name, f"{self.schema}.{partition}", self.rest)


def online_file(migration: Path) -> Path:
    """The file with the indexes of a migration that are built online."""
    return migration.with_suffix(".online.sql")


def read_indexes(migrations: Iterable[Path], place: str) -> list[OnlineIndex]:
    """The online indexes of these migrations, in a schema."""
    return [index for migration in migrations for index in _read(online_file(migration), place)]


def _read(file: Path, place: str) -> list[OnlineIndex]:
    if not file.exists():
        return []
    text = _COMMENT.sub("", file.read_text(encoding="utf-8"))
    if _INDEX.sub("", text).strip():
        raise ConfigError(f"{file.name}: only `CREATE INDEX name ON tidemill.table ...;` is built online")
    return [OnlineIndex(place, name, in_schema(table, place), rest) for name, table, rest in _INDEX.findall(text)]


async def build_small(connection: Executor, indexes: Iterable[OnlineIndex]) -> None:
    """Build the indexes of small tables within a migration."""
    for index in indexes:
        if (await connection.fetchval(TABLE_BYTES, index.table) or 0) <= SMALL_BYTES:
            await connection.execute(f"CREATE INDEX {index.name} ON {index.table} {index.rest}")


async def build_online(database: Database, indexes: Iterable[OnlineIndex]) -> list[str]:
    """Build the indexes that are missing or incomplete, while everything goes on; returns their names."""
    built: list[str] = []
    connection = await database.connect_to_listen()
    try:
        for index in indexes:
            if await connection.fetchval(IS_VALID, index.full_name) is not True:
                log.info("building an index", index=index.full_name, table=index.table)
                await _build(connection, index)
                log.info("built an index", index=index.full_name)
                built.append(index.full_name)
    finally:
        connection.terminate()
    return built


async def _build(connection: Connection, index: OnlineIndex) -> None:
    while await connection.fetchval(IS_VALID, index.full_name) is not True:
        if await connection.fetchval(IS_BEING_BUILT, index.table):
            await asyncio.sleep(WAIT_FOR_OTHER)
            continue
        try:
            if await connection.fetchval(IS_PARTITIONED, index.table):
                await _build_partitioned(connection, index)
            else:
                await _build_table(connection, index)
        except _RETRIED as error:
            log.info("building an index is tried again", index=index.full_name, error=str(error))


async def _build_partitioned(connection: Connection, index: OnlineIndex) -> None:
    """The index of each partition, and one above them that new partitions get, too."""
    if await connection.fetchval(IS_VALID, index.full_name) is None:
        await _briefly(connection, f"CREATE INDEX {index.name} ON ONLY {index.table} {index.rest}")
    for row in await connection.fetch(UNINDEXED_PARTITIONS, index.table, index.full_name):
        part = index.on_partition(row[0])
        await _build_table(connection, part)
        await _briefly(connection, f"ALTER INDEX {index.full_name} ATTACH PARTITION {part.full_name}")


async def _build_table(connection: Connection, index: OnlineIndex) -> None:
    is_valid = await connection.fetchval(IS_VALID, index.full_name)
    if is_valid is False:  # An earlier build was ended.
        await connection.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {index.full_name}")
    if is_valid is not True:
        await connection.execute(f"CREATE INDEX CONCURRENTLY {index.name} ON {index.table} {index.rest}")


async def _briefly(connection: Connection, statement: str) -> None:
    """Run a statement that writers wait for: it must not wait long for a lock itself."""
    async with connection.transaction():
        await connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
        await connection.execute(statement)
