"""Where a monitor stands in its source, and how far back it asks again: pure.

The cursor is the time of the newest event and its id, or the source's own word for its position. Each poll asks from a
little before it, so that events at the edge and those that come late are seen; what was seen before is dropped by its
id. How far before follows from how late events have been.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tidemill.sources.base import SourceEvent

MARGIN = 1.5
FADING = 0.98


class Cursor(msgspec.Struct, frozen=True):
    """How far a source has been read. Nothing is set before the first event."""

    at: float | None = None
    id: str = ""
    token: str | None = None


def ask_from(cursor: Cursor, lateness: float, *, least: float, most: float) -> float | None:
    """The time from which to ask: before the cursor by the overlap."""
    return None if cursor.at is None else cursor.at - overlap(lateness, least=least, most=most)


def overlap(lateness: float, *, least: float, most: float) -> float:
    """How far back to ask: what was declared, or more where events have been seen to come later."""
    return min(max(least, lateness * MARGIN), max(least, most))


def moved(cursor: Cursor, events: Sequence[SourceEvent], now: float, token: str | None = None) -> Cursor:
    """The cursor after these events: never beyond now, for one wrong clock must not hide all that follows."""
    newest = max(events, key=lambda event: (event.at, len(event.id), event.id), default=None)
    at, id = cursor.at, cursor.id
    if newest is not None and (at is None or newest.at > at or (newest.at == at and newest.id != id)):
        at, id = min(newest.at, now), newest.id
        if cursor.at is not None:
            at = max(at, cursor.at)
    return Cursor(at, id, cursor.token if token is None else token)


def adapted(lateness: float, seen: float) -> float:
    """The lateness to reckon with: grows at once, fades slowly."""
    return max(seen, lateness * FADING)
