"""The lease of a source that one process at a time reads: the others wait until it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from tidemill.engine.containment.cancellation import end
from tidemill.sources.base import Backoff, SourceContext
from tidemill.store.database_errors import is_transient
from tidemill.store.streams.streams import StoredCursor, cursor_topic, lease_cursor, release_cursor, renew_cursor

log = structlog.get_logger("tidemill.sources")

SAFETY_POLL = (0.1, 1.0)


class ReaderLease:
    """Whether this process reads a partition, and what happens when another one does."""

    def __init__(
        self,
        source: str,
        part: str,
        context: SourceContext,
        seconds: float,
        on_lost: Callable[[object], Awaitable[None]],
    ) -> None:
        """`on_lost` is called with what `held` was, when another process reads now."""
        self.held: object | None = None
        """What marks the deliveries of this time as the reader; None while another process reads."""
        self._source, self._part, self._context, self._seconds = source, part, context, seconds
        self._on_lost = on_lost
        self._backoff = Backoff(*SAFETY_POLL)
        self._renewing: asyncio.Task[None] | None = None
        context.on_notify(cursor_topic(context.name, source), self._backoff.wake)

    def start(self) -> None:
        """Renew the lease from now on, while it is held."""
        self._renewing = asyncio.create_task(self._renew())

    async def take(self) -> StoredCursor | None:
        """The stored position, if no other process reads; `begin` makes this process the reader."""
        context = self._context
        return await lease_cursor(
            context.database, context.name, self._source, self._part, context.owner, self._seconds
        )

    def begin(self) -> None:
        self.held = object()

    async def wait(self) -> None:
        """Wait until the lease of the other process may have ended."""
        await self._backoff.wait()

    async def release(self) -> None:
        """End the lease: the next process takes over at once."""
        self.held = None
        context = self._context
        await release_cursor(context.database, context.name, self._source, self._part, context.owner)

    async def stop(self) -> None:
        """Stop renewing; the lease stays until it is released."""
        if self._renewing is not None:
            await end([self._renewing])

    async def _renew(self) -> None:
        context = self._context
        while True:
            await asyncio.sleep(self._seconds / 4)
            if (held := self.held) is None:
                continue
            try:
                is_ours = await renew_cursor(
                    context.database, context.name, self._source, self._part, context.owner, self._seconds
                )
            except Exception as error:
                if not is_transient(error):
                    raise
                continue
            if not is_ours:
                log.warning("another dispatcher reads this source by now", source=self._source)
                self.held = None
                await self._on_lost(held)
