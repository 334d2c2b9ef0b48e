"""Dead letters: messages that streams gave up, listed, read in full, and replayed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

import msgspec

from tidemill.core.encoding.json_rows import value_of, zoned
from tidemill.core.errors import ConfigError, NotFoundError
from tidemill.ops.operator.bulk import MOST_MATCHES, Preview, preview_of
from tidemill.ops.operator.cursor import following, read_cursor
from tidemill.ops.operator.operation import Arguments, Cursor, Limit, doc, operation
from tidemill.store.jobs.pages import Word
from tidemill.store.large_values import SHOWN_BYTES, VALUES
from tidemill.store.streams import dead_letters as store
from tidemill.store.streams.dead_letters import DeadFilter, DeadLetterFilter
from tidemill.store.transaction import Reader, Transaction

IN_A_LIST = 4000


class ListDeadLetters(DeadLetterFilter, frozen=True, kw_only=True):
    """Which dead letters to list, and which page of them."""

    stream: Annotated[Word | None, doc("Only of this stream.")] = None
    id: Annotated[tuple[int, ...], doc("Only this one; may be repeated.")] = ()
    limit: Limit = 50
    cursor: Cursor = None


class GetDeadLetter(Arguments, frozen=True, kw_only=True):
    """Which dead letter."""

    id: Annotated[int, doc("The dead letter's id.")]


class ReplayDeadLetters(DeadLetterFilter, frozen=True, kw_only=True):
    """Which dead letters to replay: by their ids, or all that match. The stream must be given."""

    stream: Annotated[Word | None, doc("The stream; null means all of them.")]
    ids: Annotated[list[int] | None, doc("Only these.")] = None
    up_to: Annotated[int | None, doc("No dead letter above this id.")] = None
    rate: Annotated[
        float | None, doc("How many a second are tried again; null means as fast as the source's limits allow.")
    ] = None
    payload: Annotated[str | None, doc("Try it again with this payload in place of its own; with one id.")] = None


class FailedAttemptLine(msgspec.Struct, frozen=True):
    """One attempt at a message that failed in one plan."""

    attempt: int
    plan: str
    kind: str
    error: str
    at: Annotated[float, doc("When it ended, in seconds since 1970.")] = 0.0
    engine: Annotated[str, doc("The process that ran it.")] = ""
    seconds: float = 0.0
    traceback: str = ""
    lines: Annotated[list[Any] | None, doc("What the plan logged: time, level, event and fields of each line.")] = None
    waited: Annotated[
        dict[str, float] | None,
        doc("How many seconds it has waited before: at its source, in the dispatcher, and of that for its key."),
    ] = None


class DeadLetterLine(msgspec.Struct, frozen=True):
    """A message that was given up, and why. In a list a long payload is cut, and `truncated`."""

    id: int
    stream: str
    source: str
    sink: Annotated[str | None, doc("The sink that refused what the message handed over; null for the message.")]
    place: Annotated[str, doc("Where its source had it.")]
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
    truncated: Annotated[bool, doc("Whether the payload is cut.")] = False
    whole: Annotated[str | None, doc("Where the whole payload is, if it is cut.")] = None
    payload_bytes: int = 0
    history: Annotated[list[FailedAttemptLine], doc("Its failed attempts; in a list without them.")] = []


class DeadLetterPage(msgspec.Struct, frozen=True):
    """Dead letters, newest first, and how many match; `next` is the cursor of the next page, or null."""

    items: list[DeadLetterLine]
    total: Annotated[int, doc("How many match.")]
    next: Annotated[str | None, doc("The cursor of the next page; null on the last one.")] = None


class Replayed(msgspec.Struct, frozen=True):
    """How many dead letters are messages again."""

    count: int


@operation("GET /dead-letters", role="viewer")
async def list_dead_letters(at: Reader, args: ListDeadLetters) -> DeadLetterPage:
    """List messages that were given up, newest first. `total` is how many a replay of the same would reach."""
    which = _matching(args, args.stream, args.id or None)
    rows = await store.list_dead(at.database, which, before=read_cursor(args.cursor), limit=args.limit, shown=IN_A_LIST)
    letters = [_letter(row) for row in rows]
    total = await store.count_dead(at.database, which)
    return DeadLetterPage(letters, total, following([row["id"] for row in rows], args.limit))


@operation("GET /dead-letters/{id}", role="viewer")
async def get_dead_letter(at: Reader, args: GetDeadLetter) -> DeadLetterLine:
    """A message that was given up, with its payload, or the first 64 kB of it."""
    known = 0 < args.id < 2**63
    rows = await store.list_dead(at.database, DeadFilter(ids=(args.id,)), shown=SHOWN_BYTES) if known else []
    if not rows:
        raise NotFoundError(f"there is no dead letter {args.id}: it never existed, or was replayed")
    return msgspec.structs.replace(_letter(rows[0]), history=history_of(rows[0]))


@operation("POST /dead-letters/replay/preview", role="viewer")
async def preview_replay_dead_letters(at: Reader, args: ReplayDeadLetters) -> Preview:
    """Count the dead letters that a replay of the same would reach."""
    which = _matching(args, args.stream, args.ids, args.up_to)
    return preview_of(await store.match_dead(at.database, which, limit=MOST_MATCHES + 1))


@operation("POST /dead-letters/replay", role="operator", preview=preview_replay_dead_letters)
async def replay_dead_letters(tx: Transaction, args: ReplayDeadLetters) -> Replayed:
    """Make messages of dead letters again, with a fresh number of attempts."""
    if args.rate is not None and not 0 < args.rate < 1e9:
        raise ConfigError(f"a rate of {args.rate:g} messages a second would never try them again: give more than 0")
    if args.payload is not None and len(args.ids or ()) != 1:
        raise ConfigError("another payload is for one message: give the id of its dead letter")
    which = _matching(args, args.stream, args.ids, args.up_to)
    payload = None if args.payload is None else args.payload.encode()
    return Replayed(await store.replay_dead(tx, which, limit=MOST_MATCHES, rate=args.rate, payload=payload))


def _matching(
    args: DeadLetterFilter, stream: str | None, ids: Sequence[int] | None, up_to: int | None = None
) -> DeadFilter:
    """The filter as the store takes it."""
    if any(not 0 < each < 2**63 for each in (*(ids or ()), up_to or 1)):
        raise NotFoundError("there is no such dead letter")
    fields = {name: getattr(args, name) for name in DeadLetterFilter.__struct_fields__}
    fields |= {"since": zoned(args.since), "until": zoned(args.until)}
    return DeadFilter(**fields, stream=stream, ids=None if ids is None else tuple(ids), up_to=up_to)


def why_dead(letter: DeadLetterLine) -> list[str]:
    """Why a message was given up, as sentences."""
    attempts = "1 attempt" if letter.attempts == 1 else f"{letter.attempts} attempts"
    why = [f"Stream {letter.stream} gave up this message of source {letter.source} after {attempts}."]
    if letter.sink is not None:
        why = [f"Sink {letter.sink} refused what a message of source {letter.source} has handed over, {attempts}."]
    return [*why, letter.error] if letter.error else why


def history_of(row: Any) -> list[FailedAttemptLine]:
    """The failed attempts that are stored with a message."""
    return msgspec.convert(value_of(row["history"]) or [], list[FailedAttemptLine])


def _letter(row: Any) -> DeadLetterLine:
    payload = bytes(row["payload"])
    is_cut = row["payload_bytes"] > len(payload)
    changed = {
        "history": [],
        "payload": payload.decode(errors="replace"),
        "key": None if row["key"] is None else row["key"].decode(errors="replace"),
        "headers": value_of(row["headers"]),
        "truncated": is_cut,
        "whole": f"{VALUES}/dead-letter/payload/{row['id']}" if is_cut else None,
    }
    return DeadLetterLine(
        **{name: row[name] for name in DeadLetterLine.__struct_fields__ if name not in changed}, **changed
    )
