"""Records of an HTTP API, read in pages over one connection that is kept open.

By cursor (the default): `GET url?cursor=…&limit=…` answers `{"items": […], "cursor": "…"}`. A page is requested with
the cursor that came with the page before. An answer without a cursor, or with that of the request, means that there is
nothing new. Items without a cursor are refused, because there would be no way to go on after them.

By time: `HttpSource(url, since="dateFrom", items="results")` asks for everything since a time, page by page. An API may
give smaller pages than it is asked for, so a page is known to be the last one only if pages of its size were before.

A 401 is answered by logging in again, once. Any other status than 200, and an answer that is not the expected JSON, is
a `SourceError`: streams and monitors back off and try again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import urlencode, urlsplit

import msgspec

from tidemill.core.duration import Duration, parse_duration
from tidemill.core.errors import ConfigError
from tidemill.core.web.public_url import check_http_url, site_of
from tidemill.engine.outbound_http import REDIRECTS, OutboundHttp, OutboundHttpError
from tidemill.sources.base import RecordPage, Source, SourceContext, SourceError
from tidemill.sources.delivery import Delivery
from tidemill.sources.page_consumer import LEASE, PageConsumer, WindowConsumer

EMPTY_PAGES = 10  # followed in one poll: an API may give a new cursor with each page, for ever


class HttpSource(Source, frozen=True, tag="http"):
    """An HTTP API that is asked for new records."""

    url: str
    items: str | None = "items"
    """The field of an answer with the list of records; None if the answer is the list itself."""
    cursor: str = "cursor"
    """The query parameter with the position, and the field of an answer with the next one."""
    since: str | None = None
    """The query parameter for a time; with it the API is read by time instead of by cursor."""
    since_format: Literal["iso", "epoch"] = "iso"
    limit: str = "limit"
    """The query parameter for the number of records on a page."""
    offset: str = "offset"
    """The query parameter for the number of records to skip, when reading by time."""
    order: Literal["newest", "oldest"] = "newest"
    """Whether the API gives the newest or the oldest records first, when reading by time."""
    of: str | None = None
    """The query parameter for one entity, for backfills."""
    overlap: Duration = "2s"
    """How far before the newest record to read again, when reading by time; monitors widen it to `overlap_most`."""
    overlap_most: Duration = "90m"
    token: str | None = None
    token_url: str | None = None
    """Where a POST with `username` and `password` answers `{"token": "…"}`."""
    username: str | None = None
    password: str | None = None
    scheme: str = "Token"
    """The word before the token in the Authorization header."""
    headers: Mapping[str, str] = {}
    timeout: Duration = "30s"
    poll: tuple[float, float] = (0.5, 5.0)
    """The first and the longest pause of a stream while there is nothing new; a monitor has its own."""
    most_pages: int = 10_000
    """How many pages one sweep by time may have."""
    lease: float = LEASE
    """How many seconds a dispatcher that has stopped answering stays the reader."""

    def __post_init__(self) -> None:
        for each in filter(None, (self.url, self.token_url)):
            check_http_url(each)
        if self.token_url is not None and (self.username is None or self.password is None):
            raise ConfigError("token_url= needs username= and password=")
        put = msgspec.structs.force_setattr
        put(self, "timeout", parse_duration(self.timeout, what="timeout"))
        overlap, most = (parse_duration(getattr(self, name), what=name) for name in ("overlap", "overlap_most"))
        put(self, "overlap", overlap)
        put(self, "overlap_most", max(overlap, most))
        super().__post_init__()

    @property
    def default_name(self) -> str:
        return urlsplit(self.url).path.strip("/").replace("/", "-") or urlsplit(self.url).netloc

    def reader(self, context: SourceContext) -> CursorReader | TimeReader:
        return CursorReader(self) if self.since is None else TimeReader(self, self.since)

    def consumer(self, context: SourceContext) -> PageConsumer | WindowConsumer:
        if self.since is None:
            return PageConsumer(self, CursorReader(self), context, part=self.url, numbered=True, lease=self.lease)
        return WindowConsumer(self, TimeReader(self, self.since), context, part=self.url, lease=self.lease)


class CursorReader:
    """Reads an API by its cursor."""

    overlap = overlap_most = 0.0

    def __init__(self, source: HttpSource) -> None:
        self._source, self._client = source, Client(source)

    async def pages(self, since: float | None, token: str | None, now: float) -> AsyncIterator[RecordPage]:
        source, empty = self._source, 0
        while empty < EMPTY_PAGES:
            at = {} if token is None else {source.cursor: token}
            answer = await self._client.get({source.limit: source.page, **at})
            records = self._client.records(answer)
            after = _field(answer, source.cursor)
            if records and after is None:
                raise SourceError(f"{self._client.site} gives items without a {source.cursor!r}: they are not taken")
            if after is None or str(after) == token:
                return
            token, empty = str(after), 0 if records else empty + 1
            yield RecordPage(records, token=token)

    async def close(self) -> None:
        await self._client.close()


class TimeReader:
    """Reads an API by time: everything since a moment, page by page."""

    def __init__(self, source: HttpSource, since: str) -> None:
        self.overlap = parse_duration(source.overlap, what="overlap")
        self.overlap_most = parse_duration(source.overlap_most, what="overlap_most")
        self._source, self._since, self._client = source, since, Client(source)
        self._full = source.page
        """How many records the API gives at once, as far as is known."""
        self._short = 0
        """The most records of a page after which there was none."""

    async def pages(self, since: float | None, token: str | None, now: float) -> AsyncIterator[RecordPage]:
        """All records from a time on."""
        async for page in self._ask({} if since is None else {self._since: self._written(since)}, 0):
            yield page

    async def history(self, entity: str, since: float, token: str | None) -> AsyncIterator[RecordPage]:
        """The past of one entity, from the offset in the token."""
        if self._source.of is None:
            raise ConfigError("this source cannot give the past of one entity: name the API's parameter with of=")
        async for page in self._ask({self._source.of: entity, self._since: self._written(since)}, int(token or 0)):
            yield page

    async def close(self) -> None:
        await self._client.close()

    async def _ask(self, query: dict[str, str], offset: int) -> AsyncIterator[RecordPage]:
        source, newest_first = self._source, self._source.order == "newest"
        before: list[bytes] = []
        for _ in range(source.most_pages):
            answer = await self._client.get({**query, source.limit: source.page, source.offset: offset})
            records = self._client.records(answer)
            if (found := [record.payload for record in records]) == before:
                records = found = []  # An API that gives everything at once may ignore the offset.
            offset += len(records)
            self._learn(len(before), len(found))
            before, last = found, len(found) < self._full and len(found) <= self._short
            if newest_first:
                records.reverse()
            yield RecordPage(records, complete=last or not newest_first, token=str(offset))
            if last:
                return
        raise SourceError(f"{self._client.site} gave more than {source.most_pages} pages at once")

    def _learn(self, before: int, now: int) -> None:
        """Learn from the sizes of two pages, one after the other, how large pages are and how small last ones."""
        if now:
            self._full = max(now, min(self._full, before or self._full))
        else:
            self._short = max(self._short, before)

    def _written(self, moment: float) -> str:
        if self._source.since_format == "epoch":
            return repr(round(moment, 6))
        return datetime.fromtimestamp(moment, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


class Client:
    """Requests to one API, over connections that are kept: logs in, and follows redirects."""

    def __init__(self, source: HttpSource) -> None:
        self.site = site_of(source.url)
        self._source = source
        self._token = source.token
        stated = [url for url in (source.url, source.token_url) if url is not None]
        self._http = OutboundHttp(timeout=parse_duration(source.timeout, what="timeout"), stated=stated)
        self._lock = asyncio.Lock()

    async def get(self, query: Mapping[str, Any]) -> dict[str, msgspec.Raw] | msgspec.Raw:
        """The answer to a query, decoded as far as its fields."""
        url, login = self._source.url, self._source.token_url
        url = f"{url}{'&' if urlsplit(url).query else '?'}{urlencode(query)}"
        async with self._lock:
            if self._token is None and login is not None:
                await self._log_in(login)
            status, body = await self._request("GET", url, headers=self._authorization())
            if status == 401 and login is not None:
                await self._log_in(login)
                status, body = await self._request("GET", url, headers=self._authorization())
        if status != 200:
            raise SourceError(f"{self.site} answered {status}: {body[:200].decode(errors='replace').strip()}")
        try:
            return msgspec.json.decode(body, type=dict[str, msgspec.Raw] if self._source.items else msgspec.Raw)
        except msgspec.DecodeError as error:
            raise self._unexpected(error) from error

    def records(self, answer: dict[str, msgspec.Raw] | msgspec.Raw) -> list[Delivery]:
        """The records of an answer."""
        listed = answer.get(self._source.items or "") if isinstance(answer, dict) else answer
        if listed is None:
            raise SourceError(f"{self.site}: the answer has no {self._source.items!r}")
        try:
            return [Delivery(bytes(raw)) for raw in msgspec.json.decode(listed, type=list[msgspec.Raw])]
        except msgspec.DecodeError as error:
            raise self._unexpected(error) from error

    async def close(self) -> None:
        self._http.close()

    def _unexpected(self, error: Exception) -> SourceError:
        return SourceError(f"{self.site}: the answer is not the JSON that was expected: {error}")

    async def _log_in(self, url: str) -> None:
        credentials = {"username": self._source.username, "password": self._source.password}
        status, body = await self._request(
            "POST", url, msgspec.json.encode(credentials), {"Content-Type": "application/json"}
        )
        try:
            token = msgspec.json.decode(body).get("token") if status == 200 else None
        except (msgspec.DecodeError, AttributeError):
            token = None
        if not isinstance(token, str):
            raise SourceError(f"{site_of(url)} gave no token (status {status}): check the user name and password")
        self._token = token

    def _authorization(self) -> dict[str, str]:
        return {} if self._token is None else {"Authorization": f"{self._source.scheme} {self._token}"}

    async def _request(
        self, method: str, url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        sent = {"Accept": "application/json", **self._source.headers, **(headers or {})}
        redirects = REDIRECTS if method == "GET" else 0
        try:
            answer = await asyncio.to_thread(self._http.request, method, url, body, sent, redirects=redirects)
        except OutboundHttpError as error:
            raise SourceError(str(error)) from error
        return answer.status, answer.body


def _field(answer: dict[str, msgspec.Raw] | msgspec.Raw, name: str) -> Any:
    raw = answer.get(name) if isinstance(answer, dict) else None
    return None if raw is None else msgspec.json.decode(raw)
