"""What an application declares, stored for the SQL functions `enqueue` and `start`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from tidemill.store.database import Database, columns

#: Stores what is declared, and notices nothing of what is the same. Of two versions of an application that run at the
#: same time, the one that has started last wins.
DECLARE = """
INSERT INTO tidemill.declared AS d (shape, name, template)
SELECT * FROM unnest($1::text[], $2::text[], $3::json[]) AS given(shape, name, template) ORDER BY shape, name
ON CONFLICT (shape, name) DO UPDATE SET template = excluded.template
    WHERE d.template::text <> excluded.template::text
"""


class WorkTemplate(NamedTuple):
    """What a job or run of something declared is like, without its arguments, as JSON."""

    shape: Literal["task", "flow", "dag"]
    name: str
    template: bytes


async def declare(database: Database, templates: Sequence[WorkTemplate]) -> None:
    """Store what an application declares."""
    if templates:
        await database.fetch(DECLARE, *columns(templates, 3))
