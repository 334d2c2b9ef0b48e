"""Ranks the students to visit: pure decisions from open alerts and the state of each student.

A student counts by what is wrong, by how long it has been so, and by how many classmates the same visit would help.
Students who are claimed already come last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from apps.classroom.student import STUCK, Facts
from apps.classroom.words import together, tried, why

WEIGHTS = {"wheel-spin": 3.0, "inactive": 2.0, "big-rewrite": 1.0}
WAITED_MOST = 3600.0
MATE, MATES_MOST = 0.25, 1.0

#: How long a claim is valid, and how long a momentary alert is a reason to visit.
CLAIM_LASTS = 600.0
NEWS_LASTS = 180.0


class Claim(msgspec.Struct, frozen=True):
    """A teacher is on the way to a student."""

    who: str
    at: float

    def holds(self, now: float) -> bool:
        return now < self.at + CLAIM_LASTS


class Need(msgspec.Struct, frozen=True):
    """An alert that is not acknowledged."""

    id: int
    trigger: str
    since: float
    key: str | None = None
    lasting: bool = True


class Visit(msgspec.Struct, frozen=True):
    """A student to visit: why, since when, what was tried, and which teacher is going."""

    student: str
    why: str
    tried: str
    since: float
    trigger: str
    alerts: tuple[int, ...]
    claim: Claim | None = None
    mates: tuple[str, ...] = ()
    """Classmates who are stuck on the same block."""
    rank: float = 0.0


class Group(msgspec.Struct, frozen=True):
    """Students who are stuck on the same block."""

    block: str
    students: tuple[str, ...]
    text: str


def group_stuck(facts: Mapping[str, Facts]) -> list[Group]:
    """Students who are stuck on the same block, the largest group first; a group has at least two."""
    found: dict[str, list[str]] = {}
    for student, known in sorted(facts.items()):
        if known.strategy == STUCK and known.focus:
            found.setdefault(known.focus, []).append(student)
    groups = [Group(block, tuple(names), together(block, names)) for block, names in found.items() if len(names) > 1]
    return sorted(groups, key=lambda group: (-len(group.students), group.block))


def rank_visits(
    needs: Mapping[str, Sequence[Need]],
    facts: Mapping[str, Facts],
    claims: Mapping[str, Claim],
    now: float,
    *,
    away: Iterable[str] = (),
) -> list[Visit]:
    """Students with open alerts, the most urgent first; students in `away` are left out."""
    mates = {student: group for group in group_stuck(facts) for student in group.students}
    missing = set(away)
    visits: list[Visit] = []
    for student, open_now in needs.items():
        fresh = [need for need in open_now if need.lasting or now < need.since + NEWS_LASTS]
        if not fresh or student in missing:
            continue
        known = facts.get(student, Facts())
        order = sorted(fresh, key=lambda need: (-WEIGHTS.get(need.trigger, 1.0), need.since, need.id))
        kinds = list(dict.fromkeys(need.trigger for need in order))
        claim = claims.get(student)
        group = mates.get(student) if "wheel-spin" in kinds else None
        others = () if group is None else tuple(mate for mate in group.students if mate != student)
        visits.append(
            Visit(
                student=student,
                why=why(kinds, known, _change(order, known)),
                tried=tried(known),
                since=order[0].since,
                trigger=kinds[0],
                alerts=tuple(need.id for need in order),
                claim=claim if claim is not None and claim.holds(now) else None,
                mates=others,
                rank=_rank(kinds, now - order[0].since, len(others)),
            )
        )
    return sorted(visits, key=lambda visit: (visit.claim is not None, -visit.rank, visit.since, visit.student))


def _rank(kinds: Sequence[str], waited: float, mates: int) -> float:
    weight = sum(WEIGHTS.get(kind, 1.0) for kind in kinds)
    return round(weight + min(1.0, max(0.0, waited) / WAITED_MOST) + min(MATES_MOST, MATE * mates), 4)


def _change(order: Sequence[Need], known: Facts) -> float | None:
    """How much the run changed that the newest big rewrite is about."""
    keys = {need.key for need in order if need.key is not None}
    return next((run.change for run in reversed(known.recent) if run.id in keys), None)
