"""The state that the steps of a run share: `ctx.store`.

    await ctx.store.set("user.name", "Ada")            paths go through dicts, lists and attributes
    name = await ctx.store.get("user.name", default="")
    async with ctx.store.edit_state() as state:        no other step writes meanwhile; an error undoes all changes
        state.count += 1
    await ctx.store.set("client", client, durable=False)    a live object, kept in this process only

Writes are visible to all steps at once. The writes of a failed attempt are undone, unless another step has written
there since; an edit that another edit was made from counts once. An edit writes only the values that it has changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Generic, Protocol

from pydantic import BaseModel, ValidationError
from typing_extensions import TypeVar

from tidemill.flows.encoding.classes import loaded_class
from tidemill.flows.encoding.context_dict import load_store, save_store
from tidemill.flows.encoding.copies import SHARED, copy_data
from tidemill.flows.encoding.dict_like import DictState
from tidemill.flows.encoding.record import UNKNOWN
from tidemill.flows.reducer.record import ROOT, RecordedOperation
from tidemill.flows.reducer.state.diff import changes
from tidemill.flows.reducer.state.paths import MISSING, Changes, read_path, write_paths
from tidemill.flows.runner.replay.lent_values import place_of
from tidemill.flows.runner.replay.record_lanes import RecordLane, raise_recorded
from tidemill.flows.runner.replay.step_replay import StepReplay

if TYPE_CHECKING:
    from tidemill.flows.runner.steps.context import Context

S = TypeVar("S", default=Any)


class WriterLock:
    """Lets one task at a time write to the state; a task that writes inside its own edit would wait for itself."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._holder: asyncio.Task[Any] | None = None

    async def __aenter__(self) -> None:
        if self._holder is not None and self._holder is asyncio.current_task():
            raise RuntimeError("writer called inside edit_state: mutate the yielded state instead")
        await self._lock.acquire()

    @property
    def is_free(self) -> bool:
        return not self._lock.locked()

    def hold(self) -> None:
        """Remember which task edits the state."""
        self._holder = asyncio.current_task()

    async def __aexit__(self, *_: object) -> None:
        self._holder = None
        self._lock.release()


class StateCell:
    """Holds the state of a context before its run starts and after it ends."""

    def __init__(self, kind: Any = None, store: Any = None) -> None:
        self.copies = False
        self.kind = DictState if kind in (None, dict) else kind
        self.store = self.kind() if store is None else store
        self.lock = WriterLock()
        self.live: dict[str, Any] = {}
        """Live objects by name: they are never stored, and gone when the run leaves memory."""


class Write(Protocol):
    """Writes values at paths as one operation; `edits` if they are made from those that are there."""

    def __call__(self, changes: Changes, *, edits: bool = False) -> None: ...


