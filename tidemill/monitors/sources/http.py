"""Events behind an HTTP API: token auth, one kept-alive connection, pages, and a time from which to ask.

HttpCursorSource(url="https://host/api/logs/", token_url="https://host/api/token/", username="...", password="...",
                 since="dateFrom", page=500, order="newest")

A 401 is answered by logging in anew, once; any other refusal or an answer that is no JSON is an error, which the
monitor meets with patience. One event that cannot be read is left out and told of; the others of its page are kept.
"""

from __future__ import annotations

import asyncio
import http.client
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal
from urllib.parse import urlencode, urlsplit

import msgspec

from tidemill.core.duration import Duration, parse_duration
from tidemill.core.errors import ConfigError
from tidemill.core.public_url import site_of
from tidemill.monitors.sources.base import Incoming, Page, SourceError, read_incoming

_FAILURES = (OSError, http.client.HTTPException)


class HttpCursorSource:
    """Asks an API for everything since a time, page by page.

    items           where in the answer the events are; None when the answer is the list itself
    id, time        the fields of an event with its unique id and its time; several names for `time` are tried in order
    since, limit, offset, of    the query's parameters: from when, how many, from which on, and whose (for backfills)
    order           whether pages come with the newest or the oldest events first
    since_format    how the API wants times: "iso" or "epoch"
    """

    def __init__(
        self,
        url: str,
        *,
        page: int = 500,
        overlap: Duration = "2s",
        overlap_most: Duration = "90m",
        items: str | None = "results",
        id: str = "id",
        time: str | Sequence[str] = "at",
        since: str = "dateFrom",
        limit: str = "limit",
        offset: str = "offset",
        of: str | None = None,
        order: Literal["newest", "oldest"] = "newest",
        since_format: Literal["iso", "epoch"] = "iso",
        token: str | None = None,
        token_url: str | None = None,
        username: str | None = None,
        password: str | None = None,
        scheme: str = "Token",
        headers: Mapping[str, str] | None = None,
        timeout: Duration = "10s",
        most_pages: int = 10_000,
    ) -> None:
        for each in (url, token_url):
            if each is not None and urlsplit(each).scheme not in ("http", "https"):
                raise ConfigError(f"{site_of(each)} is not an HTTP address")
            if each is not None and "@" in urlsplit(each).netloc:
                raise ConfigError(f"{site_of(each)}: write no user name into the address: say token= or headers=")
        if page < 1:
            raise ConfigError(f"a page of {page} events brings nothing")
        if token_url is not None and (username is None or password is None):
            raise ConfigError("token_url= needs username= and password=")
        self.overlap = parse_duration(overlap, what="overlap")
        self.overlap_most = max(self.overlap, parse_duration(overlap_most, what="overlap_most"))
        self._site = site_of(url)
        self._url, self._page, self._items, self._id = url, page, items, id
        self._time = (time,) if isinstance(time, str) else tuple(time)
        self._since, self._limit, self._offset, self._of = since, limit, offset, of
        self._newest_first = order == "newest"
        self._epoch = since_format == "epoch"
        self._token, self._token_url, self._scheme = token, token_url, scheme
        self._credentials = {"username": username, "password": password}
        self._headers = dict(headers or {})
        self._timeout = parse_duration(timeout, what="timeout")
        self._most_pages = most_pages
        self._connections: dict[tuple[str, str], http.client.HTTPConnection] = {}
        self._lock = asyncio.Lock()

    async def pages(self, since: float | None, token: str | None, now: float) -> AsyncIterator[Page]:
        """Everything from a time on."""
        async for page in self._ask({} if since is None else {self._since: self._written(since)}, 0):
            yield page

    async def history(self, entity: str, since: float, token: str | None) -> AsyncIterator[Page]:
        """The past of one entity; goes on at the offset that the token tells."""
        if self._of is None:
            raise ConfigError("this source cannot give the past of one entity: name the API's parameter with of=")
        async for page in self._ask({self._of: entity, self._since: self._written(since)}, int(token or 0)):
            yield page

    async def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    async def _ask(self, query: dict[str, str], offset: int) -> AsyncIterator[Page]:
        for _ in range(self._most_pages):
            parameters = {**query, self._limit: self._page, self._offset: offset}
            answer = await self._get(f"{self._url}{'&' if '?' in self._url else '?'}{urlencode(parameters)}")
            events, unreadable, count = self._read(answer)
            offset += count
            last = count < self._page
            events.sort(key=lambda event: (event.at, len(event.id), event.id))
            yield Page(events, settled=last or not self._newest_first, token=str(offset), unreadable=unreadable)
            if last:
                return
        raise SourceError(f"{self._site} gave more than {self._most_pages} pages at once")

    def _read(self, answer: bytes) -> tuple[list[Incoming], tuple[str, ...], int]:
        try:
            body = msgspec.json.decode(answer, type=dict[str, msgspec.Raw] if self._items else msgspec.Raw)
            listed = body.get(self._items or "") if isinstance(body, dict) else body
            if listed is None:
                raise SourceError(f"{self._site}: the answer has no {self._items!r}")
            items = msgspec.json.decode(listed, type=list[msgspec.Raw])
        except msgspec.DecodeError as error:
            raise SourceError(f"{self._site}: the answer is not the JSON that was expected: {error}") from error
        events: list[Incoming] = []
        unreadable: list[str] = []
        for raw in items:
            try:
                events.append(read_incoming(memoryview(raw), id=self._id, time=self._time))
            except ValueError as error:
                unreadable.append(f"{error}: {bytes(raw)[:120].decode(errors='replace')}")
        return events, tuple(unreadable), len(items)

    async def _get(self, url: str) -> bytes:
        async with self._lock:
            if self._token is None and self._token_url is not None:
                await self._log_in(self._token_url)
            status, body = await self._request("GET", url, headers=self._auth())
            if status == 401 and self._token_url is not None:
                await self._log_in(self._token_url)
                status, body = await self._request("GET", url, headers=self._auth())
        if status != 200:
            raise SourceError(f"{self._site} answered {status}: {body[:200].decode(errors='replace').strip()}")
        return body

    async def _log_in(self, url: str) -> None:
        status, body = await self._request(
            "POST", url, msgspec.json.encode(self._credentials), {"Content-Type": "application/json"}
        )
        try:
            token = msgspec.json.decode(body).get("token") if status == 200 else None
        except (msgspec.DecodeError, AttributeError):
            token = None
        if not isinstance(token, str):
            raise SourceError(f"{site_of(url)} gave no token (status {status}): check the user name and password")
        self._token = token

    def _auth(self) -> dict[str, str]:
        return {} if self._token is None else {"Authorization": f"{self._scheme} {self._token}"}

    async def _request(
        self, method: str, url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        sent = {"Accept": "application/json", **self._headers, **(headers or {})}
        try:
            return await asyncio.to_thread(self._send, method, url, body, sent)
        except _FAILURES as error:
            words = str(error) if isinstance(error, OSError) else ""  # Others may tell the whole address.
            raise SourceError(f"{self._site} does not answer: {words or type(error).__name__}") from error

    def _send(self, method: str, url: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, bytes]:
        parts = urlsplit(url)
        where = (parts.scheme, parts.netloc)
        path = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
        kept = where in self._connections
        try:
            return self._over(self._connection(where), method, path, body, headers)
        except _FAILURES:
            self._drop(where)
            if not kept:
                raise
        # A kept connection may have been closed by the other side while nobody used it.
        try:
            return self._over(self._connection(where), method, path, body, headers)
        except _FAILURES:
            self._drop(where)
            raise

    @staticmethod
    def _over(
        connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> tuple[int, bytes]:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()

    def _connection(self, where: tuple[str, str]) -> http.client.HTTPConnection:
        if where not in self._connections:
            scheme, host = where
            self._connections[where] = (
                http.client.HTTPSConnection(host, timeout=self._timeout, context=ssl.create_default_context())
                if scheme == "https"
                else http.client.HTTPConnection(host, timeout=self._timeout)
            )
        return self._connections[where]

    def _drop(self, where: tuple[str, str]) -> None:
        connection = self._connections.pop(where, None)
        if connection is not None:
            connection.close()

    def _written(self, moment: float) -> str:
        if self._epoch:
            return repr(round(moment, 6))
        return datetime.fromtimestamp(moment, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
