"""What operators have asked of a role that claims no jobs: pause, drain or stop, for all of it or for one part."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence

import structlog

from tidemill.engine.event_wait import wait_for_event
from tidemill.store.database import Database
from tidemill.store.database_errors import is_transient
from tidemill.store.jobs.workers import Mode, read_control

log = structlog.get_logger("tidemill.control")

CONTROL_POLL = 30.0
RETRY_SECONDS = 1.0
DONE = {"pause": "paused", "drain": "drained", "stop": "stopped"}


class OperatorControl:
    """The modes of the parts of a role, such as `pipeline:blog`. `on_change` is called when one has changed."""

    def __init__(self, database: Database, parts: Callable[[], Sequence[str]], on_change: Callable[[], None]) -> None:
        self._database = database
        self._parts = parts
        self._on_change = on_change
        self._modes: dict[str, Mode] = {}
        self._changed = asyncio.Event()

    def wake(self, _payload: str = "") -> None:
        """Read the modes again: `CONTROL_CHANNEL` has said so."""
        self._changed.set()

    def is_running(self, part: str) -> bool:
        """Whether a part may work."""
        return part not in self._modes

    async def follow(self) -> None:
        """Read the modes whenever they have changed, until cancelled."""
        while True:
            await self.read()
            await wait_for_event(self._changed, CONTROL_POLL)

    async def read(self) -> None:
        """Read the modes now."""
        self._changed.clear()
        try:
            modes = await read_control(self._database, socket.gethostname(), self._parts())
        except Exception as error:
            if not is_transient(error):
                raise
            asyncio.get_running_loop().call_later(RETRY_SECONDS, self.wake)
            return
        if modes != self._modes:
            log.info("operator control", modes=modes or "run")
            self._modes = modes
            self._on_change()

    def status(self, *, is_stopping: bool, is_busy: bool) -> str:
        """The status that operators see: running, or their request and its progress."""
        if is_stopping:
            return "stopping"
        parts = self._parts()
        modes = {self._modes.get(part, "run") for part in parts}
        if modes <= {"run"}:
            return "running"
        if "run" in modes:
            return "partly_paused"
        return "draining" if is_busy else DONE[modes.pop()] if len(modes) == 1 else "paused"
