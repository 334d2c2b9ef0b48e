"""Collect events for a step, and undo everything that a failed attempt did. Pure."""

from __future__ import annotations

from collections import deque

from tidemill.flows.reducer.state.flow_state import FlowState, Work
from tidemill.flows.reducer.state.undo import undo_writes
from tidemill.flows.reducer.step_ticks import Gathered


def gather(state: FlowState, work: Work, note: Gathered) -> None:
    """Buffer an event that a step collects; `work.collected` is the whole set once it is complete."""
    key = (work.step, note.buffer)
    buffer = state.buffers.get(key)
    if buffer is None:
        buffer = state.buffers[key] = {}
    kind = type(note.event)
    if kind in note.expected:
        queue = buffer.get(kind)
        if queue is None:
            queue = buffer[kind] = deque()
        queue.append(note.event)
        work.gathered.append((note.buffer, note.event))
    if sum(map(len, buffer.values())) < len(note.expected):
        work.collected = None
        return
    wanted: dict[type, int] = {}
    for each in note.expected:
        wanted[each] = wanted.get(each, 0) + 1
    if any(len(buffer.get(each, ())) < count for each, count in wanted.items()):
        work.collected = None
        return
    work.collected = [buffer[each].popleft() for each in note.expected]
    work.taken.append((note.buffer, list(work.collected)))


def undo(state: FlowState, *works: Work) -> None:
    """Undo what attempts have written, collected and taken since the last suspension of each."""
    undo_writes(state, *works)
    for work in works:
        _undo_collected(state, work)


def _undo_collected(state: FlowState, work: Work) -> None:
    taken, gathered = work.taken[work.taken_before :], work.gathered[work.gathered_before :]
    for buffer, events in reversed(taken):
        for event in reversed(events):
            state.buffers[work.step, buffer].setdefault(type(event), deque()).appendleft(event)
    for buffer, event in reversed(gathered):
        queue = state.buffers[work.step, buffer].get(type(event))
        if queue is not None:
            for index, each in enumerate(queue):
                if each is event:
                    del queue[index]
                    break
    del work.taken[work.taken_before :], work.gathered[work.gathered_before :]
    work.collected = None


def undo_all(state: FlowState, work: Work) -> None:
    """Undo everything that a failed attempt has written, collected and taken."""
    work.wrote = work.taken_before = work.gathered_before = 0
    undo(state, work)
