"""The order of a tick, and who takes part in which of its stages: pure."""

from __future__ import annotations

from typing import Literal

import msgspec

Stage = Literal["reset", "roster", "drain", "recompute", "triggers", "sleep"]
STAGES: tuple[Stage, ...] = ("reset", "roster", "drain", "recompute", "triggers", "sleep")

PAUSED_RECHECK = 1.0
SUPERSEDED_RECHECK = 5.0


class Facts(msgspec.Struct, frozen=True):
    """What a process knows at the beginning of a tick."""

    paused: bool = False
    leads: bool = False
    """Whether it asks the source, for all."""
    parted: bool = False
    """Whether the source is in parts, so that everybody asks for their own."""
    shares: int = 0
    """How many shares of the entities it follows."""
    current: bool = True
    """Whether its fold is the version that counts."""


def stages(facts: Facts) -> tuple[Stage, ...]:
    """What to do in this tick, in this order."""
    if facts.paused or not facts.current:
        return ("reset", "sleep")
    asking: tuple[Stage, ...] = ("roster", "drain") if facts.leads else ()
    if facts.parted and facts.shares and not facts.leads:
        asking = ("drain",)
    judging: tuple[Stage, ...] = ("recompute", "triggers") if facts.shares else ()
    return ("reset", *asking, *judging, "sleep")


def wanted_shares(members: list[int], me: int, shares: int) -> list[int]:
    """Which shares are this process's: they go round the members by turns, the oldest first."""
    if me not in members:
        return []
    turn = sorted(members).index(me)
    return [share for share in range(shares) if share % len(members) == turn]
