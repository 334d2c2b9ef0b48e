"""Applies the settings of operators to a running stream, at once when they are changed."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import structlog

from tidemill.engine.event_wait import wait_for_event
from tidemill.engine.roles.operator_control import OperatorControl
from tidemill.store.database import Database
from tidemill.store.streams import streams as store
from tidemill.store.streams.limits import LIVE_SOURCE
from tidemill.streams.definition.stream import Stream

if TYPE_CHECKING:
    from tidemill.streams.runner.dispatcher import Dispatcher

log = structlog.get_logger("tidemill.streams")

EVERY = 5.0


class StreamController:
    """Applies weights and limits, switches sources and sinks on and off, drains and resumes."""

    def __init__(self, database: Database, dispatcher: Dispatcher) -> None:
        self.mode = "run"
        """The mode of the stream on all hosts."""
        self._host_control = OperatorControl(database, lambda: [stream_part(dispatcher.stream)], lambda: None)
        self._database = database
        self._dispatcher = dispatcher
        self._wakeup = asyncio.Event()

    def wake(self, _payload: str = "") -> None:
        self._wakeup.set()

    def status(self) -> str:
        """The status of this process, as operators see it: running, or their request and its progress."""
        dispatcher = self._dispatcher
        is_busy = bool(dispatcher.reducer.busy)
        status = self._host_control.status(is_stopping=dispatcher.stopping, is_busy=is_busy)
        if status == "running" and self.mode != "run":
            return "draining" if is_busy else "paused"
        return status

    async def run(self) -> None:
        """Apply changes until cancelled."""
        while True:
            await wait_for_event(self._wakeup, EVERY)
            self._wakeup.clear()
            await self.apply()

    async def apply(self) -> None:
        """Read the settings and apply them."""
        dispatcher, now = self._dispatcher, time.monotonic()
        stream, reducer = dispatcher.stream, dispatcher.reducer
        rows = await self._database.fetch(store.READ_CONTROL, stream.name, patience=None)
        wanted = {row["source"]: row for row in rows}
        for index, source in enumerate(stream.sources):
            said = {name: value for name, value in dict(wanted.get(source.name) or {}).items() if value is not None}
            reducer.set_source(
                index,
                now,
                weight=said.get("weight", source.weight),
                max_qps=said.get("max_qps", source.max_qps),
                burst=said.get("burst", source.burst),
                enabled=said.get("enabled", source.enabled),
            )
        for sender in dispatcher.sinks:
            row = wanted.get(sender.sink.name)
            sender.set_enabled(sender.sink.enabled if row is None or row["enabled"] is None else row["enabled"])
        live = {name: value for name, value in dict(wanted.get(LIVE_SOURCE) or {}).items() if value is not None}
        dispatcher.live_requests.set_limits(
            now,
            max_qps=live.get("max_qps", stream.live_qps),
            burst=live.get("burst"),
            enabled=live.get("enabled", True),
        )
        dispatcher.limits.hold_undivided(now)
        dispatcher.limits.wake()
        mode = (wanted.get("") or {"mode": None})["mode"] or "run"
        if mode != self.mode:
            log.info("an operator changed the mode", stream=stream.name, mode=mode)
        self.mode = mode
        await self._host_control.read()
        may_run = mode == "run" and self._host_control.is_running(stream_part(stream))
        reducer.accepting = may_run and not dispatcher.draining
        dispatcher.schedule_dispatch()


def stream_part(stream: Stream) -> str:
    """A stream's name among the queues of workers."""
    return f"stream:{stream.name}"
