"""Dead letters: messages that streams gave up, listed, shown in full, and made messages again."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec
from litestar import Request, get, post
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter

from tidemill.core.errors import NotFoundError
from tidemill.ops.cursor import following, read_cursor
from tidemill.ops.json_rows import value_of, zoned
from tidemill.server.resources.paging import Cursor, Limit, Word
from tidemill.server.server_state import TheServerState, caller_of
from tidemill.store.streams.streams import COUNT_DEAD, DeadFilter, list_dead, replay_dead

SHOWN_BYTES = 4000

Ids = Annotated[list[int] | None, QueryParameter(name="id", description="Only this one; may be repeated.")]


class DeadLetter(msgspec.Struct, frozen=True):
    """A message that was given up, and why. In lists, only the beginning of a long payload, which is then `truncated`:
    by itself a letter has all of it."""

    id: int
    stream: str
    source: str
    place: str
    plans: list[str] | None
    why: str
    error: str | None
    attempts: int
    buried_at: datetime
    payload: str
    at: datetime
    message_id: str | None
    key: str | None
    headers: Any
    kind: str | None
    truncated: bool = False


class DeadLetters(msgspec.Struct, frozen=True):
    """Dead letters, newest first, and how many there are; `next` is the cursor of the page after, or null."""

    items: list[DeadLetter]
    total: int
    next: str | None = None


class DeadWanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which dead letters: by their ids, or all that match; what is not said does not matter. The stream must be said:
    null means all of them."""

    stream: str | None
    source: str | None = None
    plan: str | None = None
    why: str | None = None
    error: str | None = None
    since: datetime | None = None
    ids: list[int] | None = None

    def wanted(self) -> DeadFilter:
        if self.ids is not None and any(not 0 < each < 2**63 for each in self.ids):
            raise NotFoundError("there is no such dead letter")
        since = None if self.since is None else zoned(self.since)
        ids = None if self.ids is None else tuple(self.ids)
        return DeadFilter(self.stream, self.source, self.plan, self.why, self.error, since, ids)


class Replayed(msgspec.Struct, frozen=True):
    """How many became messages again."""

    count: int


@get("/dead-letters", opt={"scope": "read"}, summary="List dead letters")
async def get_dead_letters(
    server_state: TheServerState,
    stream: Word = None,
    source: Word = None,
    plan: Word = None,
    why: Word = None,
    error: Annotated[str | None, QueryParameter(max_length=400, description="Only errors with this text.")] = None,
    since: FromQuery[datetime | None] = None,
    ids: Ids = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> DeadLetters:
    """Messages that were given up, the newest first. `total` is how many a replay of the same would reach."""
    which = DeadWanted(stream, source, plan, why, error, since, ids).wanted()
    rows = await list_dead(server_state.database, which, before=read_cursor(cursor), limit=limit)
    total = (await server_state.database.fetch(COUNT_DEAD, *which.arguments()))[0]["n"]
    letters = [_letter(row, SHOWN_BYTES) for row in rows]
    return DeadLetters(letters, total, following([row["id"] for row in rows], limit))


@get("/dead-letters/{letter_id:int}", opt={"scope": "read"}, summary="One dead letter in full")
async def get_dead_letter(server_state: TheServerState, letter_id: FromPath[int]) -> DeadLetter:
    """A message that was given up, with its whole payload."""
    rows = await list_dead(server_state.database, DeadFilter(ids=(letter_id,))) if 0 < letter_id < 2**63 else []
    if not rows:
        raise NotFoundError(f"there is no dead letter {letter_id}: it never was, or is tried again")
    return _letter(rows[0], None)


@post("/dead-letters/replay", opt={"scope": "operate"}, status_code=200, summary="Replay dead letters")
async def replay(server_state: TheServerState, request: Request[Any, Any, Any], data: JSONBody[DeadWanted]) -> Replayed:
    """Make messages of dead letters again, with a fresh number of attempts."""
    return Replayed(await replay_dead(server_state.database, data.wanted(), by=caller_of(request).name))


routes = [get_dead_letters, get_dead_letter, replay]


def _letter(row: Any, most: int | None) -> DeadLetter:
    payload = bytes(row["payload"])
    return DeadLetter(
        row["id"],
        row["stream"],
        row["source"],
        row["place"],
        row["plans"],
        row["why"],
        row["error"],
        row["attempts"],
        row["buried_at"],
        payload[:most].decode(errors="replace"),
        row["at"],
        row["message_id"],
        None if row["key"] is None else row["key"].decode(errors="replace"),
        value_of(row["headers"]),
        row["kind"],
        most is not None and len(payload) > most,
    )
