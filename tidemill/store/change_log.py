"""What has changed, for live pages: a short log that triggers write, read exactly once between two snapshots.

A row is coarse: which queues, or which runs, a statement has touched, or only that something of a kind has changed.
A reader says what it has seen as a snapshot of PostgreSQL, and is given the rows of all transactions that were not
visible in it: none is missed and none comes twice, in whatever order transactions commit. Nothing is noted unless
a process follows the log: a server asks for that every minute, a waiting client while it waits.
"""

from __future__ import annotations

import asyncio
import contextlib

import msgspec

from tidemill.core.errors import ConfigError
from tidemill.store.database import Database
from tidemill.store.notify import Listener

#: News for servers: something has changed.
CHANGES_CHANNEL = "changes"

#: How long changes are kept, and noted after the last server has gone.
KEPT = 600.0
NOTED = 900.0
NOTED_FOR_A_WAIT = 150.0  # More than the minute after which a server asks again.
NOTIFIED_EVERY = 0.07

#: Have changes noted from now on.
FOLLOW = "SELECT log_epoch, log_gone FROM tidemill.follow_changes($1)"

#: The log, what a look sees now, and every change that a look before did not see: of transactions from `$1` on, which
#: came later, and of those that were open then. However long one stays open, nothing is read twice for it.
LOOK = """
WITH news AS (
    SELECT xid, what, keys FROM tidemill.change WHERE xid >= $1::text::xid8
    UNION ALL
    SELECT xid, what, keys FROM tidemill.change WHERE xid = ANY ($2::text[]::xid8[]))
SELECT pg_current_snapshot()::text AS seen, log.epoch, log.gone, news.xid::text::bigint AS xid, news.what, news.keys
FROM (SELECT) AS one LEFT JOIN tidemill.change_log AS log ON true LEFT JOIN news ON true
"""

#: Forget what is older than `$1` seconds, and remember that it is gone.
FORGET = """
WITH old AS (DELETE FROM tidemill.change WHERE at < now() - make_interval(secs => $1) RETURNING xid),
last AS (SELECT xid::text::bigint AS xid FROM old ORDER BY old.xid DESC LIMIT 1)
UPDATE tidemill.change_log SET gone = greatest(gone, last.xid) FROM last
"""


class LogSnapshot(msgspec.Struct, frozen=True):
    """Which transactions a reader has seen: all below `low`, none from `high` on, in between all but those open."""

    low: int
    high: int
    open: frozenset[int] = frozenset()

    @classmethod
    def read(cls, text: str) -> LogSnapshot:
        """From PostgreSQL's own way to write it: `low:high:open,open`."""
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
        """Whether what this transaction did, if it committed, was visible."""
        return xid < self.low or (xid < self.high and xid not in self.open)


class Change(msgspec.Struct, frozen=True):
    """What a statement of transaction `xid` has touched; no keys where only the kind is known."""

    xid: int
    what: str
    keys: tuple[str, ...] = ()


class LogRead(msgspec.Struct, frozen=True):
    """What a look at the log has found. No `epoch` means that there is no log: the database has crashed."""

    seen: LogSnapshot
    epoch: str | None
    gone: int
    changes: tuple[Change, ...]


async def follow_changes(database: Database, *, seconds: float = NOTED) -> tuple[str, int]:
    """Have changes noted for so long; returns the log's name and the last transaction that it may lack."""
    rows = await database.fetch(FOLLOW, seconds)
    return rows[0]["log_epoch"], rows[0]["log_gone"]


async def look_at_changes(database: Database, seen: LogSnapshot | None) -> LogRead:
    """Everything that was committed since a look before; without one, everything that is kept."""
    since, open = ("1", []) if seen is None else (str(seen.high), [str(xid) for xid in seen.open])
    rows = await database.fetch(LOOK, since, open)
    changes = tuple(Change(row["xid"], row["what"], tuple(row["keys"])) for row in rows if row["xid"] is not None)
    first = rows[0]
    return LogRead(LogSnapshot.read(first["seen"]), first["epoch"], first["gone"] or 0, changes)


async def forget_changes(database: Database, *, kept: float = KEPT) -> None:
    """Remove changes that are too old to be asked for."""
    await database.fetch(FORGET, kept)


class ChangeListener:
    """Ends waits when something in the database changes: one LISTEN connection while the block lasts."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._heard = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> ChangeListener:
        listener = Listener(self._database)
        listener.on(CHANGES_CHANNEL, self._hear)
        await follow_changes(self._database, seconds=NOTED_FOR_A_WAIT)
        self._tasks = [asyncio.create_task(listener.run()), asyncio.create_task(self._follow())]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def wait(self, seconds: float) -> None:
        """Return at a change, or after so many seconds: a safety poll, since a notification may be lost."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._heard.wait()
        self._heard.clear()

    def wake(self) -> None:
        """End the wait that is under way, or the next one."""
        self._heard.set()

    def _hear(self, _: str) -> None:
        self.wake()
        # Changes within the next 50 ms are not notified again (`note_change`): wake up once more for them.
        asyncio.get_running_loop().call_later(NOTIFIED_EVERY, self._heard.set)

    async def _follow(self) -> None:
        while True:
            await forget_changes(self._database)
            await asyncio.sleep(NOTED_FOR_A_WAIT / 2)
            await follow_changes(self._database, seconds=NOTED_FOR_A_WAIT)
