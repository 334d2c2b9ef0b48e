"""The origin of a pipeline's files: the work that wrote them from outside, and the trace that they were written in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import asyncpg
import msgspec

from tidemill.store.connection.caller_connection import Statements
from tidemill.store.database import Database, Executor


class FileOrigin(msgspec.Struct, frozen=True):
    """The work that wrote a file, in words, and the W3C `traceparent` that builds from it continue."""

    path: str
    origin: str | None = None
    trace: str | None = None


NOTE_ORIGINS = """
INSERT INTO tidemill.state_origin (pipeline, path, origin, trace)
SELECT $1, path, origin, trace
FROM ROWS FROM (json_to_recordset($2::text::json) AS (path text, origin text, trace text)) ORDER BY path
ON CONFLICT (pipeline, path) DO UPDATE SET at = now(), origin = excluded.origin, trace = excluded.trace RETURNING path
"""
READ_ORIGINS = """
SELECT path, at, origin, trace FROM tidemill.state_origin WHERE pipeline = $1 AND path = ANY ($2::text[])
"""


async def note_origins(database: Database, connection: Executor, pipeline: str, origins: Iterable[FileOrigin]) -> None:
    """Store the origins of files, in the transaction that writes them."""
    if rows := list(origins):
        await connection.execute(database.sql(NOTE_ORIGINS), pipeline, msgspec.json.encode(rows).decode())


def note_origin_statements(pipeline: str, origin: FileOrigin) -> Statements[None]:
    """The same for any driver's connection."""
    yield NOTE_ORIGINS, (pipeline, msgspec.json.encode([origin]).decode())


async def read_origins(database: Database, pipeline: str, paths: Sequence[str]) -> list[asyncpg.Record]:
    """The known origins of files."""
    return await database.fetch(READ_ORIGINS, pipeline, list(paths))
