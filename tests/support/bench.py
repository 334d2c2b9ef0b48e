"""An engine of a stream without a dispatcher: work is handed to it, and its answers are kept."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.support import eventually
from tidemill.sources import JsonlSource
from tidemill.streams import Plan, Stream
from tidemill.streams.definition.message import EngineAnswer
from tidemill.streams.engine.engine import Engine
from tidemill.streams.runner.link import DeliveryDetails, MessageWork, ToDispatcher


class Bench:
    """An engine with its answers."""

    def __init__(self, stream: Stream) -> None:
        self.answers: dict[int, EngineAnswer] = {}
        self.frames = 0
        self.is_exhausted = False
        self.engine = Engine(stream, self._heard)
        self._tickets = 0

    def _heard(self, frame: ToDispatcher) -> None:
        self.frames += 1
        self.is_exhausted |= frame.exhausted
        for ticket in frame.ok:
            self.answers[ticket] = EngineAnswer(ticket, "ok")
        for answer in frame.answers:
            assert answer.ticket not in self.answers, "answered twice"
            self.answers[answer.ticket] = answer

    def give(self, *payloads: bytes, source: int = 0, details: DeliveryDetails | None = None) -> list[int]:
        work = []
        for payload in payloads:
            self._tickets += 1
            work.append(MessageWork(self._tickets, source, payload, 0, self._tickets, details))
        self.engine.submit(work)
        return [each.ticket for each in work]

    def ask(self, payload: bytes, *eligibilities: str) -> int:
        self._tickets += 1
        self.engine.submit([], [MessageWork(self._tickets, -1, payload, 0, 0, None, eligibilities)])
        return self._tickets

    async def answer(self, ticket: int) -> EngineAnswer:
        await eventually(lambda: ticket in self.answers, interval=0.001)
        return self.answers[ticket]


@asynccontextmanager
async def bench(*plans: type[Plan], sources: list[JsonlSource] | None = None, **options: Any) -> AsyncIterator[Bench]:
    everything = {plan.eligibility for plan in plans if plan.eligibility}
    declared = sources or [JsonlSource("a.jsonl", eligibilities=frozenset(everything))]
    made = Bench(Stream("bench", plans=plans, sources=declared, **options))
    await made.engine.start()
    try:
        yield made
    finally:
        await made.engine.stop()
