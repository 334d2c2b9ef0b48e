"""Messages that wait for another attempt: taken from the database when they are due, by whichever dispatcher is there.

A row belongs to the dispatcher that claimed it for as long as that renews its claim; it goes when the attempt is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import structlog

from tidemill.core.codec import decode
from tidemill.store import streams as store
from tidemill.store.database import Database, is_passing
from tidemill.streams.message import Delivery
from tidemill.streams.sources.base import headers_of

if TYPE_CHECKING:
    from tidemill.streams.dispatcher import Dispatcher

log = structlog.get_logger("tidemill.streams")

TOGETHER = 200
LEASE = 30.0
LONGEST_PAUSE = 5.0
GONE = -1  # the row of a delivery whose attempt is over and stored


class RetryFeeder:
    """The source of second attempts."""

    def __init__(self, database: Database, dispatcher: Dispatcher) -> None:
        self._database = database
        self._dispatcher = dispatcher
        self._news = asyncio.Event()
        self._over: list[int] = []
        self._held: set[int] = set()
        self._full = False

    def wake(self) -> None:
        """Look at once: something may be due, or will be soon."""
        self._news.set()

    def look(self) -> None:
        """There may be room for more."""
        if self._full and self._dispatcher.policy.waiting_again < TOGETHER // 2:
            self._news.set()

    def settled(self, delivery: Delivery) -> None:
        """Its row went together with what became of it."""
        if delivery.retry_row is not None:
            self._held.discard(delivery.retry_row)
            delivery.retry_row = GONE

    def ack(self, delivery: Delivery) -> None:
        row = delivery.retry_row
        if row is not None and row != GONE:
            self._over.append(row)

    async def flush(self) -> None:
        """Drop the rows of attempts that are over."""
        over, self._over = self._over, []
        if not over:
            return
        try:
            async with self._database.acquire() as connection:
                await store.drop_parked(self._database, connection, over)
            self._held.difference_update(over)
        except BaseException as error:
            self._over += over  # also when cancelled: they are dropped with the last words
            if not is_passing(error):
                raise

    async def run(self) -> None:
        """Claim what is due, until cancelled."""
        renewed = asyncio.get_running_loop().time()
        while True:
            self._news.clear()
            wait = LONGEST_PAUSE
            try:
                wait = await self._claim()
                now = asyncio.get_running_loop().time()
                if self._held and now - renewed > LEASE / 3:
                    renewed = now
                    held = list(self._held)
                    await self._database.fetch(store.RENEW_PARKED, self._dispatcher.id, LEASE, held, patience=None)
            except Exception as error:
                if not is_passing(error):
                    raise
            try:
                async with asyncio.timeout(wait):
                    await self._news.wait()
            except TimeoutError:
                continue

    async def _claim(self) -> float:
        """Claim what is due and fits; returns how long to wait before looking again."""
        policy = self._dispatcher.policy
        space = TOGETHER - policy.waiting_again
        self._full = space <= TOGETHER // 4
        if self._full or not policy.taking:
            return LONGEST_PAUSE
        names = {source.name: index for index, source in enumerate(policy.sources)}
        rows = await store.claim_parked(
            self._database, self._dispatcher.stream.name, self._dispatcher.id, most=space, lease=LEASE
        )
        deliveries = [_delivery(row, names[row["source"]]) for row in rows if row["source"] in names]
        for row in rows:
            if row["source"] not in names:
                log.error("a kept message is of a source that is gone", source=row["source"], row=row["id"])
        if deliveries:
            self._held.update(each.retry_row for each in deliveries if each.retry_row is not None)
            policy.due_again(deliveries)
            self._dispatcher.kick()
        if len(rows) == space:
            return 0.0
        wait = await store.next_parked(self._database, self._dispatcher.stream.name)
        return LONGEST_PAUSE if wait is None else min(LONGEST_PAUSE, max(0.005, wait))

    async def give_back(self, deliveries: Sequence[Delivery]) -> None:
        """These will not be tried here; whoever looks next may."""
        await self.flush()
        rows = [each.retry_row for each in deliveries if each.retry_row is not None]
        if rows:
            await self._database.fetch(store.RELEASE_PARKED, rows)


def _delivery(row: Any, source: int) -> Delivery:
    part, _, position = row["place"].partition(":")
    return Delivery(
        row["payload"],
        int(position),
        int(part),
        row["at"],
        row["key"],
        None if row["headers"] is None else headers_of(decode(row["headers"])),
        row["message_id"],
        row["deadline"],
        row["attempts"],
        row["losses"],
        None if row["plans"] is None else tuple(row["plans"]),
        retry_row=row["id"],
        source=source,
    )
