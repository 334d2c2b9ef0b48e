"""Order within a key: messages of the same key are processed one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from tidemill.sources.delivery import Delivery
from tidemill.streams.reducer.waiting import take_matching

Key = tuple[int, bytes]


class KeyOrder:
    """The keys in use. A message that waits for another attempt keeps its key."""

    __slots__ = ("_behind", "held")

    def __init__(self, sources: int) -> None:
        self.held = [0] * sources
        """How many messages of each source wait for their key."""
        self._behind: dict[Key, deque[Delivery]] = {}

    def __iter__(self) -> Iterator[Delivery]:
        """The messages that wait for their key."""
        for queue in self._behind.values():
            yield from queue

    def enter(self, delivery: Delivery, now: float) -> bool:
        """Take the key if it is free; otherwise the message waits until `leave` returns it."""
        name = _key(delivery)
        queue = self._behind.get(name)
        if queue is None:
            self._behind[name] = deque()
            return True
        queue.append(delivery)
        delivery.for_key = -now
        self.held[delivery.source] += 1
        return False

    def leave(self, delivery: Delivery, now: float) -> Delivery | None:
        """Release the key of a finished message; returns the message that gets it next."""
        name = _key(delivery)
        queue = self._behind.get(name)
        if queue:
            self.held[delivery.source] -= 1
            following = queue.popleft()
            following.for_key += now
            return following
        self._behind.pop(name, None)
        return None

    def release_waiting(self, delivery: Delivery) -> deque[Delivery]:
        """Release the key without a successor; returns the messages that waited for it, in order."""
        queue = self._behind.pop(_key(delivery), None) or deque()
        self.held[delivery.source] -= len(queue)
        return queue

    def drop(self, is_lost: Callable[[Delivery], bool]) -> list[Delivery]:
        """Remove and return the waiting messages that belong to another reader now."""
        dropped = [delivery for queue in self._behind.values() for delivery in take_matching(queue, is_lost)]
        for delivery in dropped:
            self.held[delivery.source] -= 1
        return dropped

    def clear(self) -> list[Delivery]:
        """Release all keys; returns the messages that waited."""
        waiting = list(self)
        self._behind.clear()
        self.held = [0] * len(self.held)
        return waiting


def _key(delivery: Delivery) -> Key:
    return delivery.source, delivery.key or b""
