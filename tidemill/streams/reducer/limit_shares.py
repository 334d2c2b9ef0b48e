"""How the dispatchers of a stream share a limit: each gets as much as it wants, up to an equal share of what is left.

Each dispatcher asks for its part from time to time and keeps it until the next time. A part that grows waits until
others have given theirs back, so that the parts together never exceed the limit.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class LimitAsk(msgspec.Struct, frozen=True):
    """What one dispatcher wants of a limit, and what it holds."""

    dispatcher: str
    wanted: float
    held: float = 0.0


def fair_parts(limit: float, asks: Sequence[LimitAsk]) -> dict[str, float]:
    """The part of each dispatcher: those that want little get it, the others share the rest equally."""
    parts: dict[str, float] = {}
    left = limit
    for number, ask in enumerate(sorted(asks, key=lambda ask: (ask.wanted, ask.dispatcher))):
        parts[ask.dispatcher] = min(ask.wanted, left / (len(asks) - number))
        left -= parts[ask.dispatcher]
    return parts


def whole_parts(limit: int, asks: Sequence[LimitAsk], turn: int) -> dict[str, int]:
    """The same in whole numbers. What cannot be divided goes to other dispatchers at every turn."""
    parts = {name: int(part + 1e-9) for name, part in fair_parts(float(limit), asks).items()}
    left = limit - sum(parts.values())
    names = sorted(ask.dispatcher for ask in asks if ask.wanted > parts[ask.dispatcher])
    for number in range(min(left, len(names))):
        parts[names[(turn + number) % len(names)]] += 1
    return parts


def granted(limit: float, part: float, asks: Sequence[LimitAsk], me: str) -> float:
    """How much of its part a dispatcher may take now: not what others still hold."""
    others = sum(ask.held for ask in asks if ask.dispatcher != me)
    return max(0.0, min(part, limit - others))
