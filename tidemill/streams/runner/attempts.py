"""Attempts of messages that stay with their source, since others of their key wait behind them: noted in the database,
so that a restart neither forgets how often a message was tried nor when its next attempt is due."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.sources.delivery import Delivery
from tidemill.store.database import Database, is_passing
from tidemill.store.streams import streams as store


class Attempts:
    """The notes of one stream."""

    def __init__(self, database: Database, stream: str, sources: Sequence[str]) -> None:
        self._database = database
        self._stream = stream
        self._sources = sources
        self._over: list[tuple[str, str]] = []

    def place(self, delivery: Delivery) -> tuple[str, str]:
        return self._sources[delivery.source], delivery.place

    async def recall(self, index: int, deliveries: Sequence[Delivery]) -> None:
        """Tell fresh deliveries of a source what is noted of them; patiently, for they are in our hands only."""
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

    def over(self, delivery: Delivery) -> None:
        """It was acked: its note can go."""
        self._over.append(self.place(delivery))

    async def flush(self) -> None:
        """Drop the notes of messages that are through."""
        over, self._over = self._over, []
        if not over:
            return
        try:
            async with self._database.acquire() as connection:
                await store.forget_attempts(self._database, connection, self._stream, over)
        except BaseException as error:
            self._over += over  # also when cancelled: the last words forget them
            if not is_passing(error):
                raise

    async def forget_old(self) -> None:
        await self._database.fetch(store.FORGET_OLD_ATTEMPTS, self._stream)
