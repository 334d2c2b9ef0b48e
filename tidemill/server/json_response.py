"""JSON that the database wrote, passed on as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from litestar import Response

JSON: tuple[bytes, bytes] = (b"content-type", b"application/json")


class JsonBytes(Response[bytes]):
    """A JSON response without the work of building one: lists are requested often."""

    def __init__(
        self,
        content: bytes,
        status: int,
        version: str | None = None,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        self.content = content
        self.more_headers = headers
        self.status = status
        self.version = version

    def to_asgi_response(self, app: Any, request: Any, **_: Any) -> Any:
        return self

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = [*self.more_headers] if self.status == 204 else [*self.more_headers, JSON]
        if self.version is not None:
            headers.append((b"etag", f'"{self.version}"'.encode()))
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if self.status == 204 else self.content})