class StateStore(Generic[S]):
    """The shared state, for one step or for the caller."""

    def __init__(
        self,
        cell: Any,
        kind: type,
        lock: WriterLock,
        write: Write,
        live: dict[str, Any],
        context: Context[Any] | None = None,
    ) -> None:
        self._cell = cell
        self._live = live
        self._kind = kind
        self._lock = lock
        self._write_now = write
        self._context = context

    @property
    def _replay(self) -> StepReplay | None:
        """The record of the step; None outside of a step."""
        return None if self._context is None else self._context._replay

    async def get(self, path: str, default: Any = MISSING) -> Any:
        """Return the value at a path. Without a default, a path without a value raises a ValueError."""
        if (found := self._read_alone(path)) is not MISSING:
            return found
        replay = self._replay
        if replay is None:
            found = read_path(*place_of(path, self._cell.store, self._live))
        else:
            if replay.takes_turns:
                await replay.take_turn("get", path)
            found = replay.read("get", path, self._cell.store, self._live)
        if found is not MISSING:
            return found
        if default is MISSING:
            raise ValueError(f"Path '{path}' not found in state: no step has written it")
        return default

    def _read_alone(self, path: str) -> Any:
        """Return the value at a path if nothing but its own list of operations has to know; else `MISSING`."""
        context = self._context
        if context is None or self._live or (done := context._alone()) is None:
            return MISSING
        found = read_path(self._cell.store, path)
        if found is MISSING or not path or (self._cell.copies and type(found) not in SHARED):
            return MISSING
        done.append(RecordedOperation(ROOT, "get", path, found))
        return found

    async def set(self, path: str, value: Any, *, durable: bool = True) -> None:
        """Write a value at a path; missing dicts are created.

        With `durable=False` the value is kept in this process only, under a plain name: for live objects such as
        clients. It is not stored, is not undone if the step fails, and is gone when the run has left memory.
        """
        if not path:
            raise ValueError("Path cannot be empty: use set_state to replace the whole state")
        if not durable:
            if "." in path:
                raise ValueError(f"a value that is not durable has a plain name, not the path {path!r}")
            self._live[path] = value
            return
        self._live.pop(path, None)
        await self._write(path, value)

    async def get_state(self) -> S:
        """Return the whole state."""
        replay = self._replay
        if replay is None:
            return self._cell.store
        if replay.takes_turns:
            await replay.take_turn("state", "")
        return replay.read("state", "", self._cell.store, self._live)

    async def set_state(self, state: S) -> None:
        """Replace the whole state; a state of a parent class replaces only the fields that it has."""
        await self._write("", state, merged_state)

    async def clear(self) -> None:
        """Reset the state to the initial state of a run."""
        await self._write("", None, lambda current, _: blank_state(type(current)))

    def to_dict(self, serializer: Any) -> dict[str, Any]:
        """Return the state as JSON values, serialized with this serializer."""
        return save_store(self._cell.store, serializer)

    @asynccontextmanager
    async def edit_state(self) -> AsyncIterator[S]:
        """Change the state in place, with exclusive access; if the block raises, nothing changes."""
        replay = self._replay
        if replay is None:
            async with self._lock:
                self._lock.hold()
                edited = copy_data(self._cell.store)
                yield edited
                self._write_now(changes(self._cell.store, edited), edits=True)
            return
        if replay.takes_turns:
            await replay.take_turn("edit", "")
        lane, operation = replay.at("edit", "")
        replay.refuse_inside_effect(lane, "edit_state()")
        if replay.copies:
            replay.lent.forget()
        if operation is not None and operation.result is not UNKNOWN:
            with replay.recorded_edit(lane, operation) as edited:
                yield edited
            return
        is_free = self._lock.is_free
        async with self._lock:
            if not is_free:
                await replay.rest(lane)
            self._lock.hold()
            before, failed = replay.whole(replay.view(self._cell.store)), None
            edited = copy_data(before)
            replay.begin_edit(lane)
            try:
                yield edited
                try:
                    found = changes(replay.view(self._cell.store), edited)
                    replay.observe(lane, None, "edit", "", found)
                    replay.run.note_basis(path for path, _ in found)
                    self._write_now(found, edits=True)
                except Exception as error:
                    failed = error
                    raise
            finally:
                # Only now: what another task records meanwhile must not contain an edit that is not written yet.
                replay.end_edit(lane)
                if operation is None:
                    replay.add(lane, "edit", "", before, failed)

    async def _write(self, path: str, value: Any, merge: Callable[[Any, Any], Any] | None = None) -> None:
        """Write a value, or what `merge` makes of the whole state and the value."""
        context, is_plain = self._context, merge is None and (not self._cell.copies or type(value) in SHARED)
        if is_plain and context is not None and self._lock.is_free and (done := context._alone()) is not None:
            self._write_alone(context, done, path, value)
            return
        replay = self._replay
        if replay is None:
            async with self._lock:
                self._write_now(((path, value if merge is None else merge(self._cell.store, value)),))
            return
        if replay.takes_turns:
            await replay.take_turn("set", path)
        lane, operation = replay.at("set", path)
        if lane.inside is not None:
            replay.refuse_inside_effect(lane, "a write to the state")
        if replay.observer is not None:
            replay.observe(lane, operation, "set", path, value)
        if operation is not None:
            raise_recorded(operation)
            if replay.copies:
                replay.lent.write(path, copy_data(value), value)
            return
        if self._lock.is_free:  # Nothing is awaited until it is written.
            self._write_recorded(replay, lane, path, value, merge)
            return
        async with self._lock:
            await replay.rest(lane)
            self._write_recorded(replay, lane, path, value, merge)

    def _write_alone(self, context: Context[Any], done: list[RecordedOperation], path: str, value: Any) -> None:
        try:
            self._write_now(((path, value),))
        except Exception as error:
            if (replay := context._replay) is not None:
                replay.add(replay.root, "set", path, error=error)
            raise
        done.append(RecordedOperation(ROOT, "set", path))

    def _write_recorded(
        self, replay: StepReplay, lane: RecordLane, path: str, value: Any, merge: Callable[[Any, Any], Any] | None
    ) -> None:
        try:
            if merge is not None:
                value = merge(self._cell.store, value)
            stored = copy_data(value) if replay.copies else value
            self._write_now(((path, stored),))
        except Exception as error:
            replay.add(lane, "set", path, error=error)
            raise
        replay.add(lane, "set", path)
        if replay.copies:
            replay.lent.write(path, stored if path else replay.whole(stored), value)


class InMemoryStateStore(StateStore[S]):
    """A store without a run, for tests and for functions that take a store."""

    def __init__(self, initial_state: S) -> None:
        cell = StateCell(type(initial_state), initial_state)

        def write(changes: Changes, *, edits: bool = False) -> None:
            write_paths(cell, changes)

        super().__init__(cell, cell.kind, cell.lock, write, cell.live)

    @classmethod
    def from_dict(cls, data: dict[str, Any], serializer: Any) -> InMemoryStateStore[Any]:
        """Load a store that `to_dict` has saved; the class of its state must be loaded."""
        kind: Any = DictState
        if (name := data.get("state_type", "DictState")) != "DictState":
            kind = loaded_class(f"{data.get('state_module', '')}.{name}")
        return cls(load_store(data, kind, serializer))


def merged_state(current: Any, incoming: Any) -> Any:
    """Return the incoming state; if it is of a parent class, the current state with the fields of the incoming one."""
    kind = type(current)
    if isinstance(incoming, kind):
        return incoming
    if not (isinstance(current, BaseModel) and isinstance(incoming, BaseModel) and isinstance(current, type(incoming))):
        raise ValueError(f"State must be of type {kind.__name__} or a parent type, got {type(incoming).__name__}")
    return kind.model_validate(_values(current) | _values(incoming))


def blank_state(kind: Any) -> Any:
    """Return a new state of a class; a ValueError if it cannot be created without arguments."""
    try:
        return kind()
    except (ValidationError, TypeError) as error:
        raise ValueError(f"State must have defaults for all fields: {error}") from error


def _values(state: BaseModel) -> dict[str, Any]:
    return vars(state) | (state.__pydantic_extra__ or {})
