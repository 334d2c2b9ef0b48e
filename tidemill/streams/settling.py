"""Settling: whatever must be stored before a message may be acked, many messages to a transaction.

Kept for another attempt, given up, handing something over: all of it commits together with the position of its source
where that is ours. While the database is away or full, messages wait here and count as under way, so that nothing
more is taken than can be settled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import structlog

from tidemill.store import streams as store
from tidemill.store.database import Database, Executor, is_away, is_full
from tidemill.streams.engine import describe
from tidemill.streams.handing import store_handed
from tidemill.streams.message import Delivery, HandOver
from tidemill.streams.policy import Bury, Outcome
from tidemill.streams.sources.base import FencedError, Source, Tap

log = structlog.get_logger("tidemill.streams")

TOGETHER = 500
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0


class Settlement(msgspec.Struct):
    """One message to settle: what becomes of it, or nothing but what it hands over."""

    outcome: Outcome
    handed: tuple[HandOver, ...] = ()

    @property
    def delivery(self) -> Delivery:
        return self.outcome.delivery


class Settler:
    """Stores outcomes; tells `on_settled` of each that is safe, and `on_fenced` of each that was not ours any more."""

    def __init__(
        self,
        database: Database,
        stream: str,
        sources: Sequence[Source],
        taps: Sequence[Tap],
        *,
        on_settled: Callable[[list[Settlement]], None],
        on_fenced: Callable[[list[Settlement]], None],
    ) -> None:
        self._database = database
        self._stream = stream
        self._sources = sources
        self._taps = taps
        self._on_settled = on_settled
        self._on_fenced = on_fenced
        self._waiting: list[Settlement] = []
        self._news = asyncio.Event()

    def put(self, settlement: Settlement) -> None:
        self._waiting.append(settlement)
        self._news.set()

    async def run(self) -> None:
        """Settle until cancelled."""
        while True:
            await self._news.wait()
            batch, self._waiting = self._waiting[:TOGETHER], self._waiting[TOGETHER:]
            if not self._waiting:
                self._news.clear()
            await self._settle(batch)

    async def _settle(self, batch: list[Settlement]) -> None:
        try:
            await self._patiently(batch)
        except FencedError as error:
            if len(batch) > 1:
                await self._one_by_one(batch)
                return
            log.warning("a message was not ours any more", why=str(error))
            self._on_fenced(batch)
            return
        except Exception as error:
            if len(batch) > 1:
                await self._one_by_one(batch)
                return
            if not batch[0].handed:
                raise
            await self._give_up(batch[0], error)
            return
        self._on_settled(batch)

    async def _one_by_one(self, batch: list[Settlement]) -> None:
        """One of them is at fault and nothing was stored: each for itself."""
        for each in batch:
            await self._settle([each])

    async def _give_up(self, settlement: Settlement, error: Exception) -> None:
        """What it hands over cannot be stored, and trying again will not help."""
        delivery = settlement.delivery
        words = f"what it hands over cannot be stored: {describe(error)}"
        bury = Bury("failed", delivery.attempt, delivery.plans, type(error).__name__, words)
        settlement.outcome, settlement.handed = Outcome(delivery, bury=bury), ()
        await self._settle([settlement])

    async def _patiently(self, batch: list[Settlement]) -> None:
        pause, told = _FIRST_PAUSE, False
        while True:
            try:
                async with self._database.transaction() as connection:
                    await self._store(connection, batch)
                return
            except Exception as error:
                if not (is_away(error) or is_full(error)):
                    raise
                if not told:
                    log.warning("outcomes cannot be stored now: messages wait", error=str(error), messages=len(batch))
                    told = True
            await asyncio.sleep(pause)
            pause = min(_LONGEST_PAUSE, pause * 2)

    async def _store(self, connection: Executor, batch: list[Settlement]) -> None:
        rows = [each.delivery.retry_row for each in batch if each.delivery.retry_row is not None]
        if rows and len(await store.drop_parked(self._database, connection, rows)) < len(set(rows)):
            raise FencedError("its attempt was finished by another dispatcher")
        if parks := [_park_row(self._sources, each.outcome) for each in batch if each.outcome.park is not None]:
            await store.park(self._database, connection, self._stream, list(zip(*parks, strict=True)))
        if buries := [_bury_row(self._sources, each.outcome) for each in batch if each.outcome.bury is not None]:
            await store.bury(self._database, connection, self._stream, list(zip(*buries, strict=True)))
        for exact in (True, False):
            handed = [one for each in batch if self._is_exact(each.delivery) is exact for one in each.handed]
            if handed:
                await store_handed(self._database, connection, handed, exact=exact)
        for index, tap in enumerate(self._taps):
            if tap.transactional:
                mine = [each.delivery for each in batch if each.delivery.source == index]
                mine = [delivery for delivery in mine if delivery.retry_row is None]
                if mine:
                    await tap.settle(connection, mine)

    def _is_exact(self, delivery: Delivery) -> bool:
        """Whether its position is stored in the same transaction."""
        return delivery.retry_row is not None or self._taps[delivery.source].transactional


def _park_row(sources: Sequence[Source], outcome: Outcome) -> tuple[Any, ...]:
    delivery, park = outcome.delivery, outcome.park
    if park is None:
        raise ValueError("nothing is to be kept")
    return (
        sources[delivery.source].name,
        delivery.place,
        park.delay,
        park.attempts,
        park.losses,
        delivery.at,
        delivery.deadline,
        delivery.id,
        delivery.key,
        headers_json(delivery),
        None if park.plans is None else ",".join(park.plans),
        _storable(park.error),
        delivery.payload,
    )


def _bury_row(sources: Sequence[Source], outcome: Outcome) -> tuple[Any, ...]:
    delivery, bury = outcome.delivery, outcome.bury
    if bury is None:
        raise ValueError("nothing is to be given up")
    return (
        sources[delivery.source].name,
        delivery.place,
        bury.why,
        bury.attempts,
        delivery.at,
        delivery.id,
        delivery.key,
        headers_json(delivery),
        None if bury.plans is None else ",".join(bury.plans),
        bury.kind,
        _storable(bury.error),
        delivery.payload,
    )


def headers_json(delivery: Delivery) -> str | None:
    """Headers as JSON text; bytes that are no text are kept as well as they can be."""
    if not delivery.headers:
        return None
    readable = {name: value.decode(errors="replace").replace("\0", "\ufffd") for name, value in delivery.headers}
    return msgspec.json.encode(readable).decode()


def _storable(words: str) -> str:
    """PostgreSQL's text takes no NUL."""
    return words.replace("\0", "\ufffd")
