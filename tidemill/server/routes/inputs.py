"""Inputs: what runs ask people, and the answers."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec
from litestar import Request, get, post
from litestar.params import FromPath, JSONBody, QueryParameter

from tidemill.dags.runner.runner import DAG_KIND
from tidemill.ops.cursor import read_moment_cursor, write_moment_cursor
from tidemill.ops.json_rows import readable
from tidemill.server.resources.paging import NameCursor, Number
from tidemill.server.resources.runs import submit_answer
from tidemill.server.server_state import TheServerState, caller_of
from tidemill.store.runs.runs import list_inputs


class Input(msgspec.Struct, frozen=True):
    """A question that a run waits for an answer to; `schema` is the JSON Schema that the answer must fit.

    A dag asks by a node. A flow asks by a step that waits for an event: then the answer is the event's fields.
    """

    run_id: int
    workflow: str
    shape: str
    node: str
    prompt: str
    schema: Any
    asked_at: datetime
    due_at: datetime | None


class Inputs(msgspec.Struct, frozen=True):
    """What waits for a person, the longest waiting first; `next` is the cursor of the page after, or null on the last
    one."""

    items: list[Input]
    next: str | None = None


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer; the same `key` again is the same answer."""

    value: Any
    key: str | None = None


class Taken(msgspec.Struct, frozen=True):
    """Whether the run has taken the answer; if not, it is stored, and nobody drives the run now."""

    taken: bool


@get("/inputs", opt={"scope": "read"}, summary="What waits for a person")
async def get_inputs(
    server_state: TheServerState,
    run: Number = None,
    limit: Annotated[int, QueryParameter(ge=1, le=1000)] = 200,
    cursor: NameCursor = None,
) -> Inputs:
    """Open questions of all runs, or of one."""
    after = read_moment_cursor(cursor, tuple[datetime, int, str])
    rows = await list_inputs(server_state.database, run_id=run, after=after, limit=limit)
    items = [_input(readable(row, ("schema",))) for row in rows]
    last = items[-1] if len(items) == limit else None
    return Inputs(items, None if last is None else write_moment_cursor(last.asked_at, last.run_id, last.node))


@post("/runs/{run_id:int}/inputs/{node:path}", opt={"scope": "operate"}, status_code=200, summary="Answer a question")
async def submit(
    server_state: TheServerState,
    request: Request[Any, Any, Any],
    run_id: FromPath[int],
    node: FromPath[str],
    data: JSONBody[Answer],
) -> Taken:
    """Answer what a run asks. The answer must fit the schema; the first that does counts.

    To a flow an answer is an event: whatever else of the run waits for such a one has it, too.
    """
    name = str(node).lstrip("/")
    return Taken(await submit_answer(server_state, caller_of(request), run_id, name, data.value, data.key))


routes = [get_inputs, submit]


def _input(row: dict[str, Any]) -> Input:
    return Input(shape="dag" if row.pop("kind") == DAG_KIND else "flow", **row)
