"""Wake-ups: LISTEN on one connection per database and process, NOTIFY coalesced per process.

A wake-up is a hint: it may be lost with a connection, so code that waits for one also polls slowly.
After a reconnect every listener is woken once, since notifications may have been missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from tidemill.store.database import Connection, Database
from tidemill.store.database_errors import PAUSE_READ_ONLY, is_full, is_unavailable
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
        await _listening_connection(self._database).serve(self)

    def channels(self) -> list[str]:
        """The real names of its channels."""
        return [self._database.channel(name) for name in self._callbacks]

    @property
    def is_connected(self) -> bool:
        return self._ready.is_set()

    def connected(self) -> None:
        """It hears its channels from now on; anything may have happened before."""
        self._ready.set()
        for callbacks in self._callbacks.values():
            _call_back(callbacks, ANYTHING)

    def disconnected(self) -> None:
        self._ready.clear()

    def notify(self, channel: str, payload: object) -> None:
        """Call back for a notification on the channel of this real name."""
        for name, callbacks in self._callbacks.items():
            if self._database.channel(name) == channel:
                _call_back(callbacks, payload)


def _call_back(callbacks: Sequence[Callback], payload: object) -> None:
    for callback in callbacks:
        callback(str(payload))


class ListeningConnection:
    """The connection on which all listeners of a database hear notifications: open while there is one of them."""

    def __init__(self, database: Database) -> None:
        self.loop = asyncio.get_running_loop()
        self._database = database
        self._listeners: list[Listener] = []
        self._changed = asyncio.Event()
        self._listening: asyncio.Task[None] | None = None

    async def serve(self, listener: Listener) -> None:
        """Let a listener hear its channels until this is cancelled."""
        self._listeners.append(listener)
        self._changed.set()
        if self._listening is None or self._listening.done():
            self._listening = asyncio.create_task(self._listen(), name="tidemill-listen")
        listening = self._listening
        try:
            await asyncio.shield(listening)
        finally:
            self._listeners.remove(listener)
            listener.disconnected()
            if not self._listeners and not listening.done():
                self._listening = None  # A listener that comes meanwhile gets a connection of its own.
                listening.cancel()
                await asyncio.wait([listening])

    async def _listen(self) -> None:
        while True:
            connection = await self._database.connect_to_listen()
            connection.add_termination_listener(lambda _: self._changed.set())
            try:
                await self._serve_on(connection)
            except Exception as error:
                if not is_unavailable(error):
                    raise
                if is_full(error):  # A standby cannot listen.
                    await asyncio.sleep(PAUSE_READ_ONLY)
            finally:
                if asyncio.current_task() is self._listening:
                    for listener in self._listeners:
                        listener.disconnected()
                connection.terminate()

    async def _serve_on(self, connection: Connection) -> None:
        """Listen on the channels of all listeners, also of those that come later, until the connection is lost."""
        heard: set[str] = set()
        while not connection.is_closed():
            self._changed.clear()
            for listener in [each for each in self._listeners if not each.is_connected]:
                for channel in listener.channels():
                    if channel not in heard:
                        await connection.add_listener(channel, self._notify)
                        heard.add(channel)
                if listener in self._listeners:  # The listener may have left meanwhile.
                    listener.connected()
            await self._changed.wait()

    def _notify(self, _connection: Any, _pid: int, channel: str, payload: object) -> None:
        for listener in self._listeners:
            listener.notify(channel, payload)


def _listening_connection(database: Database) -> ListeningConnection:
    """The database's connection for notifications in this event loop."""
    database = database.listens_with or database
    known = database.listening
    if known is None or known.loop is not asyncio.get_running_loop():
        known = database.listening = ListeningConnection(database)
    return known


class Notifier:
    """Notifies workers of queues with new jobs: at once after a quiet period, otherwise every few milliseconds."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.quiet = 0.005
        self._last = float("-inf")
        self._waiting: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def may_notify_inside(self) -> bool:
        """Whether the writer should notify in its own statement, because the last notification is long enough ago."""
        now = asyncio.get_running_loop().time()
        if now - self._last > self.quiet:
            self._last = now
            return True
        return False

    def notified_inside(self, wakes: set[str]) -> None:
        """A statement has notified workers of these queues and lanes, and of earlier jobs in them."""
        self._waiting -= wakes

    def notify_soon(self, wakes: set[str]) -> None:
        """Notify workers of these queues and lanes, together with all other requests of the next few milliseconds."""
        self._waiting |= wakes
        if self._timer is None and self._task is None:
            self._wait(self.quiet)

    async def close(self) -> None:
        """Send the notifications that are still pending."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            await self._task
        if self._waiting:
            await self._notify()

    def _wait(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._due)

    def _due(self) -> None:
        self._timer = None
        if not self._waiting:
            return
        left = self._last + self.quiet - asyncio.get_running_loop().time()
        if left > 0:  # A statement has notified meanwhile.
            self._wait(left)
        else:
            self._task = asyncio.create_task(self._notify_and_go_on(), name="tidemill-notify")

    async def _notify_and_go_on(self) -> None:
        try:
            await self._notify()
        finally:
            self._task = None
            if self._waiting:
                self._wait(self.quiet)

    async def _notify(self) -> None:
        self._last = asyncio.get_running_loop().time()
        wakes, self._waiting = self._waiting, set()
        try:
            async with self._database.acquire() as connection:
                await notify_queues(self._database, connection, wakes)
        except Exception as error:
            if not is_unavailable(error):
                raise
            # The jobs are stored; the workers' safety poll finds them.
