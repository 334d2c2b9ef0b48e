"""Blame: what the death of a process says about the pieces of work that it held.

A process that dies while it holds one piece of work proves that one guilty: a *loss*, of which a piece of work may have
`max_losses`. If it held several, each of them is a suspect. Suspects run apart from all other work, in a quarantine
process, in groups that shrink with every death until a suspect is alone. One that ends in any other way is cleared. So
a guilty one is found after a few deaths, however many it was held with, and the innocent ones lose nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

#: How many suspects one process may hold together: after the first death, the second, and all later ones.
GROUPS = (64, 8, 1)

#: Suspected so often, a piece of work runs alone.
ALONE = len(GROUPS)


def group_size(suspicions: int) -> int:
    """How many pieces of work that are suspected this often may run in one process."""
    return GROUPS[min(max(suspicions, 1), ALONE) - 1]


def suspected_again(suspicions: int, *, alone: bool) -> int:
    """How often a piece of work is suspected after another death of its process, which held only it if `alone`."""
    return max(suspicions, ALONE) if alone else suspicions + 1


class Blame(msgspec.Struct, frozen=True):
    """How often a piece of work is suspected, and how often it has proved guilty."""

    suspicions: int = 0
    losses: int = 0


def after_death(held: Sequence[str], known: Mapping[str, Blame]) -> dict[str, Blame]:
    """What the death of a process says about the pieces of work that it held."""
    alone, found = len(held) == 1, {}
    for key in held:
        before = known.get(key, Blame())
        found[key] = Blame(suspected_again(before.suspicions, alone=alone), before.losses + alone)
    return found
