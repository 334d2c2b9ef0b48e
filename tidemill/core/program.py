"""The interface of a program: the pure reducer of a run, from ticks to state and commands.

    state = program.begin()
    commands = program.reduce(state, tick)        # state is the program's own and changes in place

`reduce` may change the state in place, so that the cost of a tick depends on what it changes and not on the size of
the state. `fold` over the same ticks always gives the same state. A program reads no clock, uses no randomness and
does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, TypeVar

from tidemill.core.ticks import Command, Tick

S = TypeVar("S")


class Program(Protocol[S]):
    """The methods that the control loop calls."""

    @property
    def version(self) -> str:
        """A hash of the declared topology: programs of the same version fold the same ticks to the same state."""
        ...

    def begin(self) -> S:
        """Return the state before the first tick."""
        ...

    def reduce(self, state: S, tick: Tick) -> list[Command]:
        """Apply one tick to the state and return the resulting commands."""
        ...

    def snapshot(self, state: S) -> bytes:
        """Encode the whole state as bytes; `restore` decodes them."""
        ...

    def restore(self, data: bytes) -> S: ...


def fold(program: Program[S], ticks: Iterable[Tick], state: S | None = None) -> S:
    """Apply ticks to the initial state or to a given state, and return the result."""
    folded: Any = program.begin() if state is None else state
    for tick in ticks:
        program.reduce(folded, tick)
    return folded
