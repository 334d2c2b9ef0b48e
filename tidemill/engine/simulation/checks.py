"""Invariants of a simulation, checked at every step.

* no command of a tick runs before that tick is in the journal
* the journal, folded, is the state that the run has in memory, with what is not written yet on top
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tidemill.core.ticks import Command, Tick
from tidemill.engine.runs.adapters import ForwardingAdapter
from tidemill.engine.runs.control_loop import Adapter, RunLoop
from tidemill.engine.runs.durable_run import DurableRun, RunKind
from tidemill.engine.simulation.world import SimulationError
from tidemill.store.runs.model import StoreModel


class Watched:
    """Checks every run that is opened; `report` is called with each violation."""

    def __init__(self, model: StoreModel, report: Callable[[SimulationError], None]) -> None:
        self.model = model
        self.report = report

    def kind(self, kind: RunKind) -> RunKind:
        return _WatchedKind(kind, self)


class _WatchedKind:
    def __init__(self, kind: RunKind, watched: Watched) -> None:
        self._kind = kind
        self._watched = watched

    @property
    def version(self) -> str | None:
        return self._kind.version

    @property
    def events(self) -> Iterable[str]:
        return self._kind.events

    @property
    def max_runs(self) -> int | None:
        return self._kind.max_runs

    @property
    def definition(self) -> bytes | None:
        return self._kind.definition

    def open(
        self, run_worker: Any, row: Any, snapshot: bytes | None, ticks: list[bytes], definition: bytes | None
    ) -> tuple[DurableRun, list[Tick]]:
        run, first = self._kind.open(run_worker, row, snapshot, ticks, definition)
        twin, _ = self._kind.open(run_worker, row, snapshot, ticks, definition)
        run.loop._adapter = _Watch(run.loop._adapter, run, twin.loop, self._watched)
        return run, first


class _Watch(ForwardingAdapter):
    """Checks one run. The twin gets the journaled ticks, and nothing else."""

    def __init__(self, inner: Adapter, run: DurableRun, twin: RunLoop, watched: Watched) -> None:
        super().__init__(inner)
        self._run, self._twin, self._watched = run, twin, watched
        self._count = run.stored
        self._causes: dict[int, tuple[Command, int, Tick]] = {}

    def journal(self, loop: RunLoop, ticks: Sequence[Tick], commands: Sequence[Command]) -> None:
        if self._run.let_go:
            return
        self._count += len(ticks)
        for command in commands:
            self._causes[id(command)] = (command, self._count, ticks[-1])
        super().journal(loop, ticks, commands)
        self._compare(loop, self._run.turn().ticks[-len(ticks) :])

    def execute(self, loop: RunLoop, command: Command) -> None:
        _, seq, tick = self._causes.pop(id(command))
        journal = self._watched.model.ticks.get(self._run.number, [])
        if len(journal) < seq or self._run.decode_tick(journal[seq - 1]).at != tick.at:
            name = type(command).__name__
            self._watched.report(SimulationError(f"{name} of run {self._run.number} is ahead of its tick {seq}"))
        super().execute(loop, command)

    def _compare(self, loop: RunLoop, written: Sequence[bytes]) -> None:
        program = self._twin.program
        for data in written:
            program.reduce(self._twin.state, self._run.decode_tick(data))
        if program.snapshot(self._twin.state) != program.snapshot(loop.state):
            why = f"the journal of run {self._run.number} does not fold to its state at tick {self._count}"
            self._watched.report(SimulationError(why))
