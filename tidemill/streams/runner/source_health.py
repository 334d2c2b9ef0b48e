"""Opens the sources of a stream, each by itself, and keeps whether each of them, and each sink, can be reached."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Literal

import msgspec
import structlog

from tidemill.core.errors import ConfigError
from tidemill.sources.base import Consumer, Source, SourceContext
from tidemill.sources.opening import open_consumer

log = structlog.get_logger("tidemill.streams")

PAUSE = (0.2, 5.0)
FIRST_CONNECT = 10.0  # seconds that a source has for its first connection before the stream is ready without it

State = Literal["connecting", "ok", "failing"]


class ConnectionHealth(msgspec.Struct, eq=False):
    """The state of one source or sink, and its last error."""

    state: State = "connecting"
    error: str | None = None
    """The last error, also after it has recovered."""
    error_at: float | None = None
    failures: int = 0
    """How many attempts have failed since the last success."""
    tried: asyncio.Event = msgspec.field(default_factory=asyncio.Event)

    def succeeded(self) -> None:
        self.state, self.failures = "ok", 0
        self.tried.set()

    def note(self, error: str) -> None:
        """Keep an error that does not concern the connection."""
        self.error, self.error_at = error, time.time()

    def failed(self, error: BaseException) -> None:
        self.state = "failing"
        self.note(str(error) or type(error).__name__)
        self.failures += 1
        self.tried.set()


async def wait_until_tried(health: Sequence[ConnectionHealth]) -> None:
    """Return when every source is open or has failed once; one that does not answer is not waited for for long."""
    waiting = [asyncio.create_task(each.tried.wait()) for each in health]
    if waiting:
        await asyncio.wait(waiting, timeout=FIRST_CONNECT)
    for task in waiting:
        task.cancel()


async def open_source(
    index: int, source: Source, consumers: list[Consumer], health: ConnectionHealth, context: SourceContext
) -> Consumer:
    """Open a source. One that cannot be reached is tried again by itself, and the others go on."""
    pause = PAUSE[0]
    while True:
        consumer = consumers[index]
        try:
            await consumer.start()
        except Exception as error:
            if isinstance(error, ConfigError):
                raise
            health.failed(error)
            log.warning("the source cannot be opened: retrying", source=source.name, error=health.error, after=pause)
            consumers[index] = open_consumer(source, context)
            await asyncio.sleep(pause)
            pause = min(PAUSE[1], pause * 2)
        else:
            health.succeeded()
            return consumer
