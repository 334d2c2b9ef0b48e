"""What the teacher's page shows: which students to visit, all students, and current alerts.

A board is read once for all viewers. The state of a student is decoded only when it has changed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from apps.classroom.claims import claim_in, is_present, read_labels
from apps.classroom.ranking import Claim, Group, Need, Visit, group_stuck, rank_visits
from apps.classroom.student import STATES, STUCK, Facts, StudentState, facts_of
from apps.classroom.words import block_name
from tidemill.core.codec import decode
from tidemill.store.database import Database
from tidemill.store.monitors.alerts import list_current
from tidemill.store.monitors.monitors import read_fingerprint
from tidemill.store.monitors.roster import list_roster, show_states

#: How long the feed shows resolved and momentary alerts.
LINGER, SHOWN_FOR = 120.0, 600.0
MOST_ALERTS = 5000
MOST_STUDENTS = 10_000
FEED = 200
NOT_STARTED = "not started"


class Card(msgspec.Struct, frozen=True):
    """A student in the overview."""

    student: str
    state: str | None
    sparkline: tuple[float, ...]
    episode: str | None
    episode_since: float | None
    stuck_since: float | None
    runs: int
    zero_runs: int
    """How many runs in a row were without a change: what the glass box looks at."""
    focus: str | None
    last_seen: float | None
    claim: Claim | None = None
    present: bool = True
    problem: str | None = None


class Line(msgspec.Struct, frozen=True):
    """An alert in the feed."""

    id: int
    student: str
    trigger: str
    kind: str
    severity: str
    started_at: float
    opened_at: float
    resolved_at: float | None
    acked_at: float | None
    acked_by: str | None
    note: str | None


class Board(msgspec.Struct, frozen=True):
    """Everything that the page shows, as of `now`."""

    now: float
    health: str
    error: str | None
    paused: bool
    off: tuple[str, ...]
    """Triggers that are switched off."""
    visits: list[Visit]
    groups: list[Group]
    cards: list[Card]
    feed: list[Line]


class BoardReader:
    """Reads boards; caches the decoded state of each student until it changes."""

    def __init__(self, database: Database, monitor: str = "classroom") -> None:
        self._database = database
        self._monitor = monitor
        self._known: dict[str, tuple[int, Facts]] = {}

    async def pulse(self) -> tuple[Any, ...]:
        """A value that changes with the board. One look-up, whatever the size of the class."""
        row = await read_fingerprint(self._database, self._monitor)
        if row is None:
            return ()
        status = _status(row)
        return (
            row["tick"],
            row["behind"],
            row["alert_change"],
            row["audit_entry"],
            row["paused"],
            tuple(row["off"]),
            *status,
        )

    async def read(self, *, now: float | None = None) -> Board:
        """The board as it is now."""
        moment = time.time() if now is None else now
        pulse = await read_fingerprint(self._database, self._monitor)
        if pulse is None:
            return Board(moment, NOT_STARTED, None, False, (), [], [], [], [])
        roster = await list_roster(self._database, self._monitor, limit=MOST_STUDENTS)
        facts = await self._facts({row["entity"]: row["folded"] for row in roster})
        labels = {row["entity"]: read_labels(row["labels"]) for row in roster}
        claims = {name: claim for name, each in labels.items() if (claim := claim_in(each, moment)) is not None}
        alerts = await list_current(self._database, self._monitor, linger=LINGER, news=SHOWN_FOR, limit=MOST_ALERTS)
        away = [name for name, each in labels.items() if not is_present(each)]
        here = {name: known for name, known in facts.items() if name not in away}
        health, error = _status(pulse)
        return Board(
            now=moment,
            health=health,
            error=error,
            paused=pulse["paused"],
            off=tuple(pulse["off"]),
            visits=rank_visits(_needs(alerts, set(facts)), facts, claims, moment, away=away),
            groups=group_stuck(here),
            cards=[
                _card(row, facts[row["entity"]], claims.get(row["entity"]), labels[row["entity"]]) for row in roster
            ],
            feed=[line_of(row) for row in alerts if _is_news(row, moment)][:FEED],
        )

    async def _facts(self, folded: Mapping[str, int]) -> dict[str, Facts]:
        moved = [name for name, tick in folded.items() if self._known.get(name, (-1, None))[0] != tick]
        if moved:
            for row in await show_states(self._database, self._monitor, entities=moved, limit=len(moved)):
                self._known[row["entity"]] = (row["folded"], _read(row["state"]))
        for gone in set(self._known) - set(folded):
            del self._known[gone]
        return {name: self._known[name][1] if name in self._known else Facts() for name in folded}


def line_of(row: Any) -> Line:
    """An alert as it is shown."""
    return Line(
        id=row["id"],
        student=row["entity"],
        trigger=row["trigger"],
        kind=row["kind"],
        severity=row["severity"],
        started_at=row["started_at"].timestamp(),
        opened_at=row["opened_at"].timestamp(),
        resolved_at=_seconds(row["resolved_at"]),
        acked_at=_seconds(row["acked_at"]),
        acked_by=row["acked_by"],
        note=row["note"],
    )


def _status(row: Any) -> tuple[str, str | None]:
    """The health and the error that the monitor last reported."""
    told: dict[str, Any] = {} if row["status"] is None else decode(row["status"])
    return str(told.get("health", NOT_STARTED)), told.get("error")


def _seconds(moment: Any) -> float | None:
    return None if moment is None else moment.timestamp()


def _read(state: bytes | None) -> Facts:
    return Facts() if state is None else facts_of(msgspec.json.decode(state, type=StudentState))


def _needs(alerts: list[Any], known: set[str]) -> dict[str, list[Need]]:
    """Alerts that are not acknowledged, by student, without resolved ones."""
    found: dict[str, list[Need]] = {}
    for row in alerts:
        momentary = row["kind"] == "momentary"
        if row["acked_at"] is None and row["entity"] in known and (momentary or row["resolved_at"] is None):
            since = row["started_at"].timestamp()
            need = Need(row["id"], row["trigger"], since, row["key"], lasting=not momentary)
            found.setdefault(row["entity"], []).append(need)
    return found


def _is_news(row: Any, now: float) -> bool:
    return row["kind"] != "momentary" or now < row["started_at"].timestamp() + SHOWN_FOR


def _card(row: Any, facts: Facts, claim: Claim | None, labels: Mapping[str, Any]) -> Card:
    return Card(
        student=row["entity"],
        state=None if facts.strategy is None else STATES[facts.strategy],
        sparkline=tuple(round(run.change, 3) for run in facts.recent),
        episode=facts.episode,
        episode_since=facts.episode_since,
        stuck_since=facts.streak_start if facts.strategy == STUCK else None,
        runs=facts.runs,
        zero_runs=facts.zero_runs,
        focus=block_name(facts.focus) if facts.focus else None,
        last_seen=row["last_at"],
        claim=claim,
        present=is_present(labels),
        problem=row["problem"],
    )
