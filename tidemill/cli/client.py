"""A running server's rows, for commands whose operations are not in `ops` yet."""

from __future__ import annotations

from typing import Any, Self

import msgspec

from tidemill.cli.render import timely
from tidemill.ops.cursor import write_cursor
from tidemill.ops.http_client import HttpClient

PAGE = 200

Row = dict[str, Any]


class RowClient:
    """One server's API, for as long as the block lasts."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def get(self, *parts: object, **query: Any) -> Any:
        """What is at an address, such as `get("jobs", 12)`."""
        return _decoded(self._client.request("GET", parts, query))

    def row(self, *parts: object, **query: Any) -> Row:
        """One object, with its times as datetimes."""
        return timely(self.get(*parts, **query))

    def items(self, *parts: object, **query: Any) -> list[Row]:
        """A list that comes whole."""
        return [timely(row) for row in self.get(*parts, **query)["items"]]

    def pages(self, *parts: object, limit: int, before: int | None = None, **query: Any) -> list[Row]:
        """So many rows of a list that comes in pages, newest first; only rows that are older than `before`."""
        found: list[Row] = []
        cursor = None if before is None else write_cursor(max(1, before))
        while len(found) < limit:
            page = self.get(*parts, limit=min(PAGE, limit - len(found)), cursor=cursor, **query)
            found += page["items"]
            cursor = page["next"]
            if cursor is None:
                break
        return [timely(row) for row in found]

    def post(self, *parts: object, body: object = None) -> Any:
        """Do something, once however often the request is repeated."""
        return _decoded(self._client.request("POST", parts, body=_encoded(body), acts=True))

    def preview(self, *parts: object, body: object) -> Any:
        """Ask what would be done."""
        return _decoded(self._client.request("POST", parts, body=_encoded(body)))

    def put(self, *parts: object, body: object) -> Any:
        """Set something; the request may be repeated."""
        return _decoded(self._client.request("PUT", parts, body=_encoded(body), acts=True))

    def delete(self, *parts: object) -> None:
        """End something; that it is gone when the request is repeated is no error."""
        self._client.request("DELETE", parts, acts=True)


def _decoded(body: bytes) -> Any:
    return msgspec.json.decode(body) if body else None


def _encoded(body: object) -> bytes | None:
    return None if body is None else msgspec.json.encode(body)
