"""What the teacher's page and researchers ask: whom to go to and why, cards, timelines, exports, how triggers fare."""

from __future__ import annotations

import asyncio
import csv
import hashlib
import hmac
import io
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from apps.classroom.blocks import BadProgramError, Program, diff, lines, read_program
from apps.classroom.episodes import CODE_EVENTS, RUN_END, RUN_START
from apps.classroom.prompt import plain_type, playground_prompt
from apps.classroom.student import STATES, STUCK, StudentState, workspace_of
from tidemill.core.duration import format_duration
from tidemill.monitors import Monitor, momentary
from tidemill.monitors.backtest import backtest
from tidemill.store.alerts import list_alerts
from tidemill.store.database import Database
from tidemill.store.observed import read_span
from tidemill.store.roster import label_entity, show_entity, show_states

WEIGHTS = {"wheel-spin": 3.0, "inactive": 2.0, "big-rewrite": 1.0}
LINGER = 120.0
CLAIMED = "claimed"
RIGHT, WRONG = "#right", "#wrong"


class Visit(msgspec.Struct, frozen=True):
    """A student to go to: why, in a sentence, for how long, what was tried, and who is going."""

    student: str
    why: str
    since: float
    lasts: float
    tried: str
    alerts: tuple[int, ...]
    claimed: str | None = None
    together: tuple[str, ...] = ()
    """Classmates who are stuck on the same block."""
    rank: float = 0.0


class Card(msgspec.Struct, frozen=True):
    """A student at a glance."""

    student: str
    strategy: str | None
    sparkline: tuple[float, ...]
    episode: str | None
    episode_since: float | None
    stuck_for: float | None
    runs: int
    last_seen: float | None
    claimed: str | None = None
    present: bool = True


async def whom_to_go_to(database: Database, monitor: str = "classroom", *, now: float | None = None) -> list[Visit]:
    """Students with open alerts, those who need it most first."""
    now = time.time() if now is None else now
    states = {row["entity"]: row for row in await show_states(database, monitor)}
    found: dict[str, list[Any]] = {}
    for alert in await list_alerts(database, monitor, current=True, linger=0.0, limit=5000):
        if alert["acked_at"] is None:
            found.setdefault(alert["entity"], []).append(alert)
    stuck_on: dict[str, list[str]] = {}
    for student, row in states.items():
        state = _state(row)
        if state is not None and state.strategy == STUCK and state.focus:
            stuck_on.setdefault(state.focus, []).append(student)
    visits = []
    for student, alerts in found.items():
        state = _state(states.get(student))
        worst = max(alerts, key=lambda alert: WEIGHTS.get(alert["trigger"], 1.0))
        since = worst["started_at"].timestamp()
        focus = state.focus if state is not None else None
        mates = stuck_on.get(focus or "", [])
        visits.append(
            Visit(
                student=student,
                why=_sentence(worst["trigger"], state, now - since),
                since=since,
                lasts=max(0.0, now - since),
                tried=_tried(state),
                alerts=tuple(alert["id"] for alert in alerts),
                claimed=_labels(states.get(student)).get(CLAIMED),
                together=tuple(mate for mate in mates if mate != student) if student in mates else (),
                rank=sum(WEIGHTS.get(a["trigger"], 1.0) for a in alerts) + min(1.0, (now - since) / 3600),
            )
        )
    return sorted(visits, key=lambda visit: (-visit.rank, visit.since, visit.student))


async def claim(database: Database, student: str, who: str | None, monitor: str = "classroom") -> None:
    """ "I'm going": seen by everybody who looks; None gives the claim back."""
    await label_entity(database, monitor, student, {CLAIMED: who}, by=who or "teacher")


async def mark_present(database: Database, student: str, present: bool, by: str, monitor: str = "classroom") -> None:
    """Whether a student is in the room: who is not cannot be inactive."""
    await label_entity(database, monitor, student, {"present": present}, by=by)


