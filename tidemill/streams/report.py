"""What a dispatcher tells of itself, once a second: per source rate, lag and counts; per plan how many and how long."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from tidemill.core.codec import encode
from tidemill.core.errors import StoreError
from tidemill.store import streams as store
from tidemill.store.database import Database
from tidemill.streams.figures import percentile

if TYPE_CHECKING:
    from tidemill.streams.dispatcher import Dispatcher

log = structlog.get_logger("tidemill.streams")

EVERY = 1.0
LAG_EVERY = 5.0


class Reporter:
    """Writes the status of a dispatcher."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._database: Database = dispatcher._database
        self._done_before: list[int] | None = None
        self._at = time.monotonic()
        self._lags: list[int | None] = [None] * len(dispatcher.taps)
        self._lag_at = 0.0
        self._told = b""

    async def run(self) -> None:
        while True:
            await self._look_at_lags()
            status = encode(self.status())
            try:
                await store.tell_status(
                    self._database, self._dispatcher.id, self._dispatcher.stream.name, _HOST, os.getpid(), status
                )
            except StoreError:
                log.debug("the status could not be written")
            await asyncio.sleep(EVERY)

    def status(self) -> dict[str, Any]:
        """All of it, as plain data."""
        dispatcher = self._dispatcher
        policy, now = dispatcher.policy, time.monotonic()
        done = [counts.done for counts in policy.counts]
        before, seconds = self._done_before or done, max(1e-3, now - self._at)
        self._done_before, self._at = done, now
        sources = []
        for index, source in enumerate(dispatcher.stream.sources):
            weight, max_qps, enabled = policy.source_now(index)
            sources.append(
                {
                    "name": source.name,
                    "weight": weight,
                    "max_qps": max_qps,
                    "enabled": enabled,
                    "rate": round((done[index] - before[index]) / seconds, 1),
                    "lag": self._lags[index],
                    "waiting": policy.waiting(index),
                    "in_flight": policy.in_flight[index],
                    **msgspec.to_builtins(policy.counts[index]),
                }
            )
        return {
            "mode": "draining" if dispatcher.draining else dispatcher.mode,
            "in_flight": policy.busy,
            "max_in_flight": dispatcher.stream.max_in_flight,
            "engines": dispatcher.engines.ready,
            "restarts": dispatcher.engines.restarts,
            "live": {"open": dispatcher.asking.open, "done": dispatcher.asking.done, "shed": dispatcher.asking.shed},
            "sources": sources,
            "plans": {name: _plan(figures) for name, figures in dispatcher.engines.figures().items()},
        }

    async def _look_at_lags(self) -> None:
        if time.monotonic() < self._lag_at:
            return
        self._lag_at = time.monotonic() + LAG_EVERY
        for index, tap in enumerate(self._dispatcher.taps):
            try:
                async with asyncio.timeout(2.0):
                    self._lags[index] = await tap.lag()
            except Exception as error:  # noqa: BLE001 - a lag that cannot be had is no reason to stop
                self._lags[index] = None
                log.debug("the lag is not known", error=str(error))


def _plan(figures: dict[str, Any]) -> dict[str, Any]:
    buckets = figures.pop("buckets", [])
    return {**figures, "p50": percentile(buckets, 0.5), "p99": percentile(buckets, 0.99)}


_HOST = socket.gethostname()
