"""A short change log for live pages: triggers write it, and readers read each row exactly once.

A row is coarse: the queues or runs that a statement has touched, or only the kind of the change. A reader passes the
PostgreSQL snapshot of its last read and gets the rows of all transactions that were not visible in it. So no row is
missed or read twice, whatever the order of commits. Changes are only logged while a process follows the log: a server
renews its request every minute, a client only while it waits.
"""

from __future__ import annotations

import asyncio
import contextlib

import msgspec

from tidemill.core.errors import ConfigError
from tidemill.store.database import Database
from tidemill.store.notify import Listener

#: The channel that notifies servers of changes.
CHANGES_CHANNEL = "changes"

#: How long changes are kept, and how long they are logged after the last server has stopped.
KEPT = 600.0
NOTED = 900.0
NOTED_FOR_A_WAIT = 150.0  # Longer than the minute after which a server renews its request.

#: `note_change` may leave out a notification within 5 ms of the last one: a listener looks again this much later, and
#: once more for a transaction that took longer to commit.
LOOK_AGAIN = (0.008, 0.07)
MOST_LOOKING = 0.2  # The share of the time in which a listener reads, while there are many changes.
LONGEST_PAUSE = 0.07

#: Enables the logging of changes for a while.
FOLLOW = "SELECT log_epoch, log_gone FROM tidemill.follow_changes($1)"

#: The log's epoch, the current snapshot, and every change that the previous snapshot did not include: transactions
#: from `$1` on, and those that were open then. A transaction that stays open for long causes no repeated reads.
READ_CHANGES = """
WITH news AS (
    SELECT xid, what, keys FROM tidemill.change WHERE xid >= $1::text::xid8
    UNION ALL
    SELECT xid, what, keys FROM tidemill.change WHERE xid = ANY ($2::text[]::xid8[]))
SELECT pg_current_snapshot()::text AS seen, log.epoch, log.gone, news.xid::text::bigint AS xid, news.what, news.keys
FROM (SELECT) AS one LEFT JOIN tidemill.change_log AS log ON true LEFT JOIN news ON true
"""

#: Deletes changes older than `$1` seconds, and stores up to which transaction the log is incomplete.
FORGET = """
WITH old AS (DELETE FROM tidemill.change WHERE at < now() - make_interval(secs => $1) RETURNING xid),
last AS (SELECT xid::text::bigint AS xid FROM old ORDER BY old.xid DESC LIMIT 1)
UPDATE tidemill.change_log SET gone = greatest(gone, last.xid) FROM last
"""


class LogSnapshot(msgspec.Struct, frozen=True):
    """The transactions a reader has seen: all below `low`, none from `high` on, in between all except the open ones."""

    low: int
    high: int
    open: frozenset[int] = frozenset()

    @classmethod
    def read(cls, text: str) -> LogSnapshot:
        """Parse PostgreSQL's text format of a snapshot: `low:high:open,open`."""
        try:
            low, high, rest = text.split(":")
            numbers = frozenset(int(each) for each in rest.split(",") if each)
            made = cls(int(low), int(high), numbers)
        except ValueError as error:
            raise ConfigError(f"{text[:80]!r} is not a point in the log of changes") from error
        if not 0 < made.low <= made.high < 2**63 or any(not made.low <= each < made.high for each in numbers):
            raise ConfigError(f"{text[:80]!r} is not a point in the log of changes")
        return made

    @property
    def text(self) -> str:
        return f"{self.low}:{self.high}:{','.join(map(str, sorted(self.open)))}"

    def has(self, xid: int) -> bool:
        """Whether this transaction's changes were visible, if it committed."""
        return xid < self.low or (xid < self.high and xid not in self.open)


class Change(msgspec.Struct, frozen=True):
    """What a statement of transaction `xid` has touched; without keys, only the kind is known."""

    xid: int
    what: str
    keys: tuple[str, ...] = ()


class LogRead(msgspec.Struct, frozen=True):
    """The result of one read of the log. No `epoch` means that the log is missing because the database has crashed."""

    seen: LogSnapshot
    epoch: str | None
    gone: int
    changes: tuple[Change, ...]


async def follow_changes(database: Database, *, seconds: float = NOTED) -> tuple[str, int]:
    """Enable logging for this long; returns the log's epoch and the last transaction that it may lack."""
    rows = await database.fetch(FOLLOW, seconds)
    return rows[0]["log_epoch"], rows[0]["log_gone"]


async def read_changes(database: Database, seen: LogSnapshot | None) -> LogRead:
    """Everything committed since the previous read; everything that is kept if there was none."""
    since, open = ("1", []) if seen is None else (str(seen.high), [str(xid) for xid in seen.open])
    rows = await database.fetch(READ_CHANGES, since, open)
    changes = tuple(Change(row["xid"], row["what"], tuple(row["keys"])) for row in rows if row["xid"] is not None)
    first = rows[0]
    return LogRead(LogSnapshot.read(first["seen"]), first["epoch"], first["gone"] or 0, changes)


async def forget_changes(database: Database) -> None:
    """Delete changes that are too old to be requested."""
    await database.fetch(FORGET, KEPT)


class ChangeListener:
    """Ends waits when something in the database changes; holds one LISTEN connection inside its `async with` block."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._changed = asyncio.Event()
        self._returned: float | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> ChangeListener:
        listener = Listener(self._database)
        listener.on(CHANGES_CHANNEL, self._notified)
        await follow_changes(self._database, seconds=NOTED_FOR_A_WAIT)
        self._tasks = [asyncio.create_task(listener.run()), asyncio.create_task(self._follow())]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def wait(self, seconds: float) -> bool:
        """Return at a change, or after this many seconds; whether there was a change. A notification may be lost.

        The longer the caller has looked since the last change, the later the next one is reported.
        """
        loop = asyncio.get_running_loop()
        looked = 0.0 if self._returned is None else loop.time() - self._returned
        earliest = loop.time() + min(looked * (1 / MOST_LOOKING - 1), LONGEST_PAUSE)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
                await asyncio.sleep(max(0.0, earliest - loop.time()))
        changed = self._changed.is_set()
        self._changed.clear()
        self._returned = loop.time()
        return changed

    def wake(self) -> None:
        """End the current wait, or the next one."""
        self._changed.set()

    def _notified(self, _: str) -> None:
        self.wake()
        for seconds in LOOK_AGAIN:
            asyncio.get_running_loop().call_later(seconds, self._changed.set)

    async def _follow(self) -> None:
        while True:
            await forget_changes(self._database)
            await asyncio.sleep(NOTED_FOR_A_WAIT / 2)
            await follow_changes(self._database, seconds=NOTED_FOR_A_WAIT)
