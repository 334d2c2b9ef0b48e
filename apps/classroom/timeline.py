"""The timeline of one student: runs with programs to read and what changed, their episodes, their alerts."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import msgspec

from apps.classroom.blocks import BadProgramError, Profile, Program, read_program
from apps.classroom.board import Line, line_of
from apps.classroom.claims import claim_in, is_present, read_labels
from apps.classroom.episodes import RUN_START, Episode, segment
from apps.classroom.prompt import playground_prompt
from apps.classroom.ranking import Claim
from apps.classroom.score import BUCKETS
from apps.classroom.student import STATES, GlassBox, Student, StudentState, facts_of, workspace_of
from apps.classroom.words import block_diff, program_lines, tried
from tidemill.monitors import Event
from tidemill.store.database import Database
from tidemill.store.monitors.alerts import list_alerts
from tidemill.store.monitors.events import read_span
from tidemill.store.monitors.roster import show_entity

MOST_RUNS = 100
MOST_EPISODES = 500


class RunTold(msgspec.Struct, frozen=True):
    """A run: what was run, what had changed since the run before, and its state by both decoders."""

    id: str
    at: float
    program: list[tuple[int, str, bool]]
    diff: list[dict[str, object]]
    change: float | None = None
    bucket: str | None = None
    state: str | None = None
    glass: str | None = None
    unreadable: bool = False


class Story(msgspec.Struct, frozen=True):
    """The runs, episodes and alerts of a student in a span; the newest runs, oldest first."""

    student: str
    since: float
    until: float
    state: str | None
    tried: str
    stuck_since: float | None
    runs_ever: int
    claim: Claim | None
    present: bool
    runs: list[RunTold]
    left_out: int
    """How many earlier runs of the span are left out."""
    episodes: list[Episode]
    counts: dict[str, int]
    """How often each type of event came."""
    alerts: list[Line]
    prompt: str


async def tell_story(
    database: Database, student: str, since: float, until: float, *, profile: Profile, monitor: str = "classroom"
) -> Story:
    """A student's events in a span. Raises `NotFoundError` for an unknown student."""
    row = await show_entity(database, monitor, student)
    state = StudentState() if row["state"] is None else msgspec.json.decode(row["state"], type=StudentState)
    events = [
        Event(each["source_id"], each["at"], student, msgspec.json.decode(each["data"]))
        async for each in read_span(database, monitor, since, until, [student])
    ]
    alerts = await list_alerts(database, monitor, entity=student, since=datetime.fromtimestamp(since, UTC), limit=200)
    runs, episodes, counts = await asyncio.to_thread(_walk, sorted(events, key=lambda event: event.place), profile)
    facts, labels = facts_of(state), read_labels(row["labels"])
    return Story(
        student=student,
        since=since,
        until=until,
        state=state.strategy_name,
        tried=tried(facts),
        stuck_since=facts.streak_start if state.strategy_name == "stuck" else None,
        runs_ever=state.runs,
        claim=claim_in(labels, until),
        present=is_present(labels),
        runs=runs[-MOST_RUNS:],
        left_out=max(0, len(runs) - MOST_RUNS),
        episodes=episodes[-MOST_EPISODES:],
        counts=counts,
        alerts=[line_of(each) for each in alerts if each["opened_at"].timestamp() <= until],
        prompt=playground_prompt(program_of(state.workspace or "")),
    )


def _walk(events: list[Event], profile: Profile) -> tuple[list[RunTold], list[Episode], dict[str, int]]:
    """Fold the span with both decoders, run by run."""
    model, glass = Student(profile=profile), GlassBox()
    one, other = StudentState(), StudentState()
    told: list[RunTold] = []
    counts: dict[str, int] = {}
    before: Program | None = None
    for event in events:
        kind = str(event.get("eventType", ""))
        counts[kind] = counts.get(kind, 0) + 1
        for fold, state in ((model, one), (glass, other)):
            state.new_runs.clear()
            fold.on_event(state, event)
        if kind != RUN_START:
            continue
        try:
            program = read_program(workspace_of(event))
        except BadProgramError:
            told.append(RunTold(event.id, event.at, [], [], unreadable=True))
            continue
        run = one.new_runs[-1] if one.new_runs else None
        told.append(
            RunTold(
                id=event.id,
                at=event.at,
                program=program_lines(program),
                diff=[] if before is None else block_diff(before, program),
                change=None if run is None else run.change,
                bucket=None if run is None else BUCKETS[run.bucket],
                state=None if run is None else STATES[run.state],
                glass=other.strategy_name,
            )
        )
        before = program
    return told, segment((str(event.get("eventType", "")), event.at) for event in events), counts


def program_of(workspace: str) -> Program:
    """The program in a workspace; none where it cannot be read."""
    try:
        return read_program(workspace)
    except BadProgramError:
        return Program()
