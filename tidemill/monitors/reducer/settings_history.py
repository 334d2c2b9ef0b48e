"""What people have set, as it was at each tick: pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from tidemill.core.codec import decode


class Step(msgspec.Struct, frozen=True):
    """What something is from a tick on, and when it was set."""

    tick: int
    value: Any
    at: float


class Steps(msgspec.Struct, frozen=True):
    """Something that changes from tick to tick."""

    first: Any
    steps: tuple[Step, ...] = ()

    def at(self, tick: int) -> Any:
        """What it is at a tick."""
        place = bisect_right(self.steps, tick, key=lambda step: step.tick)
        return self.first if not place else self.steps[place - 1].value

    def between(self, after: int, upto: int) -> Sequence[Step]:
        """What was set for the ticks after one, up to another."""
        return [step for step in self.steps if after < step.tick <= upto]


def steps_of(wishes: Iterable[Any], now: Any) -> Steps:
    """Steps from stored wishes about the same thing, in order; without any, it is as it is now."""
    found = list(wishes)
    if not found:
        return Steps(now)
    made = tuple(Step(wish["tick"], decode(wish["after"]), wish["at"]) for wish in found)
    return Steps(decode(found[0]["before"]), made)


def switched_on(off: Steps, after: int, upto: int) -> list[int]:
    """Ticks at which triggers were switched on again: everybody is looked at then."""
    found: list[int] = []
    for step in off.between(after, upto):
        if set(off.at(step.tick - 1)) - set(step.value):
            found.append(step.tick)
    return found
