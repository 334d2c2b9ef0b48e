"""A world without a clock, a network or a database, in which a workflow's program runs and is made to suffer.

Steps are pure functions from (step, input, attempt) to notes and an outcome, so that the reducer is driven by nothing
but ticks that a seed has chosen. Whatever is started, asked, set or published is only remembered.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tidemill.core.ticks import Answer, Command, Completed, DropTimer, Elapsed, Noted, RunWork, SetTimer, StopWork, Tick
from tidemill.flows.reducer.reducer import FlowProgram
from tidemill.flows.reducer.state.flow_state import FlowState
from tidemill.flows.reducer.step_ticks import Ended

#: What a step does with its input: the notes it makes, and how it ends.
Behaviour = Callable[[RunWork, FlowState], tuple[list[Any], Ended]]


class World:
    """Executes commands by remembering them, and chooses what happens next."""

    def __init__(self, program: FlowProgram, behaviour: Behaviour, seed: int) -> None:
        self.program = program
        self.state = program.begin()
        self.journal: list[Tick] = []
        self.commands: list[Command] = []
        self.now = 0.0
        self._behaviour = behaviour
        self._chance = random.Random(seed)
        self._running: dict[int, list[Any]] = {}
        self._timers: dict[str, float] = {}

    def post(self, tick: Tick) -> None:
        self.journal.append(tick)
        for command in self.program.reduce(self.state, tick):
            self.commands.append(command)
            self._execute(command)

    def advance(self) -> bool:
        """Let one thing happen that may happen; False if nothing can."""
        choices: list[Callable[[], None]] = [lambda work=work: self._step_on(work) for work in sorted(self._running)]
        choices += [lambda name=name: self._fire(name) for name in sorted(self._timers)]
        if not choices:
            return False
        self.now += self._chance.random()
        self._chance.choice(choices)()
        return True

    def _execute(self, command: Command) -> None:
        if isinstance(command, RunWork):
            notes, ended = self._behaviour(command, self.state)
            self._running[command.work] = [*notes, ended]
        elif isinstance(command, StopWork):
            self._running.pop(command.work, None)
        elif isinstance(command, SetTimer):
            self._timers[command.timer] = command.due
        elif isinstance(command, DropTimer):
            self._timers.pop(command.timer, None)
        elif isinstance(command, Answer):
            pass  # the step goes on by itself when it is its turn

    def _step_on(self, work: int) -> None:
        script = self._running[work]
        if work in self.state.works and self.state.works[work].waiting:
            return
        happening = script.pop(0)
        if isinstance(happening, Ended):
            del self._running[work]
            self.post(Completed(self.now, work, happening))
        else:
            self.post(Noted(self.now, work, happening))

    def _fire(self, name: str) -> None:
        self.now = max(self.now, self._timers.pop(name))
        self.post(Elapsed(self.now, name))
