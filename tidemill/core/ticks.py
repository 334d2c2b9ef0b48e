"""Ticks and commands: the inputs and outputs of a program that drives a run.

Everything that happens to a run is a tick, and a tick carries its own time. A program applies a tick to its state and
returns commands; a runner executes the commands, and their outcomes come back as ticks. The control loop knows only
these types: the payloads (`input`, `event`, `outcome`, `note`) belong to the program.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Started(msgspec.Struct, frozen=True, tag="started"):
    """The run has started, with its input."""

    at: float
    input: Any
    rules: int = 1
    """The rules of the program that this tick and those after it are applied by; an older journal has older rules."""
    version: str = ""
    """The version of the program that applies this tick and those after it."""


class Received(msgspec.Struct, frozen=True, tag="received"):
    """An event from outside arrived, for the run or for one part of it."""

    at: float
    event: Any
    target: str | None = None
    token: str = ""
    """The sender uses it to check whether the event has arrived."""


class Noted(msgspec.Struct, frozen=True, tag="noted"):
    """Work in progress reported something that the run must record."""

    at: float
    work: int
    note: Any


class Completed(msgspec.Struct, frozen=True, tag="completed"):
    """Work has ended, with success or failure."""

    at: float
    work: int
    outcome: Any


class Elapsed(msgspec.Struct, frozen=True, tag="elapsed"):
    """A timer is due."""

    at: float
    timer: str


class CancelAsked(msgspec.Struct, frozen=True, tag="cancel_asked"):
    """Cancellation of the run was requested."""

    at: float
    reason: str


class Resumed(msgspec.Struct, frozen=True, tag="resumed"):
    """A new owner has taken over the run: work that was in progress starts again.

    With `queued`, work that was put on a queue is still there and does not start again.
    """

    at: float
    queued: bool = False
    rules: int = 1
    """The rules of the program from here on."""
    afresh: bool = False
    """The work that was in progress is a failed attempt, and the next tick that resumes the run starts another one."""
    forked: bool = False
    """The run is a copy: the jobs and child runs of its work are those of the other run, and the next tick that resumes
    it starts that work again."""


class Migrated(msgspec.Struct, frozen=True, tag="migrated"):
    """The program has changed: the run goes on with another version of it, from this state."""

    at: float
    version: str
    state: bytes
    """The state in the form of a snapshot of the new version."""
    before: str = ""
    """The version that the run had before."""


Tick = Started | Received | Noted | Completed | Elapsed | CancelAsked | Resumed | Migrated


class RunWork(msgspec.Struct, frozen=True, tag="run_work"):
    """Start a piece of work; its outcome comes back as `Completed`. With a queue, it runs as a job on any worker."""

    work: int
    name: str
    input: Any
    attempt: int = 1
    queue: str | None = None
    known: Any = None
    """The answers that the work received before, if it is started again; in the program's own form."""

    @property
    def placed(self) -> tuple[int, str]:
        """The id of the work, and its name with the queue: `review`, or `review@gpu` on a queue."""
        return self.work, self.name if self.queue is None else f"{self.name}@{self.queue}"


class StopWork(msgspec.Struct, frozen=True, tag="stop_work"):
    """Stop work that is in progress."""

    work: int


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """Deliver the event that a piece of work waits for."""

    work: int
    question: str
    event: Any


class SetTimer(msgspec.Struct, frozen=True, tag="set_timer"):
    """Send `Elapsed` at this time."""

    timer: str
    due: float


class DropTimer(msgspec.Struct, frozen=True, tag="drop_timer"):
    """Delete a timer."""

    timer: str


class Publish(msgspec.Struct, frozen=True, tag="publish"):
    """Publish an event on the stream of the run."""

    event: Any


class EndRun(msgspec.Struct, frozen=True, tag="end_run"):
    """End the run: `succeeded`, `failed`, `cancelled` or `timed_out`."""

    state: str
    result: Any = None
    error: Any = None
    why: str = ""
    """An explanation for display, if neither result nor error contains one."""


class TrimJournal(msgspec.Struct, frozen=True, tag="trim_journal"):
    """Drop the ticks up to here: the run has started again, and its state is all that is needed of them."""


Command = TrimJournal | RunWork | StopWork | Answer | SetTimer | DropTimer | Publish | EndRun
