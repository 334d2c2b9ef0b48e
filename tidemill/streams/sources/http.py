"""Pages of an HTTP API as a source: `GET url?cursor=…&limit=…` answers {"items": […], "cursor": "…"}.

A page is asked for with the cursor that came with the one before; an answer without items, or with the cursor that
it was asked with, means that there is nothing new yet. Items without a cursor are refused: nobody could tell where to
go on after them.
"""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode, urlsplit

import msgspec
import structlog

from tidemill.core.errors import ConfigError
from tidemill.store.database import Executor
from tidemill.streams.definition.message import Delivery
from tidemill.streams.sources.base import Pause, Place, Source
from tidemill.streams.sources.cursor import Cursors

log = structlog.get_logger("tidemill.streams")


class _Page(msgspec.Struct):
    items: list[msgspec.Raw] = []
    cursor: str | int | None = None


class HttpSource(Source, frozen=True, tag="http"):
    """An HTTP endpoint that is asked again and again for what is new."""

    url: str
    limit: int = 500
    request_headers: Mapping[str, str] = {}
    timeout: float = 30.0
    poll: tuple[float, float] = (0.5, 5.0)
    """The first and the longest pause while there is nothing new."""

    def __post_init__(self) -> None:
        if urlsplit(self.url).scheme not in ("http", "https"):
            raise ConfigError(f"source {self.name or self.url}: {self.url!r} is not an http or https address")
        super().__post_init__()

    @property
    def default_name(self) -> str:
        return urlsplit(self.url).path.strip("/").replace("/", "-") or urlsplit(self.url).netloc.rpartition("@")[2]

    def tap(self, place: Place) -> HttpTap:
        return HttpTap(self, place)


class HttpTap:
    transactional = True

    def __init__(self, source: HttpSource, place: Place) -> None:
        self._source = source
        self._cursors = Cursors(source.name, place, named=True)
        self._pause = Pause(*source.poll)
        self._pages: deque[tuple[int, str]] = deque()  # the number of a page's last item, and the cursor after it
        self._cursor: str | None = None
        self._number = 0

    async def start(self) -> None:
        cursor = await self._cursors.own(0, self._source.url)
        self._cursor, self._number = cursor.note, cursor.position or 0

    async def poll(self, most: int) -> list[Delivery]:
        try:
            page = await asyncio.to_thread(self._fetch, min(most, self._source.limit))
        except (OSError, msgspec.DecodeError) as error:
            log.warning("the source does not answer as it should", source=self._source.name, error=str(error))
            await self._pause.wait()
            return []
        after = None if page.cursor is None else str(page.cursor)
        if page.items and after is None:
            log.warning("the source gives items without a cursor: they are not taken", source=self._source.name)
        if not page.items or after is None or after == self._cursor:
            await self._pause.wait()
            return []
        self._pause.reset()
        deliveries: list[Delivery] = []
        for item in page.items:
            self._number += 1
            deliveries.append(Delivery(bytes(item), self._number))
        self._cursor = after
        self._pages.append((self._number, after))
        return self._cursors.take(deliveries)

    def _fetch(self, limit: int) -> _Page:
        query: dict[str, Any] = {"limit": limit}
        if self._cursor is not None:
            query["cursor"] = self._cursor
        joined = "&" if urlsplit(self._source.url).query else "?"
        request = urllib.request.Request(  # noqa: S310 - the scheme was checked
            f"{self._source.url}{joined}{urlencode(query)}", headers=dict(self._source.request_headers)
        )
        with urllib.request.urlopen(request, timeout=self._source.timeout) as answer:  # noqa: S310
            return msgspec.json.decode(answer.read(), type=_Page)

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        self._cursors.ack(deliveries)

    async def flush(self) -> None:
        """A position moves when a whole page is done: only then has it a name that the source knows."""
        done = self._cursors.committable(0) or 0
        while self._pages and self._pages[0][0] <= done:
            self._cursors.note(0, *self._pages.popleft())
        await self._cursors.flush()

    def nack(self, deliveries: Sequence[Delivery]) -> None:
        """Nothing to say: its page is asked for again."""

    async def settle(self, connection: Executor, deliveries: Sequence[Delivery]) -> None:
        await self._cursors.settle(connection, deliveries)

    async def stop(self) -> None:
        await self.flush()

    async def lag(self) -> int | None:
        return None
