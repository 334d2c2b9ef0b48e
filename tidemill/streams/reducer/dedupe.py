"""Deduplication: the ids of recently finished messages. An id is added when its work has succeeded, never before."""

from __future__ import annotations

from collections import OrderedDict


class RecentMessages:
    """The ids of the last `window` seconds, at most `most` of them."""

    __slots__ = ("_ids", "_most", "_window")

    def __init__(self, window: float, *, most: int = 100_000) -> None:
        self._window = window
        self._most = most
        self._ids: OrderedDict[object, float] = OrderedDict()

    def has(self, id: object, now: float) -> bool:
        at = self._ids.get(id)
        return at is not None and now - at < self._window

    def note(self, id: object, now: float) -> None:
        self._ids[id] = now
        self._ids.move_to_end(id)
        while self._ids and (len(self._ids) > self._most or now - next(iter(self._ids.values())) >= self._window):
            self._ids.popitem(last=False)

    def __len__(self) -> int:
        return len(self._ids)
