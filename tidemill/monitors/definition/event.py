"""An observed event: its id at the source, when it happened, whom it is about, and what it says."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

Place = tuple[float, int, str]


class Event(msgspec.Struct, frozen=True):
    """What folds are given. `event["name"]` and `event.get("name")` read its data."""

    id: str
    at: float
    entity: str
    data: Any
    tick: int = 0

    def __getitem__(self, name: str) -> Any:
        return self.data[name]

    def get(self, name: str, default: Any = None) -> Any:
        return self.data.get(name, default)

    @property
    def place(self) -> Place:
        """Where it stands among the events of its entity."""
        return place_of(self.at, self.id)


class Tick(NamedTuple):
    """A moment at which entities are looked at: that up to which their source has been read."""

    number: int
    at: float
    clock: float | None = None
    """When it was completed, where that is later: while a source is behind, or a part of it does not answer."""

    @property
    def complete_at(self) -> float:
        return self.at if self.clock is None else self.clock


def place_of(at: float, id: str) -> Place:
    """The order of events: by time, and of equal times by id, so that 9 comes before 10."""
    return (at, len(id), id)
