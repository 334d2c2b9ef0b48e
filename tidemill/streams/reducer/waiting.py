"""The messages of one source that wait here for a slot."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from tidemill.sources.base import Source, identify
from tidemill.sources.delivery import MOST_TIME, Delivery, size_of


class WaitingMessages:
    """Messages that hold their key, then stored ones that are due for another attempt and fresh ones in turn."""

    __slots__ = ("_again_is_next", "again", "again_size", "first", "fresh", "size")

    def __init__(self) -> None:
        self.first: deque[Delivery] = deque()
        """Messages that hold their key: others of the key wait behind them."""
        self.again: deque[Delivery] = deque()
        """Stored messages that are due for another attempt: retries and replays."""
        self.fresh: deque[Delivery] = deque()
        self.again_size = 0
        self.size = 0
        """The bytes of the fresh messages, and of those that wait behind their keys."""
        self._again_is_next = True

    def __len__(self) -> int:
        return len(self.first) + len(self.again) + len(self.fresh)

    def __iter__(self) -> Iterator[Delivery]:
        for queue in (self.first, self.again, self.fresh):
            yield from queue

    def put(self, deliveries: Sequence[Delivery]) -> None:
        self.fresh.extend(deliveries)
        self.size += size_of(deliveries)

    def put_again(self, deliveries: Sequence[Delivery]) -> None:
        self.again.extend(deliveries)
        self.again_size += size_of(deliveries)

    def put_back(self, deliveries: Iterable[Delivery]) -> None:
        """Put messages back in front of the fresh ones; their size was never subtracted."""
        self.fresh.extendleft(deliveries)

    def pop(self, *, only_again: bool) -> Delivery | None:
        """The next message that holds no key yet; with `only_again` no fresh one."""
        fresh = () if only_again else self.fresh
        if self.again and (self._again_is_next or not fresh):
            self._again_is_next = False
            delivery = self.again.popleft()
            self.again_size -= len(delivery.payload)
            return delivery
        if not fresh:
            return None
        self._again_is_next = True
        delivery = self.fresh.popleft()
        self.size -= len(delivery.payload)
        return delivery

    def remove(self, is_gone: Callable[[Delivery], bool]) -> list[Delivery]:
        """Remove and return messages; of those that hold a key, none is removed."""
        gone = take_matching(self.fresh, is_gone)
        again = take_matching(self.again, is_gone)
        self.size -= size_of(gone)
        self.again_size -= size_of(again)
        return gone + again

    def clear(self) -> list[Delivery]:
        """Remove and return all messages."""
        every = list(self)
        for queue in (self.first, self.again, self.fresh):
            queue.clear()
        self.size = self.again_size = 0
        return every


def prepare(source: Source, index: int, deliveries: Sequence[Delivery], wall: float) -> None:
    """Note on new messages which source they are of, when they arrived, their ids, and their deadlines by age."""
    for delivery in deliveries:
        delivery.source = index
        delivery.arrived = wall
        if not -MOST_TIME < delivery.at < MOST_TIME:
            delivery.at = 0.0  # A producer's clock may say anything, and no database stores it.
    if source.message_id is not None:
        for delivery in deliveries:
            delivery.id = identify(source, delivery)
    if source.max_age is not None:
        for delivery in deliveries:
            if delivery.deadline is None and delivery.at:
                delivery.deadline = delivery.at + float(source.max_age)  # pyright: ignore[reportArgumentType]


def take_matching(queue: deque[Delivery], matches: Callable[[Delivery], bool]) -> list[Delivery]:
    """Remove and return the messages of a queue that match."""
    taken = [delivery for delivery in queue if matches(delivery)]
    if taken:
        kept = [delivery for delivery in queue if not matches(delivery)]
        queue.clear()
        queue.extend(kept)
    return taken
