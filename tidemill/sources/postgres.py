"""The rows of a PostgreSQL table or view, read by time and id: `PostgresSource("readings", time="at")`.

Without `url` the table is in the application's own database. Each row becomes a JSON object. A sweep begins a little
before the newest row that was seen, so that rows whose transactions committed late are found: up to `overlap` late in a
stream; in a monitor the overlap grows with the lateness that it observes, up to `overlap_most`.

A row whose time changes is read again, so a column such as `updated_at` gives every change that stays for a sweep.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from math import isfinite
from typing import Any

import msgspec

from tidemill.core.duration import Duration, parse_duration
from tidemill.core.errors import ConfigError, StoreError
from tidemill.sources.base import NEAR, RecordPage, Source, SourceContext, SourceError
from tidemill.sources.delivery import Delivery
from tidemill.sources.page_consumer import LEASE, WindowConsumer
from tidemill.store.connection.url import to_any
from tidemill.store.database import Database, DatabaseSettings
from tidemill.store.streams.table_cursor import TableCursor, read_table

PATIENCE = 5.0


class PostgresSource(Source, frozen=True, tag="postgres"):
    """A table or view with a column for the id and one for the time."""

    table: str
    url: str | None = None
    """Another database; the application's own by default."""
    of: str | None = None
    """The column with the entity that a row is about, for backfills."""
    overlap: Duration = "2s"
    overlap_most: Duration = "10m"
    poll: tuple[float, float] = (0.5, 5.0)
    """The first and the longest pause of a stream while there is nothing new; a monitor has its own."""
    lease: float = LEASE
    """How many seconds a dispatcher that has stopped answering stays the reader."""

    def __post_init__(self) -> None:
        super().__post_init__()
        put = msgspec.structs.force_setattr
        overlap, most = (parse_duration(getattr(self, name), what=name) for name in ("overlap", "overlap_most"))
        put(self, "overlap", overlap)
        put(self, "overlap_most", max(overlap, most))
        if len(self.time) != 1:
            raise ConfigError(f"source {self.name}: a row has its time in one column, not in {self.time!r}")
        self.table_cursor()

    @property
    def default_name(self) -> str:
        return self.table.replace(".", "-")

    def table_cursor(self) -> TableCursor:
        return TableCursor(self.table, self.id, self.time[0], self.of).validate()

    def reader(self, context: SourceContext) -> TableReader:
        return TableReader(self, context.database)

    def consumer(self, context: SourceContext) -> WindowConsumer:
        return WindowConsumer(self, TableReader(self, context.database), context, part=self.table, lease=self.lease)


class TableReader:
    """Reads rows in the order of (time, id)."""

    idle = NEAR

    def __init__(self, source: PostgresSource, own: Database) -> None:
        self.overlap = parse_duration(source.overlap, what="overlap")
        self.overlap_most = parse_duration(source.overlap_most, what="overlap_most")
        self._page, self._cursor = source.page, source.table_cursor()
        self._is_other = source.url is not None
        self._database = (
            own if source.url is None else Database(DatabaseSettings(url=to_any(source.url)), label="tidemill source")
        )
        self._opened = False

    async def pages(self, since: float | None, token: str | None, now: float) -> AsyncIterator[RecordPage]:
        """All rows from a time on, oldest first."""
        async for page in self._read(since, None):
            yield page

    async def history(self, entity: str, since: float, token: str | None) -> AsyncIterator[RecordPage]:
        """The rows of one entity, by its name in the column `of`."""
        if self._cursor.of is None:
            raise ConfigError("this source cannot give the past of one entity: name its column with of=")
        async for page in self._read(since if token is None else float(token), entity):
            yield page

    async def close(self) -> None:
        if self._opened:
            self._opened = False
            await self._database.close()

    async def _read(self, since: float | None, entity: str | None) -> AsyncIterator[RecordPage]:
        after: tuple[float, str] | None = None
        while True:
            try:
                if self._is_other and not self._opened:
                    await self._database.open(patience=PATIENCE)
                    self._opened = True
                rows = await read_table(self._database, self._cursor, since, after, entity, self._page)
            except StoreError as error:
                raise SourceError(str(error)) from error
            if rows:
                after = (rows[-1]["exact"], rows[-1]["id"])
                yield RecordPage([_record(row) for row in rows], token=None if entity is None else repr(rows[-1]["at"]))
            if len(rows) < self._page:
                return


def _record(row: Any) -> Delivery:
    """A row with its id and time, or only its JSON if it has none that could be used."""
    if row["id"] is None or row["at"] is None or not isfinite(row["at"]):
        return Delivery(row["data"])
    return Delivery(row["data"], at=round(row["at"], 6), id=str(row["id"]))
