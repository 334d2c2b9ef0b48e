"""The open waits of a run's steps and the answers that they have received, in the process where they run.

A step receives an answer only from the command of a journaled tick, or from the answers that its work had when it
started: never from the state, which may be ahead of the journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tidemill.core.ticks import Answer
from tidemill.flows.errors import WorkflowRuntimeError

#: The answers that a step has received before, the waits that have timed out, and those that it has given up.
Known = tuple[dict[str, Any], dict[str, int], frozenset[str]]


#: Gives an answer to the task that waits for it.
HandOut = Callable[["asyncio.Future[Any]", Any], None]


class Memory:
    """The answers that one attempt of a step has received."""

    def __init__(self, known: Known | None) -> None:
        self.answers, self.lapsed, self.given_up = known or ({}, {}, frozenset())
        self.withdrawn: set[str] = set()

    def arrival(self, question: str) -> int:
        """Return the place of an answer among those that have arrived."""
        return next((n for n, each in enumerate((*self.answers, *self.lapsed)) if each == question), 0)

    def recall(self, question: str) -> tuple[bool, Any]:
        """Return whether the outcome of this wait is known, and the answer: None if it timed out."""
        return question in self.answers or question in self.lapsed, self.answers.get(question)

    def is_closed(self, question: str) -> bool:
        """Return whether a wait has ended without an answer."""
        return question in self.lapsed or question in self.given_up or question in self.withdrawn


class PendingWaits:
    """The open waits of a run's steps, and the memory of each running attempt, created on its first wait."""

    def __init__(self) -> None:
        self._known: dict[int, Any] = {}
        self._memories: dict[int, Memory] = {}
        self._open: dict[tuple[int, str], list[tuple[asyncio.Future[Any], HandOut]]] = {}

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

    def wait(self, work: int, question: str, hand_out: HandOut) -> asyncio.Future[Any]:
        """Return a future of the answer."""
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._open.setdefault((work, question), []).append((waiting, hand_out))
        return waiting

    def leave(self, work: int, question: str, waiting: asyncio.Future[Any] | None) -> bool:
        """Stop waiting without having received the answer; returns True if no other task waits for the same question.

        The answer may have come in the same moment: then it is forgotten here."""
        others = [each for each in self._open.pop((work, question), ()) if each[0] is not waiting]
        if others:
            self._open[work, question] = others
        if others or work not in self._known:
            return False
        memory = self.memory(work)
        memory.answers.pop(question, None)
        memory.withdrawn.add(question)
        return question not in memory.lapsed

    def answer(self, reply: Answer) -> None:
        """Deliver a journaled answer."""
        waiting = self._open.pop((reply.work, reply.question), [])
        if reply.work not in self._known:
            return
        memory = self.memory(reply.work)
        if reply.event is not None:
            memory.answers[reply.question] = reply.event
        else:
            memory.lapsed[reply.question] = 1
        for each, hand_out in waiting:
            if not each.done():
                hand_out(each, reply.event)
