"""Ticks and commands: what happens to a run, and what follows from it.

Everything that happens to a run is a tick, and a tick carries its own time. A program reduces its state by a tick
to a new state and the commands that follow; a shell executes the commands, and their outcomes come back as ticks.
The loop that drives runs knows these types and nothing of what a program does with them: the payloads (`input`,
`event`, `outcome`, `note`) belong to the program.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Started(msgspec.Struct, frozen=True, tag="started"):
    """The run begins, with its input."""

    at: float
    input: Any


class Received(msgspec.Struct, frozen=True, tag="received"):
    """Something came from outside: an event for the run, or for one part of it."""

    at: float
    event: Any
    target: str | None = None
    token: str = ""
    """By which its sender can tell whether it has arrived."""


class Noted(msgspec.Struct, frozen=True, tag="noted"):
    """Work that is under way has done something that the run must know of."""

    at: float
    work: int
    note: Any


class Completed(msgspec.Struct, frozen=True, tag="completed"):
    """Work has ended, well or badly."""

    at: float
    work: int
    outcome: Any


class Elapsed(msgspec.Struct, frozen=True, tag="elapsed"):
    """The time that was set for a timer has come."""

    at: float
    timer: str


class CancelAsked(msgspec.Struct, frozen=True, tag="cancel_asked"):
    """Somebody wants the run to end."""

    at: float
    reason: str


class Resumed(msgspec.Struct, frozen=True, tag="resumed"):
    """A new owner has taken the run up: work that was under way begins again.

    With `queued`, work that was put on a queue is still there, and does not begin again.
    """

    at: float
    queued: bool = False


Tick = Started | Received | Noted | Completed | Elapsed | CancelAsked | Resumed


class RunWork(msgspec.Struct, frozen=True, tag="run_work"):
    """Begin a piece of work; its outcome comes back as `Completed`. With a queue it runs wherever a worker is."""

    work: int
    name: str
    input: Any
    attempt: int = 1
    queue: str | None = None
    known: Any = None
    """What it was told before, if it had begun before: as the program has it."""

    @property
    def placed(self) -> tuple[int, str]:
        """Which work it is, and where it goes: `review`, or `review@gpu` on a queue."""
        return self.work, self.name if self.queue is None else f"{self.name}@{self.queue}"


class StopWork(msgspec.Struct, frozen=True, tag="stop_work"):
    """Work that is under way is wanted no longer."""

    work: int


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """What a piece of work has been waiting for."""

    work: int
    question: str
    event: Any


class SetTimer(msgspec.Struct, frozen=True, tag="set_timer"):
    """Send `Elapsed` at this time."""

    timer: str
    due: float


class DropTimer(msgspec.Struct, frozen=True, tag="drop_timer"):
    """A timer is needed no longer."""

    timer: str


class Publish(msgspec.Struct, frozen=True, tag="publish"):
    """Show an event to whoever follows the run."""

    event: Any


class EndRun(msgspec.Struct, frozen=True, tag="end_run"):
    """The run is over: `succeeded`, `failed`, `cancelled` or `timed_out`."""

    state: str
    result: Any = None
    error: Any = None
    why: str = ""
    """For whoever looks at it later, where neither result nor error tells."""


Command = RunWork | StopWork | Answer | SetTimer | DropTimer | Publish | EndRun
