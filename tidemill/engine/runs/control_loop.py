"""The control loop: drives one run of a program, from ticks to commands and back.

    post a tick -> drain: reduce all pending ticks -> journal them -> execute their commands -> wait for the next

The loop knows only programs, ticks and commands. An adapter decides where ticks are stored, how work is run and where
published events go: in memory, in PostgreSQL, or simulated. Outcomes of work are reduced before ticks from outside, and
all that are ready are reduced together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

from tidemill.core.program import Program
from tidemill.core.ticks import Command, Completed, Noted, Tick


class Adapter(Protocol):
    """What surrounds a run."""

    def journal(self, loop: RunLoop, ticks: Sequence[Tick], commands: Sequence[Command]) -> None:
        """Journal these ticks; once they are stored, call `loop.execute(commands)`, in order and never before."""
        ...

    def execute(self, loop: RunLoop, command: Command) -> None:
        """Execute a command."""
        ...


class _Silence:
    """The adapter of a run that no longer has an owner: it ignores everything."""

    def journal(self, loop: RunLoop, ticks: Sequence[Tick], commands: Sequence[Command]) -> None: ...

    def execute(self, loop: RunLoop, command: Command) -> None: ...


_SILENCE = _Silence()


class RunLoop:
    """One run: its state, the ticks on their way to it, and the adapter around it."""

    def __init__(self, program: Program[Any], adapter: Adapter, state: Any = None) -> None:
        self.program = program
        self.state = program.begin() if state is None else state
        self._adapter = adapter
        self._outcomes: deque[Tick] = deque()
        self._outside: deque[Tick] = deque()
        self._draining = False

    def post(self, *ticks: Tick) -> None:
        """Post a tick to the run."""
        if self._draining or len(ticks) != 1 or self._outcomes or self._outside:
            for tick in ticks:
                (self._outcomes if type(tick) in (Completed, Noted) else self._outside).append(tick)
        else:  # Most often nothing else is pending.
            self._draining = True
            try:
                self._adapter.journal(self, ticks, self.program.reduce(self.state, ticks[0]))
            finally:
                self._draining = False
        if (self._outcomes or self._outside) and not self._draining:
            self._drain()

    def close(self) -> None:
        """Detach the run, which has ended or has another owner: what is posted from now on is ignored."""
        self._adapter = _SILENCE  # Breaks the reference cycle between adapter and loop, so that both are freed at once.

    def execute(self, commands: Sequence[Command]) -> None:
        """Execute the commands of ticks that are stored now."""
        for command in commands:
            self._adapter.execute(self, command)

    def _drain(self) -> None:
        self._draining = True
        try:
            while self._outcomes or self._outside:
                ticks: list[Tick] = []
                commands: list[Command] = []
                while queue := self._outcomes or self._outside:
                    tick = queue.popleft()
                    ticks.append(tick)
                    commands += self.program.reduce(self.state, tick)
                self._adapter.journal(self, ticks, commands)
        finally:
            self._draining = False
