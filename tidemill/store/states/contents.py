"""The contents that small states had before: a build that replaces an output keeps what was there."""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg
import msgspec

from tidemill.store.database import Database, Executor, columns

#: How many earlier contents of an output are kept.
EARLIER = 2


class ReplacedContent(msgspec.Struct):
    """What an output held before a build replaced it."""

    entity: str
    path: str
    hash: str
    content: bytes


#: Keeps replaced contents.
KEEP_CONTENTS = """
INSERT INTO tidemill.state_content (pipeline, stage, entity, path, hash, content)
SELECT $1, $2, * FROM unnest($3::text[], $4::text[], $5::text[], $6::bytea[])
"""
#: Deletes all but the newest contents of some outputs.
DROP_OLDER_CONTENTS = """
DELETE FROM tidemill.state_content AS c USING (
    SELECT id, row_number() OVER (PARTITION BY path ORDER BY id DESC) AS place FROM tidemill.state_content
    WHERE pipeline = $1 AND path = ANY ($2::text[])) AS old
WHERE c.id = old.id AND old.place > $3
"""
#: The earlier contents of one output, newest first.
LIST_CONTENTS = """
SELECT hash, content, replaced_at FROM tidemill.state_content
WHERE pipeline = $1 AND path = $2 ORDER BY id DESC
"""
#: Deletes the earlier contents of states.
FORGET_CONTENTS = "DELETE FROM tidemill.state_content WHERE pipeline = $1 AND stage = $2 AND entity = ANY ($3::text[])"
#: Deletes old contents.
DROP_OLD_CONTENTS = "DELETE FROM tidemill.state_content WHERE replaced_at < now() - make_interval(days => $1)"


async def keep_contents(
    database: Database, connection: Executor, pipeline: str, stage: str, replaced: Sequence[ReplacedContent]
) -> None:
    """Keep the contents that builds have replaced, and delete older ones of the same outputs."""
    values = columns([(each.entity, each.path, each.hash, database.seal_bytes(each.content)) for each in replaced], 4)
    await connection.execute(database.sql(KEEP_CONTENTS), pipeline, stage, *values)
    paths = [each.path for each in replaced]
    await connection.execute(database.sql(DROP_OLDER_CONTENTS), pipeline, paths, EARLIER)


async def list_contents(database: Database, pipeline: str, path: str) -> list[asyncpg.Record]:
    """The earlier contents of an output, newest first."""
    return await database.fetch(LIST_CONTENTS, pipeline, path)
