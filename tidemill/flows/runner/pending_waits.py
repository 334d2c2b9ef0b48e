"""The open waits of a run's steps and the answers that they have received, in the process where they run.

A step receives an answer only from the command of a journaled tick, or from the answers that its work had when it
started: never from the state, which may be ahead of the journal.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tidemill.core.ticks import Answer
from tidemill.flows.errors import WorkflowRuntimeError


class Memory:
    """The answers that one attempt of a step has received."""

    def __init__(self, known: tuple[dict[str, Any], dict[str, int]] | None) -> None:
        self.answers, self.lapsed = known or ({}, {})
        self.lapses: dict[str, int] = {}

    def recall(self, question: str) -> tuple[bool, Any]:
        """Return whether the outcome of this wait is known, and the answer: None if it timed out."""
        lapses = self.lapses.get(question, 0)
        if lapses < self.lapsed.get(question, 0):
            self.lapses[question] = lapses + 1
            return True, None
        return question in self.answers, self.answers.get(question)


class PendingWaits:
    """The open waits of a run's steps, and the memory of each running attempt, created on its first wait."""

    def __init__(self) -> None:
        self._known: dict[int, Any] = {}
        self._memories: dict[int, Memory] = {}
        self._open: dict[tuple[int, str], list[asyncio.Future[Any]]] = {}

    def begin(self, work: int, known: Any) -> None:
        """Start an attempt with the answers that its work has received before."""
        self._known[work] = known

    def end(self, work: int) -> None:
        """End an attempt and drop its answers."""
        self._known.pop(work, None)
        if self._memories:
            self._memories.pop(work, None)

    def memory(self, work: int) -> Memory:
        """Return the memory of the running attempt."""
        found = self._memories.get(work)
        if found is not None:
            return found
        if work not in self._known:
            raise WorkflowRuntimeError("this step has ended: a task that it left running cannot wait for events")
        made = self._memories[work] = Memory(self._known[work])
        return made

    def wait(self, work: int, question: str) -> asyncio.Future[Any]:
        """Return a future of the answer."""
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._open.setdefault((work, question), []).append(waiting)
        return waiting

    def leave(self, work: int, question: str, waiting: asyncio.Future[Any]) -> bool:
        """Stop waiting; returns True if no other task waits for the same question."""
        others = self._open.get((work, question), [])
        if waiting not in others:
            return False
        others.remove(waiting)
        if others:
            return False
        del self._open[work, question]
        return True

    def answer(self, reply: Answer) -> None:
        """Deliver a journaled answer."""
        waiting = self._open.pop((reply.work, reply.question), [])
        if reply.work not in self._known:
            return
        memory = self.memory(reply.work)
        if reply.event is not None:
            memory.answers[reply.question] = reply.event
        elif waiting:
            memory.lapses[reply.question] = memory.lapses.get(reply.question, 0) + 1
        for each in waiting:
            if not each.done():
                each.set_result(reply.event)
