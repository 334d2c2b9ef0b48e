"""What the steps of a run have asked and what they were told, in the process where they run.

A step is told an answer only by the command that follows from a journaled tick, or by what its work knew when it was
begun: never by looking at the state, which may be ahead of the journal.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tidemill.core.ticks import Answer
from tidemill.flows.errors import WorkflowRuntimeError


class Memory:
    """What one attempt at a step has been told."""

    def __init__(self, known: tuple[dict[str, Any], dict[str, int]] | None) -> None:
        self.answers, self.lapsed = known or ({}, {})
        self.lapses: dict[str, int] = {}

    def recall(self, question: str) -> tuple[bool, Any]:
        """Whether it is known how this asking ended, and how: None when its time had run out."""
        lapses = self.lapses.get(question, 0)
        if lapses < self.lapsed.get(question, 0):
            self.lapses[question] = lapses + 1
            return True, None
        return question in self.answers, self.answers.get(question)


class PendingWaits:
    """The open questions of a run's steps, and the memories of those that are at work: made when one asks."""

    def __init__(self) -> None:
        self._known: dict[int, Any] = {}
        self._memories: dict[int, Memory] = {}
        self._open: dict[tuple[int, str], list[asyncio.Future[Any]]] = {}

    def begin(self, work: int, known: Any) -> None:
        """An attempt begins, with what its work knows from before."""
        self._known[work] = known

    def end(self, work: int) -> None:
        """It is over, and what it was told goes with it."""
        self._known.pop(work, None)
        if self._memories:
            self._memories.pop(work, None)

    def memory(self, work: int) -> Memory:
        """What the attempt that is under way knows."""
        found = self._memories.get(work)
        if found is not None:
            return found
        if work not in self._known:
            raise WorkflowRuntimeError("this step has ended: what it has left running cannot wait for events any more")
        made = self._memories[work] = Memory(self._known[work])
        return made

    def wait(self, work: int, question: str) -> asyncio.Future[Any]:
        """Will have the answer."""
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._open.setdefault((work, question), []).append(waiting)
        return waiting

    def leave(self, work: int, question: str, waiting: asyncio.Future[Any]) -> bool:
        """Stop waiting; True if that question is nobody's any more."""
        others = self._open.get((work, question), [])
        if waiting not in others:
            return False
        others.remove(waiting)
        if others:
            return False
        del self._open[work, question]
        return True

    def answer(self, told: Answer) -> None:
        """An answer that is safe to go by."""
        waiting = self._open.pop((told.work, told.question), [])
        if told.work not in self._known:
            return
        memory = self.memory(told.work)
        if told.event is not None:
            memory.answers[told.question] = told.event
        elif waiting:
            memory.lapses[told.question] = memory.lapses.get(told.question, 0) + 1
        for each in waiting:
            if not each.done():
                each.set_result(told.event)
