"""Restore runs from their journals: with their own version of the workflow, or migrated from another one.

    restored = restore(workflow, snapshot, ticks, version=row["version"], definition=definitions.get(row["version"]))
    restored.state, restored.migrated           the tick that says that the run goes on with this version, if it is new

Ticks are folded by the topology that they were written with, which run workers store once per version. The migration of
a run is a tick with the whole state, so that later versions need not know how it was done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import msgspec

from tidemill.core.errors import PayloadError
from tidemill.core.ticks import Command, DropTimer, Elapsed, Migrated, RunWork, SetTimer, Tick
from tidemill.engine.runs.durable_run import Begun
from tidemill.flows.definition.declared import declared
from tidemill.flows.definition.stored_topology import OlderVersion, encode_topology
from tidemill.flows.encoding.journal import TickRecord, read_record, tick_of
from tidemill.flows.reducer.migration import WAYS_OUT, migrate_state
from tidemill.flows.reducer.reducer import FlowProgram
from tidemill.flows.reducer.state.flow_state import FlowState
from tidemill.flows.runner.sending import known_events
from tidemill.flows.runner.state_store import StateCell

if TYPE_CHECKING:
    from tidemill.flows.definition.workflow import AnyWorkflow


MIGRATED = b'"migrated"'


class RestoredRun(msgspec.Struct, frozen=True):
    """The state of a run, and the tick that migrates it if it was driven by another version until now."""

    state: FlowState
    migrated: Migrated | None = None


def definition_of(workflow: AnyWorkflow) -> bytes:
    """Return what other versions need to know of this one."""
    try:
        state = blank_cell(workflow).store
    except Exception:  # noqa: BLE001 - a run that needs the state fails and says why
        state = None
    return encode_topology(declared(workflow).topology, known_events(workflow), state)


def blank_cell(workflow: AnyWorkflow, store: Any = None) -> StateCell:
    """Return the state of a new run, or that of a stored one."""
    return StateCell(declared(workflow).topology.state_type, store)


def restore(
    workflow: AnyWorkflow,
    snapshot: bytes | None,
    ticks: Sequence[bytes],
    *,
    version: str | None = None,
    definition: bytes | None = None,
    at: float = 0.0,
) -> RestoredRun:
    """Restore a run from its snapshot and the ticks after it; a `PayloadError` says why it does not fit this version.

    `version` is the one that has written the ticks, and `definition` what was stored of it.
    """
    known = declared(workflow)
    if version is None or version == known.topology.version or definition is None:
        try:
            return RestoredRun(_fold(known.program(durable=True), partial(_blank_store, workflow), snapshot, ticks))
        except PayloadError as error:
            raise PayloadError(f"{error}; {WAYS_OUT}") from error
    older = _older_version(definition)
    try:
        with older.reading():
            program = FlowProgram(older.topology, durable=True)
            state = _fold(program, older.first_state, snapshot, ticks)
        return _migrated(workflow, state, older, version, at)
    except PayloadError as error:
        raise PayloadError(f"{error}; {WAYS_OUT}") from error


class JournalFold:
    """Folds the ticks of a run in order, each with the version of the workflow that has written it.

    It begins before the first tick, or with a snapshot of the run's present `version`. With `narrates`, the commands
    also publish when steps start and end.
    """

    def __init__(
        self,
        workflow: AnyWorkflow,
        definitions: Mapping[str, bytes],
        *,
        narrates: bool = False,
        snapshot: bytes | None = None,
        version: str | None = None,
    ) -> None:
        self._known = declared(workflow)
        self._definitions = definitions
        self._narrates = narrates
        self._use(version or self._known.topology.version)
        if snapshot is not None:
            with self.reading():
                self.state = self._program.restore(snapshot)
        else:
            self.state = self._program.begin()
            self.state.store = blank_cell(workflow).store
        self.state.copies = True

    def add(self, data: bytes) -> tuple[Tick, Sequence[Command]]:
        """Fold the next tick; returns it with its commands."""
        record = read_record(data)
        if record.kind in ("started", "migrated") and record.version not in ("", self.version):
            older = self._use(record.version)
            if record.kind == "started" and older is not None:
                self.state = self._program.begin()
                self.state.store, self.state.copies = older.first_state(), True
        with self.reading():
            tick = tick_of(record)
            return tick, _reduced(self._program, self.state, tick)

    def _use(self, version: str) -> OlderVersion | None:
        """Fold by a version from here on; returns it if it is not the present one."""
        self.version, topology = version, self._known.topology
        self.reading: Callable[[], AbstractContextManager[None]] = nullcontext
        older = _older_version(self._definitions[version]) if version in self._definitions else None
        if older is not None and version != topology.version:
            topology, self.reading = older.topology, older.reading
        else:
            older = None
        if topology is self._known.topology and not self._narrates:
            self._program = self._known.program(durable=True)
        else:
            self._program = FlowProgram(topology, durable=True, narrates=self._narrates)
        return older


def replay_ticks(
    workflow: AnyWorkflow,
    ticks: Iterable[bytes],
    definitions: Mapping[str, bytes],
    *,
    follow: Callable[[FlowState, Tick], None] = lambda state, tick: None,
) -> tuple[FlowState, dict[str, float], str]:
    """Replay a journal from its first tick, each tick with its own version; `follow` is called after each.

    Returns the state, the timers that were set, and the version of the last tick."""
    fold = JournalFold(workflow, definitions)
    timers: dict[str, float] = {}
    for data in ticks:
        tick, commands = fold.add(data)
        follow(fold.state, tick)
        if isinstance(tick, Elapsed):
            timers.pop(tick.timer, None)
        for command in commands:
            if isinstance(command, SetTimer):
                timers[command.timer] = command.due
            elif isinstance(command, DropTimer):
                timers.pop(command.timer, None)
    return fold.state, timers, fold.version


def migrate_to(
    workflow: AnyWorkflow, state: FlowState, version: str, definitions: Mapping[str, bytes], at: float
) -> Migrated | None:
    """Return the tick that takes a run with this state to the present version; None if it has it already."""
    if version == declared(workflow).topology.version or version not in definitions:
        return None
    return _migrated(workflow, state, _older_version(definitions[version]), version, at).migrated


@lru_cache(maxsize=64)
def _older_version(definition: bytes) -> OlderVersion:
    return OlderVersion(definition)


def _migrated(workflow: AnyWorkflow, state: FlowState, older: OlderVersion, version: str, at: float) -> RestoredRun:
    known = declared(workflow)
    hook = None if known.migration is None else partial(_call, getattr(workflow, known.migration))
    state.version = version
    try:
        data, moved = migrate_state(state, older, known.topology, hook)
    except PayloadError:
        raise
    except Exception as error:  # What a @migrate method has left, and validators of the user's classes.
        what = f"{type(error).__name__}: {error}"
        raise PayloadError(f"the run's state or events could not be read by this version: {what}") from error
    moved.copies = True
    return RestoredRun(moved, Migrated(at, known.topology.version, data, version))


def _call(method: Any, run: Any) -> Any:
    try:
        return method(run)
    except Exception as error:
        raise PayloadError(f"the @migrate method {method.__name__} failed: {type(error).__name__}: {error}") from error


def _blank_store(workflow: AnyWorkflow) -> Any:
    return blank_cell(workflow).store


def _fold(
    program: FlowProgram, first_store: Callable[[], Any], snapshot: bytes | None, ticks: Sequence[bytes]
) -> FlowState:
    first = _last_migration(ticks)
    if snapshot is not None and first is None:
        state = program.restore(snapshot)
    else:
        state = program.begin()
        state.store = first_store()
    state.copies = True
    begun: Begun = []
    for data in ticks[first or 0 :]:
        record = read_record(data)
        if record.kind == "resumed":
            begun = []  # What was begun by an earlier owner, or before a fork, is recorded there or not at all.
        for command in _reduced(program, state, tick_of(record)):
            if type(command) is RunWork:
                begun.append(command.placed)
        if record.begun:
            _compare(record, begun)
            begun = []
    return state


def _last_migration(ticks: Sequence[bytes]) -> int | None:
    """Return the index of the last tick that carries the whole state, so that nothing before it counts."""
    for index in range(len(ticks) - 1, -1, -1):
        if MIGRATED in ticks[index] and read_record(ticks[index]).kind == "migrated":
            return index
    return None


def _reduced(program: FlowProgram, state: FlowState, tick: Any) -> Sequence[Any]:
    try:
        return program.reduce(state, tick)
    except KeyError as error:
        raise PayloadError(f"the workflow no longer has step {error}, which the run has used") from error


def _compare(record: TickRecord, begun: Begun) -> None:
    """Raise unless the replay starts the recorded work: otherwise the workflow has changed."""
    if record.begun != begun:
        then, now = (
            "; ".join(f"{name} ({number})" for number, name in each) or "nothing" for each in (record.begun, begun)
        )
        raise PayloadError(f"where the run started {then}, the current workflow would start {now}")
