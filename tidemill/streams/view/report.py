"""Reports the status of a dispatcher once a second: rate, lag and counts per source, counts and durations per plan.

The status is a row that the CLI, the API and the console read; the counts are added to the totals of `/metrics`.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from tidemill.core.codec import encode
from tidemill.engine.telemetry.meter import Meter
from tidemill.engine.telemetry.stream_metrics import PLAN_BOUNDS, PLAN_POWERS
from tidemill.store.database import Database
from tidemill.store.database_errors import is_transient
from tidemill.store.streams import streams as store
from tidemill.store.streams.outbox import count_items
from tidemill.store.telemetry.history import BEYOND
from tidemill.store.telemetry.hosts import Key
from tidemill.streams.engine.plan_statistics import add, percentile
from tidemill.streams.reducer.source_limits import SourceCounts

if TYPE_CHECKING:
    from tidemill.streams.runner.dispatcher import Dispatcher
    from tidemill.streams.runner.sink_sender import SinkSender

log = structlog.get_logger("tidemill.streams")

EVERY = 1.0
QUIET_EVERY = 5.0  # while nothing happens; others take a dispatcher for dead after 15 s
LAG_EVERY = 5.0
MANY_ITEMS = 10_000
_OUTCOMES = tuple(field.removesuffix("s") for field in SourceCounts.__struct_fields__)


class StreamReporter:
    """Writes the status of a dispatcher and adds up its counts."""

    def __init__(self, dispatcher: Dispatcher, database: Database, meter: Meter) -> None:
        self._dispatcher = dispatcher
        self._database = database
        self._meter = meter
        self._done_before: list[int] | None = None
        self._at = time.monotonic()
        self._lags: list[int | None] = [None] * len(dispatcher.consumers)
        self._lag_at = 0.0
        self._counted: dict[Key, float] = {}
        self._outbox: dict[str, tuple[int, float | None]] = {}
        self._outbox_at = 0.0

    async def run(self) -> None:
        reported, reported_at = b"", 0.0
        while True:
            await self._read_lags()
            await self._count_outbox()
            self._dispatcher.ids.warn_of_forgotten()
            self.count()
            status = self.status()
            if (encoded := encode(status)) == reported and time.monotonic() - reported_at < QUIET_EVERY:
                await asyncio.sleep(EVERY)
                continue
            reported, reported_at = encoded, time.monotonic()
            try:
                await store.report_status(
                    self._database, self._dispatcher.id, self._dispatcher.stream.name, _HOST, os.getpid(), status
                )
            except Exception as error:
                if not is_transient(error):
                    raise
                log.debug("the status could not be written", error=str(error))
            await asyncio.sleep(EVERY)

    def status(self) -> dict[str, Any]:
        """The whole status as plain data."""
        dispatcher = self._dispatcher
        reducer, now = dispatcher.reducer, time.monotonic()
        done = [counts.done for counts in reducer.counts]
        before, seconds = self._done_before or done, max(1e-3, now - self._at)
        self._done_before, self._at = done, now
        sources = []
        for index, source in enumerate(dispatcher.stream.sources):
            limits = reducer.limits[index]
            sources.append(
                {
                    "name": source.name,
                    **msgspec.to_builtins(limits),
                    "rate": round((done[index] - before[index]) / seconds, 1),
                    "lag": self._lags[index],
                    "waiting": reducer.waiting(index) + reducer.waiting_again(index),
                    "waiting_for_key": reducer.waiting_for_key(index),
                    **_known_ids(dispatcher, index),
                    **_health(dispatcher, index),
                    "in_flight": reducer.in_flight[index],
                    **msgspec.to_builtins(reducer.counts[index]),
                }
            )
        return {
            "mode": "draining" if dispatcher.draining else dispatcher.control.mode,
            "in_flight": reducer.busy,
            "max_concurrency": dispatcher.stream.max_concurrency,
            "engines": dispatcher.engines.ready,
            "restarts": dispatcher.engines.restarts,
            "live": {
                "open": dispatcher.live_requests.open,
                "done": dispatcher.live_requests.done,
                "shed": dispatcher.live_requests.shed,
            },
            "sources": sources,
            "garbage": msgspec.structs.asdict(dispatcher.engines.garbage()),
            "sinks": [self._sink(sender) for sender in dispatcher.sinks],
            "plans": {name: _plan(by_source) for name, by_source in dispatcher.engines.statistics().items()},
        }

    def _sink(self, sender: SinkSender) -> dict[str, Any]:
        health = sender.health
        state = health.state if sender.is_sending or health.failures else "standby"
        waiting, oldest = self._outbox.get(sender.sink.name, (0, None))
        return {
            "name": sender.sink.name,
            "enabled": sender.enabled,
            "health": state,
            "up": state != "failing",
            "error": health.error,
            "error_at": health.error_at,
            "waiting": waiting,
            "oldest": oldest,
            **msgspec.to_builtins(sender.counts),
        }

    def count(self) -> None:
        """Add the counts since the last call to the totals."""
        for key, value in self._totals():
            new = value - self._counted.get(key, 0.0)
            if new:
                self._counted[key] = value
                self._meter.count(key[0], *key[1], by=new)

    def _totals(self) -> Iterator[tuple[Key, float]]:
        """All counts since the dispatcher started."""
        dispatcher = self._dispatcher
        stream = dispatcher.stream.name
        for index, (source, counts) in enumerate(
            zip(dispatcher.stream.sources, dispatcher.reducer.counts, strict=True)
        ):
            yield ("stream_forgotten_ids", (stream, source.name)), dispatcher.reducer.ids.known(index)[1]
            for outcome, count in zip(_OUTCOMES, msgspec.structs.astuple(counts), strict=True):
                yield ("stream_messages", (stream, source.name, outcome)), count
        for plan, by_source in dispatcher.engines.statistics().items():
            for source, statistics in by_source.items():
                for outcome in ("done", "filtered", "failed"):
                    yield ("stream_plan_runs", (stream, plan, source, outcome)), statistics[outcome]
                yield ("stream_plan_sum", (stream, plan, source)), statistics["seconds"]
                for bound, count in _by_bound(statistics["buckets"]).items():
                    yield ("stream_plan", (stream, plan, source, bound)), count
        for sender in dispatcher.sinks:
            for outcome, count in msgspec.structs.asdict(sender.counts).items():
                yield ("stream_sink", (stream, sender.sink.name, outcome)), count
        yield ("stream_live", (stream, "done")), dispatcher.live_requests.done
        yield ("stream_live", (stream, "shed")), dispatcher.live_requests.shed
        garbage = dispatcher.engines.garbage()
        yield ("stream_gc", (stream,)), garbage.count
        yield ("stream_gc_seconds", (stream,)), garbage.seconds
        yield ("stream_restarts", (stream,)), dispatcher.engines.restarts

    async def _count_outbox(self) -> None:
        """Count what waits for sinks: every time, or less often while there is much."""
        if not self._dispatcher.sinks or time.monotonic() < self._outbox_at:
            return
        try:
            self._outbox = {**await count_items(self._database, self._dispatcher.stream.name)}
        except Exception as error:
            if not is_transient(error):
                raise
        many = sum(waiting for waiting, _ in self._outbox.values()) > MANY_ITEMS
        self._outbox_at = time.monotonic() + (LAG_EVERY if many else 0.0)

    async def _read_lags(self) -> None:
        if time.monotonic() < self._lag_at:
            return
        self._lag_at = time.monotonic() + LAG_EVERY
        for index, consumer in enumerate(self._dispatcher.consumers):
            if self._dispatcher.health[index].state == "connecting":
                continue
            try:
                async with asyncio.timeout(2.0):
                    self._lags[index] = await consumer.lag()
            except Exception as error:  # noqa: BLE001 - an unknown lag is no reason to stop
                self._lags[index] = None
                log.debug("the lag is not known", error=str(error))


def _health(dispatcher: Dispatcher, index: int) -> dict[str, Any]:
    """Whether the source can be read, and its last error."""
    health = dispatcher.health[index]
    problem = getattr(dispatcher.consumers[index], "problem", None)
    state = "failing" if problem is not None and health.state == "ok" else health.state
    return {"health": state, "up": state == "ok", "error": problem or health.error, "error_at": health.error_at}


def _known_ids(dispatcher: Dispatcher, index: int) -> dict[str, int | None]:
    """How many message ids of a source are remembered here, if it has ids."""
    if dispatcher.stream.sources[index].message_id is None:
        return {"known_ids": None, "forgotten_ids": None}
    known, forgotten = dispatcher.reducer.ids.known(index)
    return {"known_ids": known, "forgotten_ids": forgotten}


def _plan(by_source: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The statistics of a plan over all sources, and by source."""
    total: dict[str, Any] = {}
    for statistics in by_source.values():
        add(total, statistics)
    return {**_readable(total), "sources": {source: _readable(statistics) for source, statistics in by_source.items()}}


def _readable(statistics: dict[str, Any]) -> dict[str, Any]:
    buckets = statistics["buckets"]
    plain = {name: value for name, value in statistics.items() if name != "buckets"}
    return {**plain, "p50": percentile(buckets, 0.5), "p99": percentile(buckets, 0.99)}


def _by_bound(buckets: list[int]) -> dict[str, int]:
    """Counts of the doubling buckets, added up by the wider bounds that are shown."""
    found: dict[str, int] = {}
    for power, count in enumerate(buckets):
        at = next((bound for limit, bound in zip(PLAN_POWERS, PLAN_BOUNDS, strict=True) if power <= limit), BEYOND)
        if count:
            found[at] = found.get(at, 0) + count
    return found


_HOST = socket.gethostname()
