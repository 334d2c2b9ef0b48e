"""A student, folded from events: programs are compared run by run, and the changes show how the student works.

`Student` decodes with a hidden Markov model. `GlassBox` calls a student stuck after a number of runs in a row without
any change: less precise, and easy to understand.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from apps.classroom.blocks import BadProgramError, Profile, read_program, types_of
from apps.classroom.episodes import CODE_EVENTS, RUN_START, Episodes
from apps.classroom.score import BUCKETS, bucket_of, change_score
from tidemill.monitors.decoders import Hmm, PathState, Viterbi

MODEL = Path(__file__).with_name("model.json")
STATES = ("iterator", "explorer", "stuck")
STUCK = 2
SPARKLINE = 50
TIMES = 500
ZERO_RUNS = 5
TOUCHED = 4


class Run(msgspec.Struct, omit_defaults=True):
    """One run of a program: how much it had changed since the one before."""

    id: str
    at: float
    change: float
    bucket: int
    state: int


class StudentState(msgspec.Struct, omit_defaults=True):
    """What is known of a student."""

    runs: int = 0
    workspace: str | None = None
    """The program of the last run."""
    path: PathState = msgspec.field(default_factory=PathState)
    strategy: int | None = None
    streak_start: float | None = None
    """When the first run of the present stretch in this state was."""
    streak_runs: int = 0
    zero_runs: int = 0
    recent: list[Run] = []
    times: list[float] = []
    new_runs: list[Run] = []
    """Runs that triggers have not looked at yet."""
    episodes: Episodes = msgspec.field(default_factory=Episodes)
    focus: str | None = None
    """The type of the block that was last changed."""
    touched: list[str] = []
    """The types of the blocks that were changed lately, the newest last."""
    project: str | None = None
    unreadable: int = 0

    @property
    def strategy_name(self) -> str | None:
        return None if self.strategy is None else STATES[self.strategy]


class Facts(msgspec.Struct, frozen=True):
    """What lists and cards need of a student: small, so that it can be cached for all students."""

    strategy: int | None = None
    runs: int = 0
    scored: int = 0
    """How many of the newest runs are known."""
    same: int = 0
    """How many of those were without a change."""
    streak_runs: int = 0
    """How many of them in a row are in the present state, and when the first run of all in it was."""
    streak_start: float | None = None
    streak_same: int = 0
    zero_runs: int = 0
    focus: str | None = None
    touched: tuple[str, ...] = ()
    recent: tuple[Run, ...] = ()
    episode: str | None = None
    episode_since: float | None = None


SHOWN = 20


def facts_of(state: StudentState) -> Facts:
    """The part of a state that is shown."""
    recent = tuple(state.recent[-SHOWN:])
    streak = state.recent[-state.streak_runs :] if state.streak_runs else []
    episode = state.episodes.current
    return Facts(
        strategy=state.strategy,
        runs=state.runs,
        scored=len(recent),
        same=sum(run.bucket == 0 for run in recent),
        streak_runs=len(streak),
        streak_start=state.streak_start,
        streak_same=sum(run.bucket == 0 for run in streak),
        zero_runs=state.zero_runs,
        focus=state.focus,
        touched=tuple(state.touched),
        recent=recent,
        episode=None if episode is None else episode.kind,
        episode_since=None if episode is None else episode.start,
    )


class Student:
    """The fold: one run is one step of the model."""

    version = "1"
    window = 5000
    State = StudentState

    def __init__(self, *, profile: Profile = "document", model: str | Path = MODEL) -> None:
        self._profile: Profile = profile
        self._model = Hmm.read(model)
        self.version = f"hmm-{profile}-2"

    def on_event(self, state: StudentState, event: Any) -> None:
        kind = event.get("eventType", "")
        state.episodes.step(kind, event.at)
        if event.get("project"):
            state.project = str(event["project"])[:200]
        if kind == RUN_START:
            self._run(state, event)
        elif kind in CODE_EVENTS and (block := block_of(event)) is not None:
            state.focus = block
            state.touched = [*(each for each in state.touched if each != block), block][-TOUCHED:]

    def _run(self, state: StudentState, event: Any) -> None:
        workspace = workspace_of(event)
        try:
            score = None if state.workspace is None else change_score(state.workspace, workspace, self._profile)
        except BadProgramError:
            state.unreadable += 1
            return
        if score is None:
            # The first run of a student has nothing to be compared with.
            try:
                read_program(workspace)
            except BadProgramError:
                state.unreadable += 1
                return
        state.runs += 1
        state.workspace = workspace
        if score is not None:
            self._decode(state, event, score)

    def _decode(self, state: StudentState, event: Any, score: float) -> None:
        bucket = bucket_of(score)
        path = Viterbi(self._model, state.path)
        state.strategy = path.step(bucket)
        state.path = path.data
        keep(state, Run(event.id, event.at, round(score, 6), bucket, state.strategy))
        state.streak_runs = path.streak()
        state.streak_start = state.times[-min(state.streak_runs, len(state.times))]

    def explain(self, state: StudentState) -> dict[str, Any]:
        """Why a student has this state: the newest runs, the path, and what was being worked on."""
        return {
            "strategy": state.strategy_name,
            "streak_runs": state.streak_runs,
            "runs": [
                {"change": run.change, "bucket": BUCKETS[run.bucket], "state": STATES[run.state]}
                for run in state.recent[-10:]
            ],
            "path": [[STATES[which], times] for which, times in state.path.decided[-5:]],
            "focus": state.focus,
        }


class GlassBox(Student):
    """A student is stuck after several runs in a row without any change."""

    def __init__(self, *, profile: Profile = "corrected", zero_runs: int = ZERO_RUNS) -> None:
        super().__init__(profile=profile)
        self._least = zero_runs
        self.version = f"glass-{profile}-2"

    def _decode(self, state: StudentState, event: Any, score: float) -> None:
        bucket = bucket_of(score)
        before = state.strategy
        zero = state.zero_runs + 1 if bucket == 0 else 0
        state.strategy = STUCK if zero >= self._least else 1 if bucket == 2 else 0
        keep(state, Run(event.id, event.at, round(score, 6), bucket, state.strategy))
        if state.strategy == STUCK and before != STUCK:
            state.streak_runs = zero
        else:
            state.streak_runs = state.streak_runs + 1 if state.strategy == before else 1
        state.streak_start = state.times[-min(state.streak_runs, len(state.times))]


def keep(state: StudentState, run: Run) -> None:
    """Remember a run: for the sparkline, for the beginning of streaks, for triggers."""
    state.zero_runs = state.zero_runs + 1 if run.bucket == 0 else 0
    state.recent.append(run)
    del state.recent[:-SPARKLINE]
    state.times.append(run.at)
    del state.times[:-TIMES]
    state.new_runs.append(run)


def workspace_of(event: Any) -> str:
    """The workspace in a run's message, as text: JSON inside of JSON is decoded until it is a workspace."""
    message = _opened(event.get("raw_message"))
    project = _opened(message.get("project") if isinstance(message, dict) else None)
    workspace = project.get("workspace") if isinstance(project, dict) else None
    if workspace is None or isinstance(workspace, str):
        return workspace or ""
    return msgspec.json.encode(workspace).decode()


def block_of(event: Any) -> str | None:
    """The type of the block that an event is about."""
    message = _opened(event.get("raw_message"))
    data = _opened(message.get("blockEventData") if isinstance(message, dict) else None)
    found = data.get("type") if isinstance(data, dict) else None
    return str(found) if found else None


def _opened(value: Any) -> Any:
    for _ in range(3):
        if not isinstance(value, str):
            break
        try:
            value = msgspec.json.decode(value)
        except msgspec.DecodeError:
            return None
    return value


def program_types(state: StudentState) -> list[str]:
    """The types of the blocks in a student's program."""
    return list(types_of(read_program(state.workspace)))
