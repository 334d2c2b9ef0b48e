"""Events in a table of a PostgreSQL: `PostgresSource("readings", url="postgresql://…", id="id", time="at")`.

The table is read in the order of (time, id), from a little before the newest row that was seen. Rows that are
committed late are found as long as they are no later than the overlap, which grows with what is observed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from tidemill.core.duration import Duration, parse_duration
from tidemill.core.errors import ConfigError, StoreError
from tidemill.monitors.sources.base import Incoming, Page, SourceError, read_incoming
from tidemill.store.database import Database, DatabaseSettings
from tidemill.store.streams.table_cursor import TableCursor, read_table


class PostgresSource:
    """Reads a table, or a view, by time and id. Each row becomes a JSON object."""

    def __init__(
        self,
        table: str,
        *,
        url: str,
        id: str = "id",
        time: str = "at",
        of: str | None = None,
        page: int = 500,
        overlap: Duration = "2s",
        overlap_most: Duration = "10m",
    ) -> None:
        if page < 1:
            raise ConfigError(f"a page of {page} rows brings nothing")
        self.overlap = parse_duration(overlap, what="overlap")
        self.overlap_most = max(self.overlap, parse_duration(overlap_most, what="overlap_most"))
        self._cursor = TableCursor(table, id, time, of).validate()
        self._page = page
        self._database = Database(DatabaseSettings(url=url), application="tidemill monitor source")
        self._opened = False

    async def pages(self, since: float | None, token: str | None, now: float) -> AsyncIterator[Page]:
        """Everything from a time on, oldest first."""
        async for page in self._read(since, None):
            yield page

    async def history(self, entity: str, since: float, token: str | None) -> AsyncIterator[Page]:
        """The rows of one entity, by its name in the column `of`."""
        if self._cursor.of is None:
            raise ConfigError("this source cannot give the past of one entity: name its column with of=")
        async for page in self._read(since if token is None else float(token), entity):
            yield page

    async def close(self) -> None:
        if self._opened:
            self._opened = False
            await self._database.close()

    async def _read(self, since: float | None, entity: str | None) -> AsyncIterator[Page]:
        after: tuple[float, str] | None = None
        while True:
            try:
                if not self._opened:
                    await self._database.open(patience=5.0)
                    self._opened = True
                rows = await read_table(self._database, self._cursor, since, after, entity, self._page)
            except StoreError as error:
                raise SourceError(str(error)) from error
            events: list[Incoming] = []
            unreadable: list[str] = []
            for row in rows:
                try:
                    read = read_incoming(row["data"], id=self._cursor.id, time=(self._cursor.time,))
                    events.append(Incoming(read.id, round(row["at"], 6), read.data, read.raw))
                except ValueError as error:
                    unreadable.append(str(error))
            if rows:
                after = (rows[-1]["exact"], rows[-1]["id"])
                token = None if entity is None else repr(rows[-1]["at"])
                yield Page(events, token=token, unreadable=tuple(unreadable))
            if len(rows) < self._page:
                return
