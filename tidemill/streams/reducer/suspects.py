"""Chooses the messages that run together in the quarantine engine: those whose engine died before."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.core.blame import group_size
from tidemill.sources.delivery import Delivery
from tidemill.streams.reducer.fair_share import Lane


def choose_suspects(
    admitted: Sequence[Delivery], lanes: Sequence[Lane], room: Sequence[int], free: int, now: float
) -> list[Delivery]:
    """The least suspected messages, as many as may run together, with room for each source and within its rate."""
    level = min((each.suspicions for each in admitted), default=0)
    group: list[Delivery] = []
    left = list(room)
    for each in admitted:
        bucket = lanes[each.source].bucket
        if each.suspicions != level or left[each.source] <= 0:
            continue
        if len(group) == min(free, group_size(level)):
            break
        if bucket is not None:
            if not bucket.available(now):
                continue
            bucket.take(1, now)
        left[each.source] -= 1
        group.append(each)
    return group
