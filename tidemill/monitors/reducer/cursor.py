"""The position of a monitor in its source, and how far back it reads again. Pure.

The cursor is the time and the id of the newest event, or the source's own token. Each poll begins a little before it,
so that late events are found; events that were seen before are dropped by their ids. `lateness` says how far.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tidemill.sources.base import SourceEvent


class SourceCursor(msgspec.Struct, frozen=True):
    """How far a source has been read; empty before the first event."""

    at: float | None = None
    id: str = ""
    token: str | None = None


def moved(cursor: SourceCursor, events: Sequence[SourceEvent], now: float, token: str | None = None) -> SourceCursor:
    """The cursor after these events; never beyond now, because one wrong clock must not hide later events."""
    newest = max(events, key=lambda event: (event.at, len(event.id), event.id), default=None)
    at, id = cursor.at, cursor.id
    if newest is not None and (at is None or newest.at > at or (newest.at == at and newest.id != id)):
        at, id = min(newest.at, now), newest.id
        if cursor.at is not None:
            at = max(at, cursor.at)
    return SourceCursor(at, id, cursor.token if token is None else token)
