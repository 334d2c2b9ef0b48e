"""Deduplication: the ids of recently finished messages. An id is added when its work has succeeded, never before."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from tidemill.sources.delivery import Delivery

MOST_IDS = 100_000  # of each source that are remembered here; the others are in the database


class RecentMessages:
    """The ids of the last `window` seconds, at most `most` of them."""

    __slots__ = ("_ids", "_most", "_window", "forgotten")

    def __init__(self, window: float, *, most: int) -> None:
        self._window = window
        self._most = most
        self._ids: OrderedDict[object, float] = OrderedDict()
        self.forgotten = 0
        """How many ids were dropped for newer ones before their time was over."""

    def has(self, id: object, now: float) -> bool:
        at = self._ids.get(id)
        return at is not None and now - at < self._window

    def note(self, id: object, now: float) -> None:
        self._ids[id] = now
        self._ids.move_to_end(id)
        while self._ids and (len(self._ids) > self._most or now - next(iter(self._ids.values())) >= self._window):
            _, at = self._ids.popitem(last=False)
            self.forgotten += now - at < self._window

    def __len__(self) -> int:
        return len(self._ids)


class MessageIds:
    """The ids of messages: those that were finished, and those of messages that are here."""

    def __init__(self, sources: int, window: float, max_concurrency: int) -> None:
        # Per source, and more than can wait before a message: no id is forgotten before its duplicate's turn.
        most = max(MOST_IDS, 4 * max_concurrency)
        self._seen = [RecentMessages(window, most=most) for _ in range(sources if window else 0)]
        self._under_way: dict[tuple[int, str], Delivery] = {}
        self._finished: list[tuple[int, str]] = []

    def was_finished(self, delivery: Delivery, now: float) -> bool:
        """Whether a message with its id was finished within the window."""
        return bool(self._seen) and self._seen[delivery.source].has(delivery.id, now)

    def follows(self, delivery: Delivery) -> bool:
        """Whether it waits for another message with its id that is here; if not, others will wait for it."""
        if not self._seen:
            return False
        first = self._under_way.setdefault((delivery.source, str(delivery.id)), delivery)
        if first is delivery:
            return False
        first.followers = [*(first.followers or ()), delivery]
        return True

    def finish(self, delivery: Delivery, now: float) -> None:
        """Its work has succeeded."""
        if self._seen and delivery.id is not None:
            self._seen[delivery.source].note(delivery.id, now)
            self._finished.append((delivery.source, delivery.id))

    def forget(self, delivery: Delivery) -> None:
        """Stop attaching duplicates to it."""
        if delivery.id is not None and self._under_way.get((delivery.source, delivery.id)) is delivery:
            del self._under_way[delivery.source, delivery.id]

    def forget_all(self) -> None:
        """No message is here now."""
        self._under_way.clear()

    def recall(self, index: int, ages: Mapping[str, float], now: float) -> None:
        """Messages of a source with these ids were finished before, by any dispatcher, this many seconds ago."""
        if self._seen:
            for id, age in ages.items():
                self._seen[index].note(id, now - age)

    def known(self, index: int) -> tuple[int, int]:
        """How many ids of a source are remembered here, and how many were forgotten before their time."""
        return (len(self._seen[index]), self._seen[index].forgotten) if self._seen else (0, 0)

    def take_finished(self) -> list[tuple[int, str]]:
        """The ids of messages that have succeeded since the last call, each with its source."""
        finished, self._finished = self._finished, []
        return finished
