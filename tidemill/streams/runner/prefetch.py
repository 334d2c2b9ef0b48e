"""Limits how far ahead a source is read, by number and by size of the waiting messages."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.sources.delivery import Delivery, size_of

#: The assumed size of a message before the first one: large, so that the first request is for few.
UNKNOWN = 2.0**20


class Prefetch:
    """The limits of one source. The size of the next messages is estimated from the last ones."""

    def __init__(self, messages: int, size: int) -> None:
        self._messages = messages
        self._size = size
        self._each = UNKNOWN

    def room(self, waiting: int, size: int) -> int:
        """How many messages to request while this many wait, with this many bytes; 0 while that is enough."""
        messages, left = self._messages - waiting, self._size - size
        if messages < self._messages / 4 or left < self._size / 4:
            return 0
        return max(1, min(messages, int(left / self._each)))

    def is_low(self, waiting: int, size: int) -> bool:
        """Whether more messages should be requested."""
        return waiting <= self._messages / 2 and size <= self._size / 2

    def update_size(self, deliveries: Sequence[Delivery]) -> None:
        """Update the estimated size: a large message raises it at once, small ones lower it step by step."""
        if deliveries:
            self._each = max(1.0, size_of(deliveries) / len(deliveries), self._each / 2)
