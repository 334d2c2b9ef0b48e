"""Any interleaving of what can happen to a run: the journal folds to what was lived, and no command is ahead of it.

The real loop drives the real program; the adapter keeps ticks back until hypothesis lets it write, may lose what has
not been written (a crash), and restores the run from its journal or from a snapshot at any point.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.simulation.test_flow_folds import MEMBERS, Nod, Part, begun, behaviour, program
from tests.support.examples import examples
from tidemill.core.program import fold
from tidemill.core.ticks import (
    Answer,
    CancelAsked,
    Command,
    Completed,
    DropTimer,
    Elapsed,
    EndRun,
    Noted,
    Received,
    Resumed,
    RunWork,
    SetTimer,
    Started,
    StopWork,
    Tick,
)
from tidemill.engine.runs.control_loop import RunLoop
from tidemill.flows import StartEvent
from tidemill.flows.encoding.journal import decode_tick, encode_tick
from tidemill.flows.encoding.snapshot import encode_state
from tidemill.flows.reducer.step_ticks import Ended, WaitAsked, Withdrew


class SlowJournal:
    """An adapter in memory that writes when it is told to, and executes what follows by remembering it."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.unwritten: list[tuple[Sequence[Tick], Sequence[Command]]] = []
        self.scripts: dict[int, list[Any]] = {}
        self.asking: dict[int, str] = {}
        self.timers: dict[str, float] = {}
        self.executed: list[tuple[int, Command]] = []
        self.ended: list[EndRun] = []

    def journal(self, loop: RunLoop, ticks: Sequence[Tick], commands: Sequence[Command]) -> None:
        self.unwritten.append((ticks, commands))

    def write(self, loop: RunLoop) -> None:
        ticks, commands = self.unwritten.pop(0)
        self.written += map(encode_tick, ticks)
        loop.execute(commands)

    def execute(self, loop: RunLoop, command: Command) -> None:
        self.executed.append((len(self.written), command))
        if isinstance(command, RunWork):
            notes, ended = behaviour(command, loop.state)
            self.scripts[command.work] = [*notes, ended]
            self.asking.pop(command.work, None)
        elif isinstance(command, StopWork):
            self.scripts.pop(command.work, None)
        elif isinstance(command, Answer):
            self.asking.pop(command.work, None)
        elif isinstance(command, SetTimer):
            self.timers[command.timer] = command.due
        elif isinstance(command, DropTimer):
            self.timers.pop(command.timer, None)
        elif isinstance(command, EndRun):
            self.ended.append(command)


