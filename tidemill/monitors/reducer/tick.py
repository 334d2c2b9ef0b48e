"""The stages of a tick, and which of them a process takes part in. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec

Stage = Literal["reset", "roster", "ingest", "evaluate", "triggers", "sleep"]

PAUSED_RECHECK = 1.0
SUPERSEDED_RECHECK = 5.0


class Facts(msgspec.Struct, frozen=True):
    """What a process knows at the beginning of a tick."""

    paused: bool = False
    leads: bool = False
    """Whether it reads the source for all processes."""
    partitioned: bool = False
    """Whether the source has partitions, so that every process reads its own."""
    shares: int = 0
    """How many shares of the entities it owns."""
    current: bool = True
    """Whether its fold has the current version."""


def stages(facts: Facts) -> tuple[Stage, ...]:
    """The stages of this tick, in order."""
    if facts.paused or not facts.current:
        return ("reset", "sleep")
    reading: tuple[Stage, ...] = ("roster", "ingest") if facts.leads else ()
    if facts.partitioned and facts.shares and not facts.leads:
        reading = ("ingest",)
    evaluating: tuple[Stage, ...] = ("evaluate", "triggers") if facts.shares else ()
    return ("reset", *reading, *evaluating, "sleep")


def wanted_shares(members: list[int], me: int, shares: int) -> list[int]:
    """The shares of this process: they are dealt to the members in turn, the oldest first."""
    if me not in members:
        return []
    turn = sorted(members).index(me)
    return [share for share in range(shares) if share % len(members) == turn]
