"""The preview of a bulk operation: which objects it would reach."""

from __future__ import annotations

import msgspec

MOST_MATCHES = 100_000
SAMPLE = 10


class Preview(msgspec.Struct, frozen=True):
    """What an operation would reach: how many (`more` if not all were counted), some of them, and the newest."""

    count: int
    more: bool
    sample: list[int]
    up_to: int | None


def preview_of(ids: list[int]) -> Preview:
    """From the ids that match, in their order, up to one more than are counted."""
    return Preview(min(len(ids), MOST_MATCHES), len(ids) > MOST_MATCHES, ids[:SAMPLE], ids[-1] if ids else None)
