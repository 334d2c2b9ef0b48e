"""Everything the database knows about a pipeline's states in a few rows, for a quick check for changes.

Texts are joined, which is faster than rows: the reader must check that the number of parts is right.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.store.database import Database

SEPARATOR = "\x1f"

#: All states of a pipeline, as one row per stage.
SUMMARISE_STATES = """
SELECT stage, count(*) AS count, min(code) AS code, max(code) <> min(code) AS is_mixed, min(size) AS least,
       bool_or(invalid_by IS NOT NULL) AS is_invalid, array_agg(signature) AS signatures,
       string_agg(entity, E'\x1f') AS entities, string_agg(content, E'\x1f') AS contents,
       string_agg(inputs, E'\x1f') AS inputs
FROM tidemill.state WHERE pipeline = $1 AND content <> '' GROUP BY stage
"""
#: The same for files that no stage builds.
SUMMARISE_FILES = """
SELECT count(*) AS count, array_agg(signature) AS signatures, string_agg(path, E'\x1f') AS paths,
       string_agg(content, E'\x1f') AS contents
FROM tidemill.state_file WHERE pipeline = $1
"""


async def summarise(database: Database, pipeline: str) -> tuple[Mapping[str, Any], dict[str, Mapping[str, Any]]]:
    """A summary of the files that no stage builds, and of the states of each stage."""
    (files,) = await database.fetch(SUMMARISE_FILES, pipeline)
    states = await database.fetch(SUMMARISE_STATES, pipeline)
    return dict(files), {row["stage"]: dict(row) for row in states}


def split_joined(text: str, row: Mapping[str, Any]) -> list[str] | None:
    """Split joined texts; None if one of them contains the separator."""
    found = text.split(SEPARATOR)
    return found if len(found) == row["count"] else None
