""" "I'm going": which teacher visits which student, and which students are in the room. Both are audited labels."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from apps.classroom.ranking import Claim
from tidemill.core.errors import TidemillError
from tidemill.store.database import Database
from tidemill.store.monitors.roster import label_entity, show_entity
from tidemill.store.transaction import transaction

CLAIMED, PRESENT = "claimed", "present"
TRIES = 5


class TakenError(TidemillError):
    """Another teacher is on the way already."""


def read_labels(stored: bytes | None) -> dict[str, Any]:
    """The labels of a student, as they are stored."""
    return {} if stored is None else msgspec.json.decode(stored, type=dict[str, Any])


def claim_in(labels: Mapping[str, Any], now: float) -> Claim | None:
    """The claim that is still valid, if there is one."""
    try:
        claim = msgspec.convert(labels.get(CLAIMED), Claim | None)
    except msgspec.ValidationError:
        return None
    return claim if claim is not None and claim.holds(now) else None


def is_present(labels: Mapping[str, Any]) -> bool:
    return labels.get(PRESENT) is not False


async def claim(
    database: Database,
    student: str,
    who: str,
    monitor: str = "classroom",
    *,
    by: str,
    said: str = "",
    now: float | None = None,
) -> Claim:
    """Claim a student, visible to all. Of two claims at once one is refused with the name of the other teacher."""
    moment = time.time() if now is None else now
    wanted = Claim(who, round(moment, 3))
    for _ in range(TRIES):
        labels = read_labels((await show_entity(database, monitor, student))["labels"])
        standing = claim_in(labels, moment)
        if standing is not None and standing.who != who:
            raise TakenError(f"{standing.who} is on the way to {student} already")
        change, before = {CLAIMED: msgspec.to_builtins(wanted)}, (CLAIMED, labels.get(CLAIMED))
        async with transaction(database, by=by) as tx:
            if await label_entity(tx, monitor, student, change, expecting=before, said=said):
                return wanted
    raise TakenError(f"several people are on the way to {student}: look again")


async def give_back(database: Database, student: str, monitor: str = "classroom", *, by: str, said: str = "") -> None:
    """Withdraw a claim."""
    async with transaction(database, by=by) as tx:
        await label_entity(tx, monitor, student, {CLAIMED: None}, said=said)


async def mark_present(
    database: Database, student: str, present: bool, monitor: str = "classroom", *, by: str, said: str = ""
) -> None:
    """Record whether a student is in the room. An absent student cannot be inactive, and is not visited."""
    async with transaction(database, by=by) as tx:
        await label_entity(tx, monitor, student, {PRESENT: present}, said=said)
