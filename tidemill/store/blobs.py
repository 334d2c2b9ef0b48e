"""States that are kept in the database: their content, and a version that grows with every write."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.store.database import Database

LIST_BLOBS = "SELECT path, version FROM tidemill.state_blob WHERE store = $1"
LOOK_AT_BLOBS = "SELECT path, version FROM tidemill.state_blob WHERE store = $1 AND path = ANY ($2::text[])"
READ_BLOB = "SELECT content, version FROM tidemill.state_blob WHERE store = $1 AND path = $2"
#: Every write has a version of its own, also where the content is the same.
WRITE_BLOBS = """
INSERT INTO tidemill.state_blob (store, path, content)
SELECT $1, * FROM unnest($2::text[], $3::bytea[])
ON CONFLICT (store, path) DO UPDATE SET content = excluded.content, written_at = now(), version = DEFAULT
RETURNING path, version
"""
DROP_BLOBS = "DELETE FROM tidemill.state_blob WHERE store = $1 AND path = ANY ($2::text[])"
ARCHIVE_BLOBS = "UPDATE tidemill.state_blob SET path = $3 || path WHERE store = $1 AND path = ANY ($2::text[])"


async def list_blobs(database: Database, store: str) -> list[tuple[str, int]]:
    """All paths of a store, with their versions."""
    return [(row["path"], row["version"]) for row in await database.fetch(LIST_BLOBS, store)]


async def look_at_blobs(database: Database, store: str, paths: Sequence[str]) -> dict[str, int]:
    """The versions of those of these paths that are there."""
    return {row["path"]: row["version"] for row in await database.fetch(LOOK_AT_BLOBS, store, list(paths))}


async def read_blob(database: Database, store: str, path: str) -> tuple[bytes, int] | None:
    """The content at a path, and its version."""
    row = await database.fetchrow(READ_BLOB, store, path)
    return None if row is None else (row["content"], row["version"])


async def write_blobs(database: Database, store: str, blobs: Sequence[tuple[str, bytes]]) -> dict[str, int]:
    """Write contents; returns the new versions."""
    if not blobs:
        return {}
    rows = await database.fetch(WRITE_BLOBS, store, [path for path, _ in blobs], [data for _, data in blobs])
    return {row["path"]: row["version"] for row in rows}


async def drop_blobs(database: Database, store: str, paths: Sequence[str]) -> None:
    await database.fetch(DROP_BLOBS, store, list(paths))


async def archive_blobs(database: Database, store: str, paths: Sequence[str], prefix: str) -> None:
    """Move paths out of the way."""
    await database.fetch(ARCHIVE_BLOBS, store, list(paths), prefix)
