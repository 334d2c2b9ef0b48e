"""Values that are too large for an answer, whole: streamed in pieces, none of which the server keeps."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from litestar import Request, get
from litestar.params import FromPath
from litestar.response import Stream

from tidemill.server.server_state import TheServerState, caller_of
from tidemill.store.large_values import read_whole


@get("/values/{kind:str}/{field:str}/{key:path}", opt={"role": "viewer"}, summary="A large value, whole")
async def get_value(
    server_state: TheServerState,
    request: Request[Any, Any, Any],
    kind: FromPath[str],
    field: FromPath[str],
    key: FromPath[str],
) -> Stream:
    """A value of which another answer shows the first 64 kB: there `whole` is its address.

    JSON, as it is stored; the payload of a dead letter as its bytes.
    """
    pieces = read_whole(await server_state.local(caller_of(request)).readable(), kind, field, key.removeprefix("/"))
    first = await anext(pieces)  # An error is answered before the stream begins.
    return Stream(
        _chained(first, pieces), media_type="application/octet-stream" if kind == "dead-letter" else "application/json"
    )


async def _chained(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in rest:
        yield piece


routes = [get_value]
