"""Settings of operators over time: their value at each tick. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from tidemill.core.codec import decode


class SettingChange(msgspec.Struct, frozen=True):
    """The value of a setting from a tick on, and when it was set."""

    tick: int
    value: Any
    at: float


class SettingHistory(msgspec.Struct, frozen=True):
    """A setting over time."""

    first: Any
    steps: tuple[SettingChange, ...] = ()

    def at(self, tick: int) -> Any:
        """The value at a tick."""
        place = bisect_right(self.steps, tick, key=lambda step: step.tick)
        return self.first if not place else self.steps[place - 1].value

    def between(self, after: int, upto: int) -> Sequence[SettingChange]:
        """The changes after one tick, up to another."""
        return [step for step in self.steps if after < step.tick <= upto]


def history_of(changes: Iterable[Any], now: Any) -> SettingHistory:
    """The history of one setting from its stored changes, in order; without changes it has its present value."""
    found = list(changes)
    if not found:
        return SettingHistory(now)
    made = tuple(SettingChange(change["tick"], decode(change["after"]), change["at"]) for change in found)
    first = decode(found[0]["before"])
    return SettingHistory({} if first is None else first, made)


def added_ticks(changes: Iterable[Any]) -> frozenset[int]:
    """The ticks at which an entity was added to the list: it had no labels before, not even none."""
    return frozenset(change["tick"] for change in changes if decode(change["before"]) is None)


def switched_on(off: SettingHistory, after: int, upto: int) -> list[int]:
    """The ticks at which triggers were switched on again: all entities are evaluated then."""
    found: list[int] = []
    for step in off.between(after, upto):
        if set(off.at(step.tick - 1)) - set(step.value):
            found.append(step.tick)
    return found
