"""Human input: the questions of runs to people."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import asyncpg

from tidemill.store.access.audit import audit_statements
from tidemill.store.connection.caller_connection import Statements
from tidemill.store.database import Database
from tidemill.store.runs.inbox import send_statements

#: The questions of runs to people, longest waiting first.
LIST_INPUTS = """
SELECT i.run_id, i.node, i.prompt, i.schema, i.asked_at, i.due_at, r.workflow, r.kind FROM tidemill.run_input AS i
JOIN tidemill.run AS r ON r.id = i.run_id
WHERE ($1::bigint IS NULL OR i.run_id = $1) AND r.state = 'running' -- one that needs attention takes no answers
  AND ($3::timestamptz IS NULL OR (i.asked_at, i.run_id, i.node) > ($3, $4::bigint, $5::text))
ORDER BY i.asked_at, i.run_id, i.node LIMIT $2
"""


#: Whether a node of a run waits for a person's input.
IS_ASKED = "SELECT EXISTS (SELECT FROM tidemill.run_input WHERE run_id = $1 AND node = $2) AS asked"


async def list_inputs(
    database: Database,
    *,
    run_id: int | None = None,
    after: tuple[datetime, int, str] | None = None,
    limit: int = 200,
) -> list[asyncpg.Record]:
    """The questions of runs to people, longest waiting first, after a given one; of all runs, or of one."""
    return await database.fetch(LIST_INPUTS, run_id, limit, *(after or (None, None, None)))


async def is_asked(database: Database, run_id: int, node: str) -> bool:
    """Whether a node of a run waits for a person's input."""
    row = await database.fetchrow(IS_ASKED, run_id, node)
    return row is not None and row["asked"]


def answer_statements(
    database: Database, run_id: int, tick: bytes, *, by: str, node: str, value: Any, key: str
) -> Statements[None]:
    """The statements that send an answer to a run and record who gave it, for any driver."""
    yield from send_statements(database, run_id, tick)
    after = {"value": value, "key": key}
    yield from audit_statements(database, who=by, action="run.submit", target=f"r{run_id} {node}", after=after)