async def cards(database: Database, monitor: str = "classroom", *, now: float | None = None) -> list[Card]:
    """Everybody at a glance."""
    now = time.time() if now is None else now
    made = []
    for row in await show_states(database, monitor):
        state = _state(row) or StudentState()
        episode = state.episodes.current
        stuck = state.streak_start if state.strategy == STUCK else None
        made.append(
            Card(
                student=row["entity"],
                strategy=state.strategy_name,
                sparkline=tuple(run.change for run in state.recent[-20:]),
                episode=None if episode is None else episode.kind,
                episode_since=None if episode is None else episode.start,
                stuck_for=None if stuck is None else max(0.0, now - stuck),
                runs=state.runs,
                last_seen=row["last_at"],
                claimed=_labels(row).get(CLAIMED),
                present=_labels(row).get("present") is not False,
            )
        )
    return made


async def prompt_of(database: Database, student: str, monitor: str = "classroom") -> str:
    """The student's present program in words for a language model."""
    state = _state(await show_entity(database, monitor, student)) or StudentState()
    return playground_prompt(_program(state.workspace or ""))


async def timeline(
    database: Database, student: str, since: float, until: float, monitor: str = "classroom"
) -> list[dict[str, Any]]:
    """A student's runs with readable programs and what changed, and their other events by type."""
    told: list[dict[str, Any]] = []
    before = Program()
    async for row in read_span(database, monitor, since, until, [student]):
        data = msgspec.json.decode(row["data"])
        entry: dict[str, Any] = {"id": row["source_id"], "at": row["at"], "type": data.get("eventType")}
        if data.get("eventType") == RUN_START:
            program = _program(workspace_of(data))
            entry |= {"program": lines(program), "changed": diff(before, program)}
            before = program
        told.append(entry)
    return sorted(told, key=lambda entry: entry["at"])


# -- for researchers ------------------------------------------------------------------------------


async def how_often(
    database: Database, watch: Monitor, since: float, until: float, thresholds: Sequence[float]
) -> dict[float, int]:
    """How often a big rewrite would have been told of, for each threshold."""
    rules = [
        momentary(f"above {bound:g}", of=lambda s: list(s.new_runs), when=lambda run, bound=bound: run.change >= bound)
        for bound in thresholds
    ]
    # The first trigger's list is emptied for all: the last one takes it as it is.
    rules.append(momentary("all", of=lambda s: s.new_runs, when=lambda run: False))
    counts = (await backtest(database, watch, since, until, triggers=rules)).counts()
    return {bound: counts.get(f"above {bound:g}", 0) for bound in thresholds}


