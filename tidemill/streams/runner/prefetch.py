"""How far ahead a source is read: only so many messages wait here, and only so many bytes of them."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.sources.delivery import Delivery, size_of

#: What a message is taken for until one has come: large, so that the first question is a careful one.
UNKNOWN = 2.0**20


class Prefetch:
    """The bounds of one source. What a message will weigh is known by those that came before it."""

    def __init__(self, messages: int, size: int) -> None:
        self._messages = messages
        self._size = size
        self._each = UNKNOWN

    def room(self, waiting: int, size: int) -> int:
        """How many messages to ask for while so many wait, with so many bytes; 0 as long as that is enough."""
        messages, left = self._messages - waiting, self._size - size
        if messages < self._messages / 4 or left < self._size / 4:
            return 0
        return max(1, min(messages, int(left / self._each)))

    def is_low(self, waiting: int, size: int) -> bool:
        """Whether it is time for more."""
        return waiting <= self._messages / 2 and size <= self._size / 2

    def learn(self, deliveries: Sequence[Delivery]) -> None:
        """These have come. One that is large makes us careful at once, small ones make us bold by and by."""
        if deliveries:
            self._each = max(1.0, size_of(deliveries) / len(deliveries), self._each / 2)
