"""Write to the state of a run, and undo the writes of a failed attempt without undoing those of other attempts. Pure.

Writes are visible to all steps at once, and stay pending (drafts) until their attempt succeeds. Undoing a draft leaves
the state as if it had never been written: a later write of another attempt is kept, and the value that it would restore
becomes the value before the draft. The cost of a write depends on the writes that it overlaps, not on the state.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import suppress
from copy import copy
from typing import Any

from tidemill.flows.reducer.state import FlowState, PendingWrite, PendingWrites, Work
from tidemill.flows.reducer.state_paths import (
    CONTAINERS,
    MISSING,
    Changes,
    inner_path,
    missing_part,
    read_path,
    write_path,
)


def write(state: FlowState, work: Work, changes: Changes) -> None:
    """Apply these changes to the state as one operation of a piece of work."""
    act: list[PendingWrite] = []
    for path, value in changes:
        made = missing_part(state.store, path)
        before = write_path(state, path, value)
        state.drafted += 1
        draft = PendingWrite(state.drafted, path, before, made or "")
        add_draft(state.drafts, draft)
        act.append(draft)
    work.undo.append(act)


def write_for_good(state: FlowState, changes: Changes) -> None:
    """Apply changes from outside of the steps, which are never undone."""
    for path, value in changes:
        write_path(state, path, value)
        state.drafted += 1
        _make_final(state.drafts, state.drafted, path)


def keep_writes(state: FlowState, work: Work) -> None:
    """Make the writes of a successful piece of work final."""
    for act in reversed(work.undo):
        for draft in reversed(act):
            if not draft.void:
                _remove(state.drafts, draft)
                _make_final(state.drafts, draft.number, draft.path)
    work.undo = []


def undo_writes(state: FlowState, work: Work, *, since: int = 0) -> None:
    """Undo the operations of a failed attempt, from number `since` on."""
    unplaced: dict[int, PendingWrite] = {}
    for act in reversed(work.undo[since:]):
        for draft in reversed(act):
            if not draft.void:
                _undo_write(state, draft, unplaced)
    for draft in unplaced.values():  # The container that it was written into no longer exists.
        if not draft.void:
            _remove(state.drafts, draft)
            _tidy(state.drafts, draft.path)
    work.undo = work.undo[:since]


def _make_final(drafts: PendingWrites, number: int, path: str) -> None:
    """Make a write final: older drafts at its path become void, and drafts of outer paths must preserve it."""
    way = _way(drafts, path)
    *around, exact = way if len(way) == _depth(path) else (*way, None)
    if exact is not None:
        for node in (exact, *_below(exact)):
            older = bisect_right(node.chain, number, key=_number)
            for each in node.chain[:older]:
                each.void = True
            del node.chain[:older]
    if any(not each.settled and each.number < number for node in around for each in node.chain[:1]):
        add_draft(drafts, PendingWrite(number, path, MISSING, settled=True))
    _tidy(drafts, path)


def _undo_write(state: FlowState, draft: PendingWrite, unplaced: dict[int, PendingWrite]) -> None:
    later = _later(state.drafts, draft)
    _remove(state.drafts, draft)
    place: _Box | FlowState = state
    around, replacing = "", None
    inside: list[PendingWrite] = []
    for each in later:
        if _is_in(each.path, draft.path):
            # A later write has replaced it or its container: only the value that this write restores changes.
            place, around, replacing = _Box(each.before, state.copies), each.path, each
            break
        if _is_in(draft.path, each.path):
            inside.append(each)
    values = [(each, _value(place, around, inside[index:], unplaced)) for index, each in enumerate(inside)]
    with suppress(*_NO_PLACE):
        write_path(place, _within(around, draft.path), draft.before)
    for each, value in values:
        if value is not MISSING:
            _put_again(place, around, each, value, unplaced)
    _remove_empty(place, around, draft)
    if replacing is not None:
        replacing.before = place.store
    _tidy(state.drafts, draft.path)


def _value(place: _Box | FlowState, around: str, drafts: list[PendingWrite], unplaced: dict[int, PendingWrite]) -> Any:
    """Return the value that the first of these drafts wrote; a later draft that replaced it may hold it."""
    draft, *later = drafts
    if unplaced.pop(draft.number, None) is not None:
        return draft.before
    for each in later:
        if _is_in(each.path, draft.path):
            return read_path(each.before, _within(each.path, draft.path))
    return read_path(place.store, _within(around, draft.path))


def _put_again(
    place: _Box | FlowState, around: str, draft: PendingWrite, value: Any, unplaced: dict[int, PendingWrite]
) -> None:
    """Write the value of a later draft again, into the restored value."""
    path = _within(around, draft.path)
    if place.store is MISSING:
        place.store, made = {}, around
    else:
        made = missing_part(place.store, path) or ""
        made = f"{around}.{made}" if around and made else made
    try:
        draft.before = write_path(place, path, value)
        draft.made = made
    except _NO_PLACE:
        draft.before = value
        unplaced[draft.number] = draft  # Its container may exist again after more drafts are undone.


def _remove_empty(place: _Box | FlowState, around: str, draft: PendingWrite) -> None:
    """Remove the dicts that were created for a draft, unless they contain other values."""
    path = draft.path
    while draft.made and draft.before is MISSING and "." in path:
        path = path.rpartition(".")[0]
        if not _is_in(draft.made, path) or not _is_in(around, path):
            return
        if read_path(place.store, _within(around, path)) != {}:
            return
        write_path(place, _within(around, path), MISSING)


#: The errors that are raised when a path cannot be written.
_NO_PLACE = (AttributeError, IndexError, TypeError, ValueError)


class _Box:
    """Holds a value that was in the state, so that it can be changed like the state."""

    def __init__(self, store: Any, copies: bool) -> None:
        # The outermost container may have been read, too, and a write does not copy it.
        self.store = copy(store) if copies and isinstance(store, CONTAINERS) else store
        self.copies = copies


# -- the tree of drafts by path -------------------------------------------------------------------


def add_draft(drafts: PendingWrites, draft: PendingWrite) -> None:
    """Insert a draft at its path, in the order of writing."""
    node = drafts
    for part in draft.path.split(".") if draft.path else ():
        node = node.inside.setdefault(part, PendingWrites())
    if not node.chain or node.chain[-1].number < draft.number:
        node.chain.append(draft)
    else:
        node.chain.insert(bisect_left(node.chain, draft.number, key=_number), draft)


def settled_drafts(drafts: PendingWrites) -> Iterator[PendingWrite]:
    """Yield the final drafts that are kept because of older drafts of outer paths."""
    for node in (drafts, *_below(drafts)):
        yield from (each for each in node.chain if each.settled)


def _remove(drafts: PendingWrites, draft: PendingWrite) -> None:
    draft.void = True
    chain = _way(drafts, draft.path)[-1].chain
    del chain[bisect_left(chain, draft.number, key=_number)]


def _later(drafts: PendingWrites, draft: PendingWrite) -> list[PendingWrite]:
    """Return the later writes at the path of a draft, at its outer paths and at its inner paths."""
    way = _way(drafts, draft.path)
    found: list[PendingWrite] = []
    for node in way:
        first = bisect_right(node.chain, draft.number, key=_number)
        found += node.chain[first : first + 1]
    for node in _below(way[-1]):
        found += node.chain[bisect_right(node.chain, draft.number, key=_number) :]
    return sorted(found, key=_number)


def _way(drafts: PendingWrites, path: str) -> list[PendingWrites]:
    """Return the nodes from the root to a path; fewer than its depth if there is no draft there."""
    node, way = drafts, [drafts]
    for part in path.split(".") if path else ():
        found = node.inside.get(part)
        if found is None:
            return way
        node = found
        way.append(node)
    return way


def _below(node: PendingWrites) -> Iterator[PendingWrites]:
    for inner in node.inside.values():
        yield inner
        yield from _below(inner)


def _tidy(drafts: PendingWrites, path: str) -> None:
    """Remove nodes without drafts, and final drafts without an older draft of an outer path."""
    way = _way(drafts, path)
    oldest: int | None = None
    for node in way:
        while node.chain and node.chain[0].settled and (oldest is None or node.chain[0].number < oldest):
            del node.chain[0]
        if node.chain and not node.chain[0].settled:
            oldest = min(oldest or node.chain[0].number, node.chain[0].number)
    if len(way) == _depth(path):
        _tidy_below(way[-1], oldest)
    parts = path.split(".")
    for depth in range(len(way) - 1, 0, -1):
        if way[depth].chain or way[depth].inside:
            return
        del way[depth - 1].inside[parts[depth - 1]]


def _tidy_below(node: PendingWrites, oldest: int | None) -> None:
    for name, inner in list(node.inside.items()):
        while inner.chain and inner.chain[0].settled and (oldest is None or inner.chain[0].number < oldest):
            del inner.chain[0]
        first = inner.chain[0] if inner.chain else None
        _tidy_below(inner, oldest if first is None or first.settled else min(oldest or first.number, first.number))
        if not inner.chain and not inner.inside:
            del node.inside[name]


def _depth(path: str) -> int:
    return path.count(".") + 2 if path else 1


def _is_in(outer: str, path: str) -> bool:
    return outer == path or inner_path(outer, path) is not None


def _within(around: str, path: str) -> str:
    return inner_path(around, path) or ""


def _number(draft: PendingWrite) -> int:
    return draft.number
