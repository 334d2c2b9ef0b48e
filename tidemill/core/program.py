"""A program: pure decisions about a run, from ticks to state and commands.

    state = program.begin()
    commands = program.reduce(state, tick)        # state is the program's own and changes in place

`reduce` may change the state in place, so that a tick costs what it changes and not what there is; `fold` over the
same ticks always gives the same state. A program reads no clock, draws no random numbers and does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, TypeVar

from tidemill.core.ticks import Command, Tick

S = TypeVar("S")


class Program(Protocol[S]):
    """What the control loop needs of a program."""

    @property
    def version(self) -> str:
        """A hash of the declared topology: two programs of one version fold the same ticks alike."""
        ...

    def begin(self) -> S:
        """The state before the first tick."""
        ...

    def reduce(self, state: S, tick: Tick) -> list[Command]:
        """Change the state by one tick; what follows from it."""
        ...

    def snapshot(self, state: S) -> bytes:
        """The whole state as bytes, from which `restore` makes an equal one."""
        ...

    def restore(self, data: bytes) -> S: ...


def fold(program: Program[S], ticks: Iterable[Tick], state: S | None = None) -> S:
    """The state after these ticks, from the beginning or from a given state."""
    folded: Any = program.begin() if state is None else state
    for tick in ticks:
        program.reduce(folded, tick)
    return folded
