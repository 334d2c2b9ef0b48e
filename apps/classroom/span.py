"""A stored span, folded once: the runs of each student, the states by both decoders, and the silences.

How often a trigger would have fired for any threshold, and the replay of a day, follow from this without reading the
events again.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import msgspec

from apps.classroom.blocks import Profile
from apps.classroom.episodes import RUN_START
from apps.classroom.student import STUCK, GlassBox, Run, Student, StudentState
from tidemill.monitors import Event
from tidemill.store.database import Database
from tidemill.store.monitors.events import read_span

CHANGES = tuple(step / 100 for step in range(5, 101))
ZERO_RUNS = tuple(range(2, 21))
SILENCES = tuple(minutes * 60.0 for minutes in (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 30))


class Lived(msgspec.Struct, frozen=True):
    """The runs, states and silences of one student in a span."""

    student: str
    runs: list[Run]
    glass: list[int]
    """What the glass box said of each run."""
    zeros: list[int]
    """How long each stretch of runs without a change was."""
    silences: list[float]
    """How long nothing came, whenever that was long enough to count for any threshold."""
    first: float
    last: float
    events: int


class _Kind(msgspec.Struct, frozen=True):
    """The fields that are needed of most events."""

    eventType: Any = None


class Sweep(msgspec.Struct, frozen=True):
    """How often triggers would have fired, for each threshold."""

    students: int
    events: int
    runs: int
    big_rewrite: list[tuple[float, int]]
    zero_runs: list[tuple[int, int]]
    inactive: list[tuple[float, int]]
    stuck: int
    """How often the model called a student stuck."""


async def live_through(
    database: Database, since: float, until: float, *, profile: Profile, monitor: str = "classroom"
) -> list[Lived]:
    """Fold the span of each student, in a thread, so that other requests are answered."""
    found: list[Lived] = []
    gathered: list[Event] = []

    async def finish() -> None:
        if gathered:
            found.append(await asyncio.to_thread(live, list(gathered), until, profile))
            gathered.clear()

    async for row in read_span(database, monitor, since, until):
        if gathered and gathered[-1].entity != row["entity"]:
            await finish()
        kind = msgspec.json.decode(row["data"], type=_Kind).eventType
        data = msgspec.json.decode(row["data"]) if kind == RUN_START else {"eventType": kind}
        gathered.append(Event(row["source_id"], row["at"], row["entity"], data))
    await finish()
    return found


def live(events: Sequence[Event], until: float, profile: Profile) -> Lived:
    """Fold the span of one student. Of other events than runs, only the time counts. Pure."""
    order = sorted(events, key=lambda event: event.place)
    fold, glass_box = Student(profile=profile), GlassBox(profile=profile)
    one, other = StudentState(), StudentState()
    runs: list[Run] = []
    glass: list[int] = []
    for event in order:
        if event.get("eventType") != RUN_START:
            continue
        for folding, state in ((fold, one), (glass_box, other)):
            state.new_runs.clear()
            folding.on_event(state, event)
        runs += one.new_runs
        glass += [run.state for run in other.new_runs]
    times = [event.at for event in order] + [until]
    gaps = [after - before for before, after in zip(times, times[1:], strict=False)]  # noqa: RUF007
    return Lived(
        student=order[0].entity,
        runs=runs,
        glass=glass,
        zeros=_streaks([run.bucket == 0 for run in runs]),
        silences=[gap for gap in gaps if gap >= SILENCES[0]],
        first=times[0],
        last=times[-2],
        events=len(order),
    )


def sweep(lives: Sequence[Lived]) -> Sweep:
    """How often each trigger would have fired, for every threshold at once. Pure."""
    changes = [run.change for life in lives for run in life.runs]
    zeros = [length for life in lives for length in life.zeros]
    silences = [gap for life in lives for gap in life.silences]
    return Sweep(
        students=len(lives),
        events=sum(life.events for life in lives),
        runs=len(changes),
        big_rewrite=at_least(changes, CHANGES),
        zero_runs=at_least(zeros, ZERO_RUNS),
        inactive=at_least(silences, SILENCES),
        stuck=sum(len(_streaks([run.state == STUCK for run in life.runs])) for life in lives),
    )


def at_least(values: Sequence[Any], bounds: Sequence[Any]) -> list[tuple[Any, int]]:
    """For each bound, how many values reach it."""
    order = sorted(values)
    return [(bound, len(order) - bisect_left(order, bound)) for bound in bounds]


def _streaks(flags: Sequence[bool]) -> list[int]:
    """The lengths of the streaks in which a condition held."""
    found: list[int] = []
    length = 0
    for flag in [*flags, False]:
        if flag:
            length += 1
        elif length:
            found.append(length)
            length = 0
    return found
