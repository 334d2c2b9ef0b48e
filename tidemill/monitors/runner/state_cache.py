"""A least-recently-used cache of encoded states, limited in bytes."""

from __future__ import annotations

from collections import OrderedDict

_OVERHEAD = 200


class StateCache:
    """States by entity, each with the tick up to which it is folded."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._states: OrderedDict[str, tuple[int, bytes]] = OrderedDict()
        self.size = 0

    def __len__(self) -> int:
        return len(self._states)

    def get(self, entity: str, folded: int) -> bytes | None:
        """The state, if it is the version that the database has."""
        found = self._states.get(entity)
        if found is None or found[0] != folded:
            return None
        self._states.move_to_end(entity)
        return found[1]

    def put(self, entity: str, folded: int, state: bytes) -> None:
        self.drop(entity)
        self._states[entity] = (folded, state)
        self.size += len(state) + len(entity) + _OVERHEAD
        while self.size > self._most and self._states:
            oldest, (_, gone) = self._states.popitem(last=False)
            self.size -= len(gone) + len(oldest) + _OVERHEAD

    def drop(self, entity: str) -> None:
        found = self._states.pop(entity, None)
        if found is not None:
            self.size -= len(found[1]) + len(entity) + _OVERHEAD

    def clear(self) -> None:
        self._states.clear()
        self.size = 0
