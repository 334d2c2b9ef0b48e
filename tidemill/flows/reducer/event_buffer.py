"""Collect events for a step, and undo everything that a failed attempt did. Pure."""

from __future__ import annotations

from collections import deque

from tidemill.flows.reducer.state import FlowState, Work
from tidemill.flows.reducer.state_undo import undo_writes
from tidemill.flows.reducer.step_ticks import Gathered


def gather(state: FlowState, work: Work, note: Gathered) -> None:
    """Buffer an event that a step collects; `work.collected` is the whole set once it is complete."""
    key = (work.step, note.buffer)
    buffer = state.buffers.setdefault(key, {})
    kind = type(note.event)
    if kind in note.expected:
        buffer.setdefault(kind, deque()).append(note.event)
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


def undo(state: FlowState, work: Work, *, since: int = 0) -> None:
    """Undo what an attempt has written (from its write number `since` on), collected and taken."""
    undo_writes(state, work, since=since)
    for buffer, events in reversed(work.taken):
        for event in reversed(events):
            state.buffers[work.step, buffer].setdefault(type(event), deque()).appendleft(event)
    for buffer, event in reversed(work.gathered):
        queue = state.buffers[work.step, buffer].get(type(event))
        if queue is not None:
            for index, each in enumerate(queue):
                if each is event:
                    del queue[index]
                    break
    work.taken, work.gathered, work.collected = [], [], None
    work.wrote = since
