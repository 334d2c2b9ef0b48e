"""Tells operators where a message is: they ask all dispatchers of the stream by a notification."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import structlog

from tidemill.sources.delivery import Delivery
from tidemill.store.database import Database
from tidemill.store.streams.find_message import MessageAnswer, MessageQuestion, answer_question, read_question

if TYPE_CHECKING:
    from tidemill.streams.runner.dispatcher import Dispatcher

log = structlog.get_logger("tidemill.streams")

SOURCE_ANSWERS_WITHIN = 0.5


class MessageLookup:
    """Answers questions about messages of one dispatcher."""

    def __init__(self, database: Database, dispatcher: Dispatcher) -> None:
        self._database, self._dispatcher = database, dispatcher
        self._answering: set[asyncio.Task[None]] = set()

    def asked(self, payload: str) -> None:
        """Answer, if this notification is a question about the stream."""
        question = read_question(payload)
        if question is not None and question.stream == self._dispatcher.stream.name:
            task = asyncio.create_task(self._answer(question))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

    async def _answer(self, question: MessageQuestion) -> None:
        try:
            found = self._find(question) or await self._ask_source(question)
            await answer_question(self._database, found or MessageAnswer(question.number, str(self._dispatcher.id)))
        except Exception as error:  # noqa: BLE001 - a question that is not answered stops nothing
            log.debug("a question about a message is not answered", error=str(error))

    def _find(self, question: MessageQuestion) -> MessageAnswer | None:
        """The message among those that were taken from their sources."""
        dispatcher = self._dispatcher
        reducer, names = dispatcher.reducer, [source.name for source in dispatcher.stream.sources]
        here = list(reducer.places())
        for at, (where, delivery) in enumerate(here):
            if question.source not in (None, names[delivery.source]):
                continue
            if delivery.place != question.place and (question.id is None or delivery.id != question.id):
                continue
            now, wall = time.monotonic(), time.time()
            waits_for, ahead, behind, seconds, engine = None, 0, None, None, None
            if where == "in_flight":
                ticket = next(ticket for ticket, each in reducer.flights.items() if each is delivery)
                engine, seconds = dispatcher.engines.where(ticket)
            elif where == "waiting":
                waits_for = reducer.waits_for(delivery.source, now)
                ahead = sum(each[0] == where and each[1].source == delivery.source for each in here[:at])
            elif where == "key":
                behind = _holder(here, delivery)
            elif where == "retry":
                seconds = max(0.0, delivery.not_before - wall) or None
            return MessageAnswer(
                question.number, str(dispatcher.id), where, names[delivery.source], delivery.place, delivery.id,
                waits_for, ahead, behind, seconds, engine, delivery.attempt,
            )  # fmt: skip
        return None

    async def _ask_source(self, question: MessageQuestion) -> MessageAnswer | None:
        """What the source says of a position: not read yet, or done."""
        dispatcher = self._dispatcher
        index = next((at for at, each in enumerate(dispatcher.stream.sources) if each.name == question.source), None)
        if index is None or question.place is None:
            return None
        state_of = getattr(dispatcher.consumers[index], "state_of", None)
        if state_of is None:
            return None
        part, _, position = question.place.partition(":")
        async with asyncio.timeout(SOURCE_ANSWERS_WITHIN):
            where = await state_of(int(part), int(position))
        if where is None:
            return None
        return MessageAnswer(question.number, str(dispatcher.id), where, str(question.source), question.place)


def _holder(here: list[tuple[str, Delivery]], delivery: Delivery) -> str | None:
    """The message that holds the key that another one waits for."""
    for where, each in here:
        if where != "key" and each.source == delivery.source and each.key == delivery.key:
            return each.place
    return None
