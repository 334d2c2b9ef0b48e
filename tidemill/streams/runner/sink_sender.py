"""Sends the outbox of a stream's sinks, each by itself: one that cannot be reached backs off alone.

One dispatcher at a time sends the items of a sink, in order within a key; it holds a lease, and another one continues
when the lease ends. An item is deleted when the receiver has it: after a crash in between it is sent again, with the
same id. While a receiver cannot be reached, items wait and no attempt is counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
import structlog

from tidemill.core.codec import decode, storable
from tidemill.core.errors import ConfigError
from tidemill.core.retry import GiveUp, decide
from tidemill.engine.containment.cancellation import end
from tidemill.engine.event_wait import wait_for_event
from tidemill.sinks import ItemRefused, Sender, Sink, SinkItem, Unreachable
from tidemill.sinks.base import SendResult
from tidemill.store.database import Database
from tidemill.store.database_errors import is_transient
from tidemill.store.streams.outbox import settle_items, take_items, waiting_keys
from tidemill.store.streams.streams import lease_cursor, release_cursor
from tidemill.streams.runner.source_health import ConnectionHealth

log = structlog.get_logger("tidemill.streams")

LEASE = 30.0
TOGETHER = 500
MOST_BYTES = 16 * 2**20
SAFETY_POLL = 5.0
PAUSE = (0.2, 5.0)
PART = "outbox"  # the partition of a sink in the table of leases


class SinkCounts(msgspec.Struct):
    """What became of items that this dispatcher has sent."""

    sent: int = 0
    retried: int = 0
    dead: int = 0


class SinkSender:
    """The sender of one sink."""

    def __init__(self, sink: Sink, stream: str, owner: UUID, database: Database) -> None:
        self.sink = sink
        self.enabled = sink.enabled
        self.health = ConnectionHealth()
        self.counts = SinkCounts()
        self.is_sending = False
        """Whether this dispatcher sends the items of this sink, or another one does."""
        self._stream, self._owner, self._database = stream, owner, database
        self._sender: Sender | None = None
        self._waiting: dict[str, float] = {}
        """Keys whose first item waits for another attempt, and until when."""
        self._wakeup = asyncio.Event()
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """End after the items that are being sent."""
        self._stopping.set()
        self._wakeup.set()

    def wake(self) -> None:
        """Look for items now: there are new ones, or the lease has ended."""
        self._wakeup.set()

    def set_enabled(self, enabled: bool) -> None:
        """Switch the sink on or off: items of one that is off wait."""
        if enabled != self.enabled:
            self.enabled = enabled
            self._wakeup.set()

    async def run(self) -> None:
        """Send items until stopped."""
        renewing: asyncio.Task[None] | None = None
        try:
            while not self._stopping.is_set():
                self._wakeup.clear()
                wait = SAFETY_POLL
                if self.enabled and (self.is_sending or await self._take_over()):
                    renewing = renewing or asyncio.create_task(self._renew())
                    wait = await self._send_all()
                await wait_for_event(self._wakeup, wait)
        finally:
            await end([renewing] if renewing is not None else [])
            await self._stop()

    async def _take_over(self) -> bool:
        if await self._lease() is None:
            return False
        now = time.monotonic()
        found = await waiting_keys(self._database, self._stream, self.sink.name)
        self._waiting = {key: now + wait for key, wait in found.items() if key is not None}
        self.is_sending = True
        return True

    async def _send_all(self) -> float:
        """Send what may be sent; returns how long to wait before the next look if nothing happens."""
        pause = PAUSE[0]
        while self.enabled and self.is_sending and not self._stopping.is_set():
            now = time.monotonic()
            self._waiting = {key: until for key, until in self._waiting.items() if until > now}
            rows = await take_items(
                self._database, self._stream, self.sink.name, [*self._waiting], most=TOGETHER, size=MOST_BYTES
            )
            if not rows:
                return min([SAFETY_POLL, *(until - now for until in self._waiting.values())])
            results = await self._send([_item(row) for row in rows])
            await self._settle(rows, results)
            if any(isinstance(each, Unreachable) for each in results):
                await wait_for_event(self._stopping, pause)
                pause = min(PAUSE[1], pause * 2)
            else:
                pause = PAUSE[0]
        return SAFETY_POLL

    async def _send(self, items: Sequence[SinkItem]) -> Sequence[SendResult]:
        """Send items; an error of the sender counts as a receiver that cannot be reached."""
        try:
            self._sender = self._sender or self.sink.sender()
            results: Sequence[SendResult] = await self._sender.send(items)
        except Exception as error:
            if isinstance(error, ConfigError):
                raise
            results = [Unreachable(str(error) or type(error).__name__)] * len(items)
            await self._close_sender()
        failed = next((each for each in results if isinstance(each, Unreachable)), None)
        if failed is None:
            self.health.succeeded()
            return results
        if not self.health.failures:
            log.warning("the sink cannot be reached: its items wait", sink=self.sink.name, error=failed.error)
        self.health.failed(OSError(failed.error))
        return results

    async def _settle(self, rows: Sequence[Any], results: Sequence[SendResult]) -> None:
        """Store what became of items."""
        sent: list[int] = []
        refused: list[tuple[int, int, float, str]] = []
        dead: list[tuple[int, int, str]] = []
        for row, result in zip(rows, results, strict=True):
            if result is None:
                sent.append(row["id"])
            elif isinstance(result, ItemRefused):
                attempts = row["attempts"] + 1
                verdict = decide(
                    self.sink.retry, failures=attempts, error="ItemRefused", retry_after=result.after, seed=row["id"]
                )
                error = storable(result.error)
                if result.is_final or isinstance(verdict, GiveUp):
                    dead.append((row["id"], attempts, error))
                    log.warning("a sink refuses an item: it becomes a dead letter", sink=self.sink.name, error=error)
                else:
                    refused.append((row["id"], attempts, verdict.delay, error))
                    if row["key"] is not None:
                        self._waiting[row["key"]] = time.monotonic() + verdict.delay
        await settle_items(self._database, sent, refused, dead)
        self.counts.sent += len(sent)
        self.counts.retried += len(refused)
        self.counts.dead += len(dead)
        if refused or dead:
            self.health.note((refused or dead)[-1][-1])

    async def _lease(self) -> object | None:
        return await lease_cursor(self._database, self._stream, self.sink.name, PART, self._owner, LEASE)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(LEASE / 4)
            if not self.is_sending:
                continue
            try:
                if await self._lease() is None:
                    log.warning("another dispatcher sends the items of this sink by now", sink=self.sink.name)
                    self.is_sending = False
            except Exception as error:
                if not is_transient(error):
                    raise

    async def _stop(self) -> None:
        await self._close_sender()
        if self.is_sending:
            self.is_sending = False
            with contextlib.suppress(Exception):  # The lease ends by itself.
                async with asyncio.timeout(5.0):
                    await release_cursor(self._database, self._stream, self.sink.name, PART, self._owner)

    async def _close_sender(self) -> None:
        if self._sender is not None:
            sender, self._sender = self._sender, None
            with contextlib.suppress(Exception):  # The sender is replaced in any case.
                await sender.close()


def _item(row: Any) -> SinkItem:
    return SinkItem(row["item"], row["payload"], row["key"], {} if row["headers"] is None else decode(row["headers"]))
