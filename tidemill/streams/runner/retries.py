"""Claims messages from the database when they are due for another attempt.

A row belongs to the dispatcher that claimed it while that dispatcher renews its claim; it is deleted after the attempt.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import structlog

from tidemill.core.codec import decode
from tidemill.engine.event_wait import wait_for_event
from tidemill.sources.base import headers_of
from tidemill.sources.delivery import Delivery
from tidemill.store.database import Database
from tidemill.store.database_errors import is_transient
from tidemill.store.streams import streams as store
from tidemill.streams.runner.prefetch import Prefetch
from tidemill.streams.runner.store_later import store_finished

if TYPE_CHECKING:
    from tidemill.streams.runner.dispatcher import Dispatcher

log = structlog.get_logger("tidemill.streams")

TOGETHER = 200
MOST_BYTES = 16 * 2**20  # claimed at once, including the message that exceeds it
LEASE = 30.0
LONGEST_PAUSE = 5.0
GONE = -1  # the row of a delivery whose outcome is stored


class RetryFeeder:
    """Feeds the dispatcher with messages that are due for another attempt."""

    def __init__(self, database: Database, dispatcher: Dispatcher) -> None:
        self._database = database
        self._dispatcher = dispatcher
        self._wakeup = asyncio.Event()
        stream = dispatcher.stream
        self._sources = {source.name: index for index, source in enumerate(stream.sources)}
        share = stream.prefetch // (len(stream.sources) + 1) // max(1, len(stream.sources))
        self._ahead = [Prefetch(TOGETHER, share) for _ in stream.sources]
        self._finished: list[int] = []
        self._held: set[int] = set()
        self._full: list[int] = []
        self._checked_sources = False
        self._reported: set[str] = set()

    def wake(self) -> None:
        """Claim now: something may be due, or will be soon."""
        self._wakeup.set()

    def check_all(self) -> None:
        """An operator may have replayed messages, also of sources that the stream no longer has."""
        self._checked_sources = False
        self._wakeup.set()

    def claim_if_low(self) -> None:
        """Claim more if there is room."""
        reducer = self._dispatcher.reducer
        for index in self._full:
            if self._ahead[index].is_low(reducer.waiting_again(index), reducer.waiting_again_size(index)):
                self._wakeup.set()

    def committed(self, delivery: Delivery) -> None:
        """Its row was deleted together with the outcome."""
        if delivery.retry_row is not None:
            self._held.discard(delivery.retry_row)
            delivery.retry_row = GONE

    def ack(self, delivery: Delivery) -> None:
        row = delivery.retry_row
        if row is not None and row != GONE:
            self._finished.append(row)

    async def flush(self) -> None:
        """Delete the rows of finished attempts."""
        deleted = await store_finished(
            self._database,
            self._finished,
            lambda connection, rows: store.drop_retries(self._database, connection, rows),
        )
        self._held.difference_update(deleted)

    async def run(self) -> None:
        """Claim due messages until cancelled."""
        renewed = asyncio.get_running_loop().time()
        while True:
            self._wakeup.clear()
            wait = LONGEST_PAUSE
            try:
                if not self._checked_sources:
                    await self._report_stranded()
                wait = await self._claim()
                now = asyncio.get_running_loop().time()
                if self._held and now - renewed > LEASE / 3:
                    renewed = now
                    held = list(self._held)
                    await self._database.fetch(store.RENEW_RETRIES, self._dispatcher.id, LEASE, held, patience=None)
            except Exception as error:
                if not is_transient(error):
                    raise
            await wait_for_event(self._wakeup, wait)

    async def _claim(self) -> float:
        """Claim due messages that fit; returns how long to wait before the next claim."""
        reducer, stream = self._dispatcher.reducer, self._dispatcher.stream.name
        room = {
            name: self._ahead[index].room(reducer.waiting_again(index), reducer.waiting_again_size(index))
            for name, index in self._sources.items()
            if reducer.limits[index].enabled
        }
        self._full = [self._sources[name] for name, most in room.items() if not most]
        room = {name: most for name, most in room.items() if most}
        if not room or not reducer.accepting:
            return LONGEST_PAUSE
        rows = await store.claim_retries(
            self._database, stream, room, self._dispatcher.id, size=MOST_BYTES, lease=LEASE
        )
        deliveries = [_delivery(row, self._sources[row["source"]]) for row in rows]
        if deliveries:
            for index in {each.source for each in deliveries}:
                self._ahead[index].update_size([each for each in deliveries if each.source == index])
            self._held.update(each.retry_row for each in deliveries if each.retry_row is not None)
            await self._dispatcher.ids.load_stored(deliveries)
            reducer.due_again(deliveries, time.time())
            self._dispatcher.schedule_dispatch()
        taken = Counter(row["source"] for row in rows)
        if any(taken[name] == most for name, most in room.items()):
            return 0.0
        wait = await store.next_retry(self._database, stream, [*room])
        return LONGEST_PAUSE if wait is None else min(LONGEST_PAUSE, max(0.005, wait))

    async def _report_stranded(self) -> None:
        """Log once per missing source that messages of it are stored."""
        self._checked_sources = True
        stream = self._dispatcher.stream.name
        for source, messages in (await store.count_stranded(self._database, stream, [*self._sources])).items():
            if source not in self._reported:
                self._reported.add(source)
                log.error(
                    "messages of a source that the stream no longer has wait until it is declared again",
                    stream=stream, source=source, messages=messages,
                )  # fmt: skip

    async def give_back(self, deliveries: Sequence[Delivery]) -> None:
        """Release messages that this dispatcher will not try; the next claim may take them."""
        await self.flush()
        rows = [each.retry_row for each in deliveries if each.retry_row is not None]
        if rows:
            await self._database.fetch(store.RELEASE_RETRIES, rows)


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
        history=None if row["history"] is None else decode(row["history"]),
    )