async def relive(
    database: Database,
    since: float,
    until: float,
    *,
    speed: float = 10.0,
    monitor: str = "classroom",
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> AsyncIterator[dict[str, Any]]:
    """A day once more, so many times faster: its events and alerts as they came."""
    told: list[dict[str, Any]] = []
    async for row in read_span(database, monitor, since, until):
        kind = msgspec.json.decode(row["data"]).get("eventType")
        told.append({"at": row["at"], "student": row["entity"], "event": kind})
    for alert in await list_alerts(database, monitor, since=since, limit=100_000):
        at = alert["opened_at"].timestamp()
        if at < until:
            told.append({"at": at, "student": alert["entity"], "alert": alert["trigger"]})
    before = since
    for entry in sorted(told, key=lambda entry: entry["at"]):
        await sleep(max(0.0, entry["at"] - before) / speed)
        before = entry["at"]
        yield entry


async def precision(database: Database, monitor: str = "classroom") -> dict[str, tuple[int, int]]:
    """How many of a trigger's alerts were marked as right and as wrong, by #right and #wrong in their notes."""
    found: dict[str, tuple[int, int]] = {}
    for alert in await list_alerts(database, monitor, limit=100_000):
        note = alert["note"] or ""
        right, wrong = found.get(alert["trigger"], (0, 0))
        found[alert["trigger"]] = (right + (RIGHT in note), wrong + (WRONG in note))
    return found


def pseudonym(student: str, key: str) -> str:
    """A name that stays the same for a student and tells nothing about them without the key."""
    return "p" + hmac.new(key.encode(), student.encode(), hashlib.sha256).hexdigest()[:12]


PROGSNAP = {
    RUN_START: "Run.Program",
    RUN_END: "X-Run.End",
    "loadProject": "Project.Open",
    "newProject": "Project.Create",
}
COLUMNS = (
    "EventID", "SubjectID", "ToolInstances", "CodeStateID", "EventType", "Order", "ServerTimestamp", "SessionID",
    "ProjectID", "X-ChangeType",
)  # fmt: skip


async def export_progsnap2(
    database: Database, since: float, until: float, *, key: str, monitor: str = "classroom"
) -> tuple[str, dict[str, str]]:
    """The main table of ProgSnap2 as CSV, and the programs by their code states. Students have pseudonyms."""
    out = io.StringIO()
    table = csv.DictWriter(out, COLUMNS, restval="")
    table.writeheader()
    programs: dict[str, str] = {}
    states: dict[str, str] = {}
    rows = [row async for row in read_span(database, monitor, since, until)]
    for order, row in enumerate(sorted(rows, key=lambda row: (row["at"], len(row["source_id"]), row["source_id"]))):
        data = msgspec.json.decode(row["data"])
        kind, who = str(data.get("eventType", "")), pseudonym(row["entity"], key)
        if kind == RUN_START:
            workspace = workspace_of(data)
            states[who] = hashlib.sha256(workspace.encode()).hexdigest()[:16]
            programs[states[who]] = workspace
        table.writerow(
            {
                "EventID": row["source_id"],
                "SubjectID": who,
                "ToolInstances": "Blockly",
                "CodeStateID": states.get(who, ""),
                "EventType": "File.Edit" if kind in CODE_EVENTS else PROGSNAP.get(kind, f"X-{kind}"),
                "Order": order,
                "ServerTimestamp": datetime.fromtimestamp(row["at"], UTC).isoformat(),
                "X-ChangeType": kind if kind in CODE_EVENTS else "",
            }
        )
    return out.getvalue(), programs


async def export_alerts(database: Database, *, key: str, monitor: str = "classroom") -> str:
    """All alerts as CSV, with pseudonyms."""
    out = io.StringIO()
    table = csv.writer(out)
    table.writerow(["alert", "student", "trigger", "started", "opened", "resolved", "acknowledged", "note"])
    for alert in sorted(await list_alerts(database, monitor, limit=100_000), key=lambda row: row["id"]):
        moments = [alert[name] for name in ("started_at", "opened_at", "resolved_at", "acked_at")]
        told = ["" if moment is None else moment.isoformat() for moment in moments]
        table.writerow([alert["id"], pseudonym(alert["entity"], key), alert["trigger"], *told, alert["note"] or ""])
    return out.getvalue()


# -- inner parts ----------------------------------------------------------------------------------


def _state(row: Any) -> StudentState | None:
    if row is None or row["state"] is None:
        return None
    return msgspec.json.decode(row["state"], type=StudentState)


def _labels(row: Any) -> dict[str, Any]:
    return {} if row is None or row["labels"] is None else msgspec.json.decode(row["labels"])


def _program(workspace: str) -> Program:
    try:
        return read_program(workspace)
    except BadProgramError:
        return Program()


def _sentence(trigger: str, state: StudentState | None, lasts: float) -> str:
    how_long = format_duration(max(0.0, lasts))
    if trigger == "wheel-spin":
        on = f" on {plain_type(state.focus)}" if state is not None and state.focus else ""
        return f"has been stuck{on} for {how_long}"
    if trigger == "inactive":
        return f"has done nothing for {how_long}"
    return "has just replaced most of the program"


def _tried(state: StudentState | None) -> str:
    if state is None or not state.recent:
        return "nothing was run yet"
    last = state.recent[-min(len(state.recent), max(1, state.streak_runs)) :]
    same = sum(run.bucket == 0 for run in last)
    return f"{len(last)} runs as {STATES[last[-1].state]}, {same} of them without a change"


def as_rows(items: Iterable[Any]) -> list[dict[str, Any]]:
    """Visits or cards as JSON objects."""
    return [msgspec.to_builtins(item) for item in items]
