"""Values of the state that a step of a durable run holds, and may change in place.

A step of a run in memory holds the values themselves, so that what it appends to a list that it has read is in the
state. A step of a durable run holds copies: what it has changed in them is written when it ends.
"""

from __future__ import annotations

from typing import Any

from tidemill.core.errors import PayloadError
from tidemill.flows.encoding.copies import copy_data
from tidemill.flows.encoding.values import pack
from tidemill.flows.errors import WorkflowRuntimeError
from tidemill.flows.reducer.state.diff import changes, same
from tidemill.flows.reducer.state.paths import MISSING, Changes, inner_path, read_path


class LentValues:
    """The values that one attempt has read or written, with what the state had at that moment."""

    def __init__(self) -> None:
        self._lent: list[tuple[str, Any, Any]] = []
        self._latest: dict[str, tuple[Any, Any]] = {}
        self._written: set[str] = set()

    def lend(self, path: str, stored: Any) -> Any:
        """Return the step's copy of a value: the same object again while the state has not changed."""
        known = self._latest.get(path)
        if known is not None and same(known[0], stored):
            return known[1]
        held = copy_data(stored)
        if held is not stored:
            self._keep(path, stored, held)
        return held

    def write(self, path: str, stored: Any, held: Any) -> None:
        """Remember a value that the step has written and still holds."""
        self._written.add(path)
        self._latest.pop(path, None)
        if held is not stored:
            self._keep(path, stored, held)

    def forget(self) -> None:
        """Remember that the step has written several values at once."""
        self._written.add("")

    @property
    def are_changed(self) -> bool:
        """Whether the step has changed a value in place."""
        return any(not same(stored, held) for _, stored, held in self._lent)

    def changes(self, store: Any, step: str) -> Changes:
        """Return what the step has changed in place; an error if another step has written the same since."""
        found: dict[str, Any] = {}
        for path, stored, held in self._lent:
            if same(stored, held):
                continue
            for inner, value in ((path, held),) if path else changes(stored, held):
                current, before = read_path(store, inner), read_path(stored, inner) if not path else stored
                if _equal(current, before):
                    found[inner] = value
                elif not _equal(current, value) and not self._wrote(inner):
                    raise WorkflowRuntimeError(
                        f"step {step} changed the value at {inner!r} of the state in place, but another step has "
                        "written it since: change it inside `async with ctx.store.edit_state()`"
                    )
        return tuple(found.items())

    def _keep(self, path: str, stored: Any, held: Any) -> None:
        self._lent.append((path, stored, held))
        self._latest[path] = (stored, held)

    def _wrote(self, path: str) -> bool:
        return any(
            path == each or inner_path(each, path) is not None or inner_path(path, each) is not None
            for each in self._written
        )


def place_of(path: str, store: Any, live: dict[str, Any]) -> tuple[Any, str]:
    """Return what a path leads into, the state or a live object of this process, and the rest of the path."""
    if live:
        name, _, rest = path.partition(".")
        if name in live:
            return live[name], rest
    return store, path


def _equal(one: Any, other: Any) -> bool:
    """Return whether two values are stored in the same way."""
    if one is MISSING or other is MISSING or same(one, other):
        return one is other or same(one, other)
    try:
        return pack(one) == pack(other)
    except PayloadError:
        return False
