"""Messages of one key, one after the other: whose turn it is, and who waits behind."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from tidemill.sources.delivery import Delivery

Key = tuple[int, bytes]


class Keys:
    """The keys under way. A message that waits for another attempt still has its key's turn."""

    __slots__ = ("_behind", "held")

    def __init__(self, sources: int) -> None:
        self.held = [0] * sources
        """How many of each source wait behind another."""
        self._behind: dict[Key, deque[Delivery]] = {}

    def enter(self, delivery: Delivery) -> bool:
        """Whether it is its turn; otherwise it waits until `leave` names it."""
        name = _key(delivery)
        queue = self._behind.get(name)
        if queue is None:
            self._behind[name] = deque()
            return True
        queue.append(delivery)
        self.held[delivery.source] += 1
        return False

    def leave(self, delivery: Delivery) -> Delivery | None:
        """It is through; whose turn is next."""
        name = _key(delivery)
        queue = self._behind.get(name)
        if queue:
            self.held[delivery.source] -= 1
            return queue.popleft()
        self._behind.pop(name, None)
        return None

    def disband(self, delivery: Delivery) -> deque[Delivery]:
        """It is through, and nobody goes next: those that waited behind it, in their order."""
        queue = self._behind.pop(_key(delivery), None) or deque()
        self.held[delivery.source] -= len(queue)
        return queue

    def drop(self, is_lost: Callable[[Delivery], bool]) -> list[Delivery]:
        """Forget those that wait and are not ours any more; returns them."""
        dropped: list[Delivery] = []
        for queue in self._behind.values():
            gone = [delivery for delivery in queue if is_lost(delivery)]
            if gone:
                kept = [delivery for delivery in queue if not is_lost(delivery)]
                queue.clear()
                queue.extend(kept)
                dropped += gone
        for delivery in dropped:
            self.held[delivery.source] -= 1
        return dropped

    def clear(self) -> list[Delivery]:
        """Forget all; those that waited."""
        waiting = [delivery for queue in self._behind.values() for delivery in queue]
        self._behind.clear()
        self.held = [0] * len(self.held)
        return waiting


def _key(delivery: Delivery) -> Key:
    return delivery.source, delivery.key or b""