class Interleaving(RuleBasedStateMachine):
    """Steps note and end, events come, timers go off, owners die: in any order."""

    @initialize()
    def it_begins(self) -> None:
        self.adapter = SlowJournal()
        self.loop = RunLoop(program(), self.adapter, begun())
        self.now = 0.0
        self.snapshots: list[tuple[int, bytes]] = []
        self.loop.post(Started(self.now, StartEvent()))

    def ready(self) -> list[int]:
        return sorted(work for work in self.adapter.scripts if work not in self.adapter.asking)

    @precondition(lambda self: self.adapter.unwritten)
    @rule()
    def the_journal_is_written(self) -> None:
        self.adapter.write(self.loop)

    @precondition(lambda self: self.ready())
    @rule(pick=st.integers(0, 99))
    def a_step_goes_on(self, pick: int) -> None:
        ready = self.ready()
        work = ready[pick % len(ready)]
        happening = self.adapter.scripts[work].pop(0)
        self.now += 0.1
        if isinstance(happening, Ended):
            del self.adapter.scripts[work]
            self.loop.post(Completed(self.now, work, happening))
            return
        if isinstance(happening, WaitAsked):
            self.adapter.asking[work] = happening.question
        self.loop.post(Noted(self.now, work, happening))

    @precondition(lambda self: self.adapter.asking)
    @rule(pick=st.integers(0, 99))
    def a_step_gives_up_and_asks_again(self, pick: int) -> None:
        work, question = sorted(self.adapter.asking.items())[pick % len(self.adapter.asking)]
        self.now += 0.1
        del self.adapter.asking[work]
        self.adapter.scripts[work].insert(0, WaitAsked(question, Nod, {"n": 1}))
        self.loop.post(Noted(self.now, work, Withdrew(question)))

    @rule(n=st.integers(1, 2))
    def an_answer_comes(self, n: int) -> None:
        self.now += 0.1
        self.loop.post(Received(self.now, Nod(n=n)))

    @rule(n=st.integers(0, 2))
    def an_event_comes_for_one_step(self, n: int) -> None:
        self.now += 0.1
        self.loop.post(Received(self.now, Part(n=9 + n), "gather"))

    @precondition(lambda self: self.adapter.timers)
    @rule(pick=st.integers(0, 99))
    def a_timer_goes_off(self, pick: int) -> None:
        name = sorted(self.adapter.timers)[pick % len(self.adapter.timers)]
        self.now = max(self.now, self.adapter.timers.pop(name))
        self.loop.post(Elapsed(self.now, name))

    @rule()
    def a_snapshot_is_taken_of_what_is_written(self) -> None:
        state = fold(program(), self.read(), begun())
        self.snapshots.append((len(self.adapter.written), program().snapshot(state)))

    @precondition(lambda self: self.adapter.written)
    @rule(from_snapshot=st.booleans())
    def its_owner_dies_and_another_takes_over(self, from_snapshot: bool) -> None:
        """What was not written is lost, with everything that the dead owner was about to do."""
        timers = self.timers_by_the_journal()
        written = self.adapter.written
        self.adapter = SlowJournal()
        self.adapter.written, self.adapter.timers = written, timers
        if from_snapshot and self.snapshots:
            at, data = self.snapshots[-1]
            state = fold(program(), self.read()[at:], program().restore(data))
        else:
            state = fold(program(), self.read(), begun())
        self.loop = RunLoop(program(), self.adapter, state)
        self.now += 1.0
        self.loop.post(Resumed(self.now))

    @precondition(lambda self: len(self.adapter.written) > 20)
    @rule()
    def it_is_cancelled(self) -> None:
        self.loop.post(CancelAsked(self.now, "enough"))

    def read(self) -> list[Tick]:
        return [decode_tick(data) for data in self.adapter.written]

    def timers_by_the_journal(self) -> dict[str, float]:
        timers: dict[str, float] = {}
        state = begun()
        for tick in self.read():
            if isinstance(tick, Elapsed):
                timers.pop(tick.timer, None)
            for command in program().reduce(state, tick):
                if isinstance(command, SetTimer):
                    timers[command.timer] = command.due
                elif isinstance(command, DropTimer):
                    timers.pop(command.timer, None)
        return timers

    @invariant()
    def the_journal_folds_to_what_was_lived(self) -> None:
        ticks = [*self.read(), *(tick for ticks, _ in self.adapter.unwritten for tick in ticks)]
        assert encode_state(fold(program(), ticks, begun())) == encode_state(self.loop.state)

    @invariant()
    def every_snapshot_goes_on_to_the_same_state(self) -> None:
        ticks = self.read()
        expected = encode_state(fold(program(), ticks, begun()))
        for at, data in self.snapshots[-3:]:
            assert encode_state(fold(program(), ticks[at:], program().restore(data))) == expected

    @invariant()
    def no_command_ran_before_its_tick_was_written(self) -> None:
        state = begun()
        follows: list[Any] = []
        counts: list[int] = []
        for tick in self.read():
            follows += program().reduce(state, tick)
            counts.append(len(follows))
        told = [command for _, command in self.adapter.executed]
        assert [type(each) for each in told] == [type(each) for each in follows[len(follows) - len(told) :]]
        before = len(follows) - len(told)
        for index, (written, _) in enumerate(self.adapter.executed):
            assert before + index < counts[written - 1], "it follows from a tick that was not in the journal then"

    @invariant()
    def it_ends_once_and_with_all_parts(self) -> None:
        assert len(self.adapter.ended) <= 1
        for end in self.adapter.ended:
            if end.state == "succeeded":
                assert end.result.result == list(range(MEMBERS))

    @invariant()
    def what_is_counted_is_what_there_is(self) -> None:
        state = self.loop.state
        if state.status == "running":
            assert state.running == sum(work.slot >= 0 for work in state.works.values())
            assert sum(map(len, state.waits.values())) == sum(len(work.waiting) for work in state.works.values())
            assert all(len(step.slots) <= MEMBERS + 1 for step in state.steps.values())


TestInterleaving = Interleaving.TestCase
TestInterleaving.settings = examples(30, stateful_step_count=50)
