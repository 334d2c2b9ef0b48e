"""Stores the attempts of messages that stay with their ordered source, because messages of their key wait behind them.

After a restart the dispatcher still knows how often such a message was tried and when its next attempt is due.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.core.codec import decode
from tidemill.sources.delivery import Delivery
from tidemill.store.database import Database
from tidemill.store.streams import streams as store
from tidemill.streams.runner.store_later import store_finished


class OrderedAttempts:
    """The stored attempts of one stream."""

    def __init__(self, database: Database, stream: str, sources: Sequence[str]) -> None:
        self._database = database
        self._stream = stream
        self._sources = sources
        self._finished: list[tuple[str, str]] = []

    def place(self, delivery: Delivery) -> tuple[str, str]:
        return self._sources[delivery.source], delivery.place

    async def load(self, index: int, deliveries: Sequence[Delivery]) -> None:
        """Give new deliveries of a source their stored attempts; waits for the database if need be."""
        rows = await self._database.fetch(store.RECALL_ATTEMPTS, self._stream, self._sources[index], patience=None)
        if not rows:
            return
        noted = {row["place"]: row for row in rows}
        for delivery in deliveries:
            row = noted.get(delivery.place)
            if row is not None:
                delivery.attempt, delivery.losses = row["attempts"], row["losses"]
                delivery.plans = None if row["plans"] is None else tuple(row["plans"])
                delivery.noted, delivery.not_before = True, row["due"]
                delivery.history = None if row["history"] is None else decode(row["history"])

    def finished(self, delivery: Delivery) -> None:
        """It is acknowledged: its stored attempts can be deleted."""
        self._finished.append(self.place(delivery))

    async def flush(self) -> None:
        """Delete the attempts of finished messages."""
        await store_finished(
            self._database,
            self._finished,
            lambda connection, rows: store.forget_attempts(self._database, connection, self._stream, rows),
        )

    async def forget_old(self) -> None:
        await self._database.fetch(store.FORGET_OLD_ATTEMPTS, self._stream)
