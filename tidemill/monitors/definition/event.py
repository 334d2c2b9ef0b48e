"""An event of an entity, and the tick at which entities are evaluated."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

Place = tuple[float, int, str]


class Event(msgspec.Struct, frozen=True):
    """The argument of folds. `event["name"]` and `event.get("name")` read its data."""

    id: str
    at: float
    entity: str
    data: Any
    tick: int = 0
    past: bool = False
    """Whether it is from before its entity was followed."""

    def __getitem__(self, name: str) -> Any:
        return self.data[name]

    def get(self, name: str, default: Any = None) -> Any:
        return self.data.get(name, default)

    @property
    def place(self) -> Place:
        """Its position among the events of its entity."""
        return place_of(self.at, self.id)


class MonitorTick(NamedTuple):
    """The time at which entities are evaluated: the time up to which the source has been read."""

    number: int
    at: float
    clock: float | None = None
    """When it was completed, if that is later: while a source is behind, or a partition does not answer."""

    @property
    def complete_at(self) -> float:
        return self.at if self.clock is None else self.clock


def place_of(at: float, id: str) -> Place:
    """The order of events: by time, then by id, with 9 before 10."""
    return (at, len(id), id)
