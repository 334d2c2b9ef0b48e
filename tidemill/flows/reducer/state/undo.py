"""Write to the state of a run, and undo the writes of a failed attempt without undoing those of other attempts. Pure.

Writes are visible to all steps at once, and stay pending (drafts) until their attempt succeeds. Undoing a draft leaves
the state as if it had never been written: a later write of another attempt is kept, and the value that it would restore
becomes the value before the draft. The cost of a write depends on the writes that it overlaps, not on the state.

A draft that an edit of another attempt was made from is not undone if its own step runs again: it counts, and an equal
write of the rerun is the same write. If the step ends without it, it is taken out of what was made from it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import suppress
from copy import copy
from typing import Any

from tidemill.flows.reducer.state.diff import same
from tidemill.flows.reducer.state.flow_state import FlowState, PendingWrite, PendingWrites, Work
from tidemill.flows.reducer.state.merge import merged
from tidemill.flows.reducer.state.paths import (
    CONTAINERS,
    MISSING,
    Changes,
    inner_path,
    missing_part,
    read_path,
    write_path,
)


def write(state: FlowState, work: Work, changes: Changes, *, edits: bool = False) -> None:
    """Apply these changes to the state as one operation of a piece of work; `edits` if they are made from it."""
    act: list[PendingWrite] = []
    for path, value in changes:
        if work.kept_writes and (again := _write_again(state, work, path, value)) is not None:
            act.append(again)
            continue
        made = missing_part(state.store, path)
        before = write_path(state, path, value)
        state.drafted += 1
        draft = PendingWrite(state.drafted, path, before, made or "", after=value, work=work.id, edits=edits)
        add_draft(state.drafts, draft)
        act.append(draft)
    work.undo.append(act)


def write_for_good(state: FlowState, changes: Changes, *, edits: bool = False) -> None:
    """Apply changes from outside of the steps, which are never undone."""
    for path, value in changes:
        write_path(state, path, value)
        state.drafted += 1
        _make_final(state.drafts, PendingWrite(state.drafted, path, MISSING, edits=edits))


def keep_writes(state: FlowState, work: Work) -> None:
    """Make the writes of a successful piece of work final."""
    drop_kept_writes(state, work)
    for act in reversed(work.undo):
        for draft in reversed(act):
            if not draft.void:
                _remove(state.drafts, draft)
                _make_final(state.drafts, draft)
    work.undo = []


def undo_writes(state: FlowState, *works: Work) -> None:
    """Undo the operations of attempts that failed or died, behind those that each keeps."""
    undone = [draft for work in works for act in work.undo[work.wrote :] for draft in act if not draft.void]
    undone.sort(key=_number, reverse=True)
    owners = {work.id: work for work in works}
    unplaced: dict[int, PendingWrite] = {}
    for draft in undone:
        if _is_built_on(state.drafts, draft):
            owners[draft.work].kept_writes.append(draft)
        else:
            _undo_write(state, draft, unplaced)
    _drop_unplaced(state, unplaced)
    for work in works:
        del work.undo[work.wrote :]
        work.kept_writes.sort(key=_number)


def drop_kept_writes(state: FlowState, work: Work) -> None:
    """Take the writes that a piece of work has not made again out of what others have made from them."""
    unplaced: dict[int, PendingWrite] = {}
    for draft in reversed(work.kept_writes):
        if not draft.void:
            _undo_write(state, draft, unplaced)
    _drop_unplaced(state, unplaced)
    work.kept_writes = []


def before_kept_writes(store: Any, kept: list[PendingWrite]) -> Any:
    """Return a copy of the state as a step sees it that runs again: as it was before the writes that it has to make."""
    place = _Box(store, True)
    for draft in reversed(kept):
        if not draft.void and (draft.before is not MISSING or missing_part(place.store, draft.path) is None):
            with suppress(*_NO_PLACE):
                write_path(place, draft.path, draft.before)
    return place.store


def _write_again(state: FlowState, work: Work, path: str, value: Any) -> PendingWrite | None:
    """Return the draft that this write is again, if there is one; others have built on the value that it has now."""
    kept = [each for each in work.kept_writes if not each.void]
    again = next((each for each in kept if each.path == path), None)
    others = [each for each in kept if each is not again and (_is_in(path, each.path) or _is_in(each.path, path))]
    if again is None and others:
        unplaced: dict[int, PendingWrite] = {}
        for each in reversed(others):
            _undo_write(state, each, unplaced)
        _drop_unplaced(state, unplaced)
        kept = [each for each in kept if not each.void]
    work.kept_writes = [each for each in kept if each is not again]
    if again is not None:
        before, again.after = again.after, value
        _rebuild(state, again.number, path, before, value)
    return again


def _is_built_on(drafts: PendingWrites, draft: PendingWrite) -> bool:
    """Whether an edit of other work was made from what a draft has written, or a later draft of its own work stays."""
    following = _following(drafts, draft.number, draft.path)
    return draft.built_on or (following is not None and (following.edits or following.work == draft.work))


def _rebuild(state: FlowState, number: int, path: str, old: Any, new: Any) -> None:
    """Change what was made from a value, as if it had been another one."""
    following = _following(state.drafts, number, path)
    if following is None:
        with suppress(*_NO_PLACE):
            current = read_path(state.store, path)
            if (value := merged(old, new, current)) is not current:
                write_path(state, path, value)
        return
    place, inner = _Box(following.before, True), _within(following.path, path)
    with suppress(*_NO_PLACE):
        write_path(place, inner, merged(old, new, read_path(place.store, inner)))
    _replace_before(state, following, place.store)


def _replace_before(state: FlowState, draft: PendingWrite, before: Any) -> None:
    """Change the value that a draft restores, and if it is an edit, what it has made from that."""
    known, draft.before = draft.before, before
    if draft.edits:
        written, draft.after = draft.after, merged(known, before, draft.after)
        if not same(written, draft.after):
            _rebuild(state, draft.number, draft.path, written, draft.after)


def _make_final(drafts: PendingWrites, final: PendingWrite) -> None:
    """Make a write final: older drafts at its path become void, unless it was made from what they have written.

    Drafts of outer paths must preserve it."""
    number, path = final.number, final.path
    way = _way(drafts, path)
    *around, exact = way if len(way) == _depth(path) else (*way, None)
    if exact is not None:
        for node in (exact, *_below(exact)):
            older = bisect_right(node.chain, number, key=_number)
            stay: list[PendingWrite] = []
            for each in node.chain[:older]:
                if final.edits and each.work != final.work and not each.settled:
                    each.built_on = True
                    stay.append(each)
                else:
                    each.void = True
            node.chain[:older] = stay
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
            # A later write has replaced it or its container: the value that this write restores changes.
            place, around, replacing = _Box(each.before, state.copies or each.edits), each.path, each
            break
        if _is_in(draft.path, each.path):
            inside.append(each)
    lost = set(unplaced)
    values = [(each, _value(place, around, inside[index:], unplaced)) for index, each in enumerate(inside)]
    with suppress(*_NO_PLACE):
        path, value = _within(around, draft.path), draft.before
        if draft.built_on:
            value = merged(draft.after, draft.before, read_path(place.store, path))
        write_path(place, path, value)
    put: list[str] = []
    for each, value in values:
        if value is not MISSING:
            before, made = each.before, each.made
            _put_again(place, around, each, value, unplaced)
            if each.number not in lost | unplaced.keys() and any(_is_in(outer, each.path) for outer in put):
                each.before, each.made = before, made  # It is inside a value that was put again.
            put.append(each.path)
    _remove_empty(place, around, draft)
    if replacing is not None:
        _replace_before(state, replacing, place.store)
    _tidy(state.drafts, draft.path)


def _drop_unplaced(state: FlowState, unplaced: dict[int, PendingWrite]) -> None:
    for draft in unplaced.values():  # The container that it was written into no longer exists.
        if not draft.void:
            _remove(state.drafts, draft)
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
    """Return the next write at the path of a draft or its outer paths, and all later ones at its inner paths."""
    way = _way(drafts, draft.path)
    found: list[PendingWrite] = []
    if (following := _following(drafts, draft.number, draft.path)) is not None:
        found.append(following)
    for node in _below(way[-1]):
        found += node.chain[bisect_right(node.chain, draft.number, key=_number) :]
    return sorted(found, key=_number)


def _following(drafts: PendingWrites, number: int, path: str) -> PendingWrite | None:
    """Return the next draft at a path or at its outer paths."""
    found: PendingWrite | None = None
    for node in _way(drafts, path):
        chain = node.chain
        for index in range(bisect_right(chain, number, key=_number), len(chain)):
            if not chain[index].settled:
                if found is None or chain[index].number < found.number:
                    found = chain[index]
                break
    return found


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
