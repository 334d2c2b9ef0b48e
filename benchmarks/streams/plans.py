"""The streams that the benchmarks run, where their engines can import them."""

import asyncio
import json
import os
import random
import time
from collections.abc import Sequence
from typing import Any

from apps.content.corpus import sentence
from apps.content.embedding import SentenceModel
from tidemill.sources import KafkaSource, LogSource, Source
from tidemill.sources.delivery import Delivery
from tidemill.streams import Batch, Plan, Stream, task

#: Posts as the content application's traffic has them.
POSTS = tuple(sentence(chance) for chance in [random.Random(7)] for _ in range(256))


class MemorySource(Source, frozen=True, tag="memory"):
    """As many messages as wanted, at once or evenly over time, from nowhere: measures everything but a broker."""

    count: int = 0
    pace: float = 0.0
    """Messages a second; 0 for all at once."""

    def consumer(self, context: Any) -> Any:
        return MemoryConsumer(self)


def payload(number: int) -> bytes:
    return number.to_bytes(8, "big") + b"x" * 92


class MemoryConsumer:
    transactional = False

    def __init__(self, source: MemorySource) -> None:
        self.sent = self.acked = 0
        self.took: list[float] = []
        self.acked_at: list[float] = []
        self.began = self.ended = 0.0
        self.done = asyncio.Event()
        self._source = source

    async def start(self) -> None: ...

    async def poll(self, most: int) -> list[Delivery]:
        left = self._source.count - self.sent
        if not left:
            await asyncio.sleep(3600)
        if not self.sent:
            self.began = time.perf_counter()
        if self._source.pace:
            await asyncio.sleep(max(0.0, self.began + self.sent / self._source.pace - time.perf_counter()))
            self.sent += 1
            return [Delivery(payload(self.sent), self.sent, token=time.perf_counter())]
        count = min(left, most)
        first = self.sent
        self.sent += count
        return [Delivery(payload(first + number), first + number) for number in range(count)]

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        now = time.perf_counter()
        self.acked += len(deliveries)
        self.acked_at += [now] * len(deliveries)
        if self._source.pace:
            self.took += [now - delivery.token for delivery in deliveries]
        if self.acked >= self._source.count:
            self.ended = now
            self.done.set()

    def nack(self, deliveries: Sequence[Delivery]) -> None: ...
    async def flush(self) -> None: ...
    async def commit(self, connection: Any, deliveries: Sequence[Delivery]) -> None: ...
    async def stop(self) -> None: ...

    async def lag(self) -> int | None:
        return None


class Nothing(Plan, eligibility="nothing"):
    @task
    async def nothing(self, ctx: Any) -> None: ...


class Working(Plan, eligibility="working"):
    """What a plan with a call to somewhere looks like: it waits, and computes a little."""

    @task
    async def wait(self, ctx: Any) -> int:
        await asyncio.sleep(0.01)
        return sum(range(1000))


class Slow(Plan, eligibility="slow"):
    """A second for each message."""

    @task
    async def wait(self, ctx: Any) -> None:
        await asyncio.sleep(1.0)


class Blocking(Plan, eligibility="blocking"):
    """A plain function that blocks its thread and computes nothing."""

    @task
    def block(self, ctx: Any) -> int:
        time.sleep(0.01)
        return 1


class Together(Plan, eligibility="together"):
    """Embeddings by the content application's transformer, up to 32 messages a call."""

    async def start(self) -> None:
        self.model = SentenceModel()

    @task(batch=Batch(max_size=32, max_wait="5ms"))
    def embed(self, items: list[Any]) -> list[Any]:
        return list(self.model.encode([post(item) for item in items]))


class OneByOne(Plan, eligibility="one"):
    """Embeddings by the same model, a call per message."""

    async def start(self) -> None:
        self.model = SentenceModel()

    @task
    def embed(self, ctx: Any) -> Any:
        return self.model.encode([post(ctx)])[0]


def post(ctx: Any) -> str:
    return POSTS[int.from_bytes(ctx.value[:8], "big") % len(POSTS)]


def stream(name: str, sources: Sequence[Source], **options: Any) -> Stream:
    plans = [Nothing, Working, Slow, Blocking, Together, OneByOne]
    wanted = {each for source in sources for each in source.eligibilities} | set(options.pop("more", ()))
    return Stream(
        name,
        plans=[plan for plan in plans if plan.eligibility in wanted],
        sources=sources,
        **{"engines": 1, "max_concurrency": 512, **options},
    )


def from_environment() -> None:
    """What an engine finds when it imports this module: the stream that its parent describes."""
    told = os.environ.get("BENCH_STREAM")
    if told:
        options = json.loads(told)
        kinds = {"memory": MemorySource, "log": LogSource, "kafka": KafkaSource}
        sources = []
        for given in options.pop("sources"):
            given["eligibilities"] = frozenset(given["eligibilities"])
            sources.append(kinds[given.pop("type")](**given, decoder=bytes))
        stream(options.pop("name"), sources, **options)


from_environment()
