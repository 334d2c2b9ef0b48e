"""State contents stored in the database, each with a version that grows with every write."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Sequence

import msgspec

from tidemill.store.connection.caller_connection import Statements
from tidemill.store.database import Database, Executor

#: The versions of all paths, or of the given ones.
LIST_BLOBS = "SELECT path, version FROM tidemill.state_blob WHERE store = $1"
READ_BLOB_VERSIONS = "SELECT path, version FROM tidemill.state_blob WHERE store = $1 AND path = ANY ($2::text[])"
READ_BLOBS = "SELECT path, content, version FROM tidemill.state_blob WHERE store = $1 AND path = ANY ($2::text[])"
#: Serialises the writers of a path, so that each reads what the previous one has written.
HOLD_BLOB = "SELECT pg_advisory_xact_lock(hashtextextended('tidemill.state_blob/' || $1 || '/' || $2, 11))"
#: Writes contents; every write gets a new version, even if the content is the same.
WRITE_BLOBS = """
INSERT INTO tidemill.state_blob (store, path, content)
SELECT $1, * FROM unnest($2::text[], $3::bytea[])
ON CONFLICT (store, path) DO UPDATE SET content = excluded.content, written_at = now(), version = DEFAULT
RETURNING path, version
"""
#: The same for any driver's connection: the contents are in base64.
WRITE_BLOB_ROWS = """
INSERT INTO tidemill.state_blob (store, path, content)
SELECT $1::text, path, decode(content, 'base64') FROM json_to_recordset($2::text::json) AS w(path text, content text)
ON CONFLICT (store, path) DO UPDATE SET content = excluded.content, written_at = now(), version = DEFAULT
RETURNING path
"""
#: Deletes paths, or moves them under a prefix.
DROP_BLOBS = "DELETE FROM tidemill.state_blob WHERE store = $1 AND path = ANY ($2::text[])"
ARCHIVE_BLOBS = "UPDATE tidemill.state_blob SET path = $3 || path WHERE store = $1 AND path = ANY ($2::text[])"


async def list_blobs(database: Database, store: str) -> list[tuple[str, int]]:
    """All paths of a store, with their versions."""
    return [(row["path"], row["version"]) for row in await database.fetch(LIST_BLOBS, store)]


async def read_blob_versions(database: Database, store: str, paths: Sequence[str]) -> dict[str, int]:
    """The versions of those of these paths that exist."""
    return {row["path"]: row["version"] for row in await database.fetch(READ_BLOB_VERSIONS, store, list(paths))}


async def read_blobs(database: Database, store: str, paths: Sequence[str]) -> list[tuple[str, bytes, int]]:
    """The content and version of those of these paths that exist."""
    rows = await database.fetch(READ_BLOBS, store, list(paths))
    return [(row["path"], row["content"], row["version"]) for row in rows]


async def change_blob(database: Database, store: str, path: str, change: Callable[[bytes | None], bytes]) -> None:
    """Read a content, change it and write it; concurrent changes are serialised."""
    async with database.transaction() as connection:
        await connection.execute(database.sql(HOLD_BLOB), store, path)
        rows = await connection.fetch(database.sql(READ_BLOBS), store, [path])
        made = change(rows[0]["content"] if rows else None)
        await connection.fetch(database.sql(WRITE_BLOBS), store, [path], [database.seal_bytes(made)])


async def write_blobs(
    database: Database, store: str, blobs: Sequence[tuple[str, bytes]], *, connection: Executor | None = None
) -> dict[str, int]:
    """Write contents, in the connection's transaction if one is given; returns the new versions."""
    if not blobs:
        return {}
    arguments = (store, [path for path, _ in blobs], [database.seal_bytes(data) for _, data in blobs])
    if connection is None:
        rows = await database.fetch(WRITE_BLOBS, *arguments)
    else:
        rows = await connection.fetch(database.sql(WRITE_BLOBS), *arguments)
    return {row["path"]: row["version"] for row in rows}


def write_blob_statements(database: Database, store: str, blobs: Sequence[tuple[str, bytes]]) -> Statements[None]:
    """The statements that write contents, for any driver."""
    sealed = [(path, database.seal_bytes(data) or b"") for path, data in blobs]
    rows = [{"path": path, "content": b64encode(data).decode()} for path, data in sealed]
    yield WRITE_BLOB_ROWS, (store, msgspec.json.encode(rows).decode())


async def drop_blobs(database: Database, store: str, paths: Sequence[str]) -> None:
    await database.fetch(DROP_BLOBS, store, list(paths))


async def archive_blobs(database: Database, store: str, paths: Sequence[str], prefix: str) -> None:
    """Move paths under a prefix."""
    await database.fetch(ARCHIVE_BLOBS, store, list(paths), prefix)
