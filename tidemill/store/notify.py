"""Wake-ups: LISTEN on one connection per process, NOTIFY coalesced per process.

A wake-up is a hint: it may be lost with a connection, so code that waits for one also polls slowly.
After a reconnect every listener is woken once, since notifications may have been missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tidemill.store.database import Database
from tidemill.store.database_errors import is_unavailable
from tidemill.store.jobs.insert import notify_queues

Callback = Callable[[str], None]

#: Passed to callbacks after a reconnect: any notification may have been missed.
ANYTHING = "*"


class Listener:
    """Calls back with the payload of every notification on its channels."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._callbacks: dict[str, list[Callback]] = {}
        self._ready = asyncio.Event()

    def on(self, channel: str, callback: Callback) -> None:
        """Call back for notifications on a channel; register before `run`."""
        self._callbacks.setdefault(channel, []).append(callback)

    async def wait_ready(self) -> None:
        """Return when the listener is connected: no notification is missed from now on."""
        await self._ready.wait()

    async def run(self) -> None:
        """Listen until cancelled, over any number of lost connections."""
        while True:
            connection = await self._database.connect_to_listen()
            lost = asyncio.Event()
            connection.add_termination_listener(lambda _, lost=lost: lost.set())
            try:
                for channel, callbacks in self._callbacks.items():
                    await connection.add_listener(self._database.channel(channel), partial(_call_back, callbacks))
                self._ready.set()
                for callbacks in self._callbacks.values():
                    _call_back(callbacks, None, 0, "", ANYTHING)
                await lost.wait()
            except Exception as error:
                if not is_unavailable(error):
                    raise
            finally:
                self._ready.clear()
                connection.terminate()


def _call_back(callbacks: Sequence[Callback], _connection: Any, _pid: int, _channel: str, payload: object) -> None:
    for callback in callbacks:
        callback(str(payload))


class Notifier:
    """Notifies workers of queues with new jobs: at once after a quiet period, otherwise every few milliseconds."""

    def __init__(self, database: Database, *, quiet: float = 0.005) -> None:
        self._database = database
        self._quiet = quiet
        self._last = float("-inf")
        self._waiting: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def may_notify_inside(self) -> bool:
        """Whether the writer should notify in its own statement, because the last notification is long enough ago."""
        now = asyncio.get_running_loop().time()
        if self._task is None and now - self._last > self._quiet:
            self._last = now
            return True
        return False

    def notify_soon(self, wakes: set[str]) -> None:
        """Notify workers of these queues and lanes, together with all other requests of the next few milliseconds."""
        self._waiting |= wakes
        if self._task is None:
            self._task = asyncio.create_task(self._notify(), name="tidemill-notify")

    async def close(self) -> None:
        """Send the notifications that are still pending."""
        if self._task is not None:
            await self._task

    async def _notify(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(self._quiet)
                wakes, self._waiting = self._waiting, set()
                async with self._database.acquire() as connection:
                    await notify_queues(self._database, connection, wakes)
                self._last = asyncio.get_running_loop().time()
        except Exception as error:
            if not is_unavailable(error):
                raise
            # The jobs are stored; the workers' safety poll finds them.
        finally:
            self._task = None
