"""Divides the limits of sources among the dispatchers of a stream.

Each dispatcher leases a part of every limit and uses it without asking: the hot path knows only its part. It renews its
parts every second, and at once when it has messages and no part, or when another dispatcher needs some of it. While the
database cannot be reached, a dispatcher goes on with what it has.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import asyncpg
import msgspec
import structlog

from tidemill.engine.event_wait import wait_for_event
from tidemill.store.database import Database
from tidemill.store.database_errors import is_transient
from tidemill.store.streams.limits import DROP_LIMITS, LIVE_SOURCE, HeldLimit, hold_limits, locked_limits
from tidemill.streams.reducer.limit_shares import LimitAsk, fair_parts, granted, whole_parts
from tidemill.streams.reducer.source_limits import SourceLimits

if TYPE_CHECKING:
    from tidemill.streams.runner.dispatcher import Dispatcher

log = structlog.get_logger("tidemill.streams")

EVERY = 1.0
LEASE = 4.0
SOONEST = 0.1  # between two renewals
TURN = 5.0  # seconds that a slot which cannot be divided stays with a dispatcher
LIVE = -1  # in place of a source's index: live requests


class _Use(msgspec.Struct):
    """What a source of this dispatcher has used, as last seen."""

    sent: int = 0
    at: float = 0.0


class SharedLimits:
    """The parts of the limits of one dispatcher."""

    def __init__(self, database: Database, dispatcher: Dispatcher) -> None:
        self._database = database
        self._dispatcher = dispatcher
        self._wakeup = asyncio.Event()
        self._used: dict[int, _Use] = {}
        self._renewed_at = 0.0
        self.short: list[int] = []
        """Sources of which this dispatcher holds less than the whole limit."""

    def wake(self) -> None:
        """Divide the limits now."""
        self._wakeup.set()

    def hold_undivided(self, now: float) -> None:
        """Let nothing pass a limit of which this dispatcher has no part yet: others may hold all of it."""
        for index in range(len(self._dispatcher.stream.sources)):
            self._dispatcher.reducer.await_part(index, now)
        self._dispatcher.live_requests.await_part(now)

    def ask_if_short(self, now: float) -> None:
        """Ask for a larger part if messages wait for it."""
        if now - self._renewed_at > SOONEST and any(self._has_none(index) for index in self.short):
            self._wakeup.set()

    async def run(self) -> None:
        """Renew the parts until cancelled."""
        while True:
            await wait_for_event(self._wakeup, EVERY)
            self._wakeup.clear()
            await self.renew()
            await asyncio.sleep(SOONEST)

    async def renew(self) -> None:
        """Renew the parts of all limits that there are now."""
        limited = [index for index in self._indexes() if self._is_limited(index)]
        if not limited and not self.short:
            return
        dispatcher, me = self._dispatcher, str(self._dispatcher.id)
        stream, now = dispatcher.stream.name, time.monotonic()
        try:
            async with locked_limits(self._database, stream, dispatcher.id) as (connection, others):
                held: list[HeldLimit] = []
                notify = False
                for index in limited:
                    name = self._name(index)
                    theirs = [row for row in others if row["source"] == name]
                    mine, is_short = self._divide(index, me, theirs, now)
                    held.append(mine)
                    notify |= bool(theirs) and (is_short or self._has_shrunk(index, mine))
                if held:
                    await hold_limits(
                        self._database, connection, stream, dispatcher.id, held, lease=LEASE, notify=notify
                    )
        except Exception as error:
            if not is_transient(error):
                raise
            log.debug("the parts of limits could not be renewed", stream=stream, error=str(error))
            return
        self._renewed_at = time.monotonic()
        self.short = []
        for index, mine in zip(limited, held, strict=True):
            limits = self._limits(index)
            if mine.rate < (limits.max_qps or 0.0) or mine.slots < (limits.max_concurrency or 0):
                self.short.append(index)
            rate = None if limits.max_qps is None else mine.rate
            slots = None if limits.max_concurrency is None else mine.slots
            if (rate, slots) != (limits.qps_part, limits.concurrency_part):
                self._apply(index, rate, slots)
        dispatcher.schedule_dispatch()

    async def give_back(self) -> None:
        await self._database.fetch(DROP_LIMITS, self._dispatcher.id, patience=1.0)

    # -- one limit --------------------------------------------------------------------------------

    def _divide(self, index: int, me: str, others: list[asyncpg.Record], now: float) -> tuple[HeldLimit, bool]:
        """What this dispatcher wants and gets of a source's limits, and whether others must shrink first."""
        limits = self._limits(index)
        rate, slots = limits.max_qps or 0.0, limits.max_concurrency or 0
        wanted_rate, wanted_slots = self._wanted(index, rate, slots, now)
        rates = [LimitAsk(row["dispatcher"], row["wanted_rate"], row["rate"]) for row in others]
        part = fair_parts(rate, [LimitAsk(me, wanted_rate), *rates])[me]
        got = granted(rate, part if others else rate, rates, me)
        asked = [LimitAsk(row["dispatcher"], row["wanted_slots"], row["slots"]) for row in others]
        whole = whole_parts(slots, [LimitAsk(me, wanted_slots), *asked], int(time.time() / TURN))[me]
        places = int(granted(slots, whole if others else slots, asked, me))
        is_short = got < part - 1e-6 or places < whole
        # Slots that are in use are held until their messages have ended.
        in_use = self._in_flight(index) if slots else 0
        return HeldLimit(self._name(index), wanted_rate, got, wanted_slots, max(places, min(in_use, slots))), is_short

    def _wanted(self, index: int, rate: float, slots: int, now: float) -> tuple[float, int]:
        """All of a limit while messages wait for it, else a little more than what was used."""
        backlog, sent = self._backlog(index), self._sent(index)
        before = self._used.get(index) or _Use(sent, now)
        self._used[index] = _Use(sent, now)
        recent = (sent - before.sent) / max(SOONEST, now - before.at)
        return rate if backlog else min(rate, 1.5 * recent), min(slots, self._in_flight(index) + backlog)

    def _has_shrunk(self, index: int, mine: HeldLimit) -> bool:
        limits = self._limits(index)
        before_rate = limits.max_qps if limits.qps_part is None else limits.qps_part
        before_slots = limits.max_concurrency if limits.concurrency_part is None else limits.concurrency_part
        return mine.rate < (before_rate or 0.0) - 1e-6 or mine.slots < (before_slots or 0)

    def _has_none(self, index: int) -> bool:
        limits = self._limits(index)
        return bool(self._backlog(index)) and (limits.qps_part == 0.0 or limits.concurrency_part == 0)

    # -- sources and live requests alike ----------------------------------------------------------

    def _indexes(self) -> list[int]:
        return [*range(len(self._dispatcher.stream.sources)), LIVE]

    def _limits(self, index: int) -> SourceLimits:
        return self._dispatcher.live_requests.limits if index == LIVE else self._dispatcher.reducer.limits[index]

    def _is_limited(self, index: int) -> bool:
        limits = self._limits(index)
        return limits.max_qps is not None or limits.max_concurrency is not None

    def _name(self, index: int) -> str:
        return LIVE_SOURCE if index == LIVE else self._dispatcher.stream.sources[index].name

    def _backlog(self, index: int) -> int:
        live = self._dispatcher.live_requests
        return live.take_throttled() if index == LIVE else self._dispatcher.reducer.backlog(index)

    def _sent(self, index: int) -> int:
        return self._dispatcher.live_requests.done if index == LIVE else self._dispatcher.reducer.counts[index].sent

    def _in_flight(self, index: int) -> int:
        return self._dispatcher.live_requests.open if index == LIVE else self._dispatcher.reducer.in_flight[index]

    def _apply(self, index: int, rate: float | None, slots: int | None) -> None:
        now = time.monotonic()
        if index == LIVE:
            self._dispatcher.live_requests.set_part(rate, now)
        else:
            self._dispatcher.reducer.set_part(index, now, rate=rate, slots=slots)
