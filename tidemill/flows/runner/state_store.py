"""The state that the steps of a run share: `ctx.store`.

    await ctx.store.set("user.name", "Ada")            paths go through dicts, lists and attributes
    name = await ctx.store.get("user.name", default="")
    async with ctx.store.edit_state() as state:        nobody else writes meanwhile; an error undoes all of it
        state.count += 1

Writes are visible to all steps at once. What a failed attempt has written is taken back, unless another step has
written there since. An edit writes the values that it has changed, not the whole state.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Generic, TypeVar

from tidemill.flows.encoding.context_dict import load_store, save_store
from tidemill.flows.encoding.dict_like import DictState
from tidemill.flows.encoding.values import loaded_class
from tidemill.flows.reducer.state_diff import changes
from tidemill.flows.reducer.state_paths import MISSING, Changes, read_path, write_paths

S = TypeVar("S")


class StateCell:
    """Where a run's state is, before and after there is a run."""

    def __init__(self, kind: Any = None, store: Any = None) -> None:
        self.kind = DictState if kind in (None, dict) else kind
        self.store = self.kind() if store is None else store
        self.lock = asyncio.Lock()


class StateStore(Generic[S]):
    """The shared state, as one step or the outside sees it. `write` puts values at paths, as one act."""

    def __init__(self, cell: Any, kind: type, lock: asyncio.Lock, write: Callable[[Changes], None]) -> None:
        self._cell = cell
        self._kind = kind
        self._lock = lock
        self._write = write

    async def get(self, path: str, default: Any = MISSING) -> Any:
        """What stands at a path. Without a default, a path at which nothing stands is a ValueError."""
        found = read_path(self._cell.store, path)
        if found is not MISSING:
            return found
        if default is MISSING:
            raise ValueError(f"there is nothing at {path!r} in the state of this run")
        return default

    async def set(self, path: str, value: Any) -> None:
        """Put a value at a path; dicts are made on the way."""
        if not path:
            raise ValueError("an empty path is the whole state: use set_state for that")
        async with self._lock:
            self._write(((path, value),))

    async def get_state(self) -> S:
        """The whole state."""
        return self._cell.store

    async def set_state(self, state: S) -> None:
        """Replace the whole state by another of its kind."""
        if not isinstance(state, self._kind):
            raise ValueError(f"this run's state is a {self._kind.__name__}, not a {type(state).__name__}")
        async with self._lock:
            self._write((("", state),))

    async def clear(self) -> None:
        """Back to the state that every run begins with."""
        async with self._lock:
            self._write((("", self._kind()),))

    def to_dict(self, serializer: Any) -> dict[str, Any]:
        """The state as JSON values, written with this serializer."""
        return save_store(self._cell.store, serializer)

    @asynccontextmanager
    async def edit_state(self) -> AsyncIterator[S]:
        """Change the state in place, alone; if the block raises, nothing has changed."""
        async with self._lock:
            edited = copy.deepcopy(self._cell.store)
            yield edited
            self._write(changes(self._cell.store, edited))


class InMemoryStateStore(StateStore[S]):
    """A store of its own, without a run: for tests, and for helpers that take a store."""

    def __init__(self, initial_state: S) -> None:
        cell = StateCell(type(initial_state), initial_state)
        super().__init__(cell, cell.kind, cell.lock, partial(write_paths, cell))

    @classmethod
    def from_dict(cls, data: dict[str, Any], serializer: Any) -> InMemoryStateStore[Any]:
        """The store that `to_dict` has written; its kind of state must have been loaded."""
        kind: Any = DictState
        if (name := data.get("state_type", "DictState")) != "DictState":
            kind = loaded_class(f"{data.get('state_module', '')}.{name}")
        return cls(load_store(data, kind, serializer))
