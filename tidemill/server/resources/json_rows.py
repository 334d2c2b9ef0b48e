"""Rows of the database as the API tells them: JSON columns as values; and moments as the API is told them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeVar, cast

import asyncpg
from litestar import Response

from tidemill.core.codec import decode
from tidemill.core.errors import ConfigError

T = TypeVar("T")

JSON = (b"content-type", b"application/json")

JOB_JSON = ("args", "options", "origin", "errors", "result")
RUN_JSON = ("input", "result", "error", "origin")


def readable(row: Mapping[str, Any] | asyncpg.Record, columns: tuple[str, ...] = JOB_JSON) -> dict[str, Any]:
    """A row with its JSON columns as Python values."""
    return {name: value_of(value) if name in columns else value for name, value in row.items()}


def value_of(stored: bytes | None) -> Any:
    """A JSON column as a Python value."""
    return None if stored is None else decode(stored)


def as_it_is(written: bytes, kind: type[T]) -> T:
    """JSON that is of this kind, for a handler that is declared to give it: it is passed on untouched."""
    return cast(T, Whole(written))


class Whole(Response[bytes]):
    """JSON as it stands, sent with as little ado as can be: pages are asked for often."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def to_asgi_response(self, app: Any, request: Any, **_: Any) -> Any:
        return self

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [JSON]})
        await send({"type": "http.response.body", "body": self.content})


def zoned(moment: datetime) -> datetime:
    """A moment that somebody has sent; an error if nobody can know which it is."""
    if moment.tzinfo is None:
        raise ConfigError("a moment needs its time zone, as in 2026-03-02T08:00:00Z")
    return moment
