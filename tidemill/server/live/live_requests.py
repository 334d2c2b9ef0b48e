"""Forwards live requests to a dispatcher of the stream that accepts them."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from tidemill.core.errors import NotFoundError
from tidemill.core.web.address import format_address, is_loopback, read_address
from tidemill.server.problems import Refused
from tidemill.server.server_state import ServerState
from tidemill.store.streams.streams import read_status

if TYPE_CHECKING:
    from tidemill.streams.runner.live_requests import LiveResult

LONGEST = 60.0
ANYWHERE = ("0.0.0.0", "::")  # noqa: S104 - what dispatchers may say of themselves

_STATUSES = {"INVALID_ARGUMENT": 422, "RESOURCE_EXHAUSTED": 429, "DEADLINE_EXCEEDED": 504}


async def ask_stream(
    server_state: ServerState, name: str, eligibilities: list[str], payload: bytes, *, timeout: float = LONGEST
) -> LiveResult:
    """Run a stream's plans on a message now."""
    import grpc

    from tidemill.server.stream_endpoint.live_pb2 import DESCRIPTOR, RunRequest, RunResponse
    from tidemill.streams.runner.live_requests import LiveResult

    target = await _dispatcher(server_state, name)
    request = RunRequest(eligibilities=eligibilities, payload=payload)
    async with grpc.aio.insecure_channel(target) as channel:
        call = channel.unary_unary(
            f"/{DESCRIPTOR.services_by_name['Live'].full_name}/Run",
            request_serializer=RunRequest.SerializeToString,
            response_deserializer=RunResponse.FromString,
        )
        try:
            bearer = f"Bearer {await server_state.live_token()}"
            answer = await call(request, timeout=min(timeout, LONGEST), metadata=(("authorization", bearer),))
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                server_state.forget_live_token()  # The token was revoked: the next request makes another.
            raise Refused(
                _STATUSES.get(error.code().name, 503), error.details() or f"stream {name} does not answer"
            ) from error
    return LiveResult(answer.result, dict(answer.failures))


async def _dispatcher(server_state: ServerState, name: str) -> str:
    """Where a living dispatcher of a stream takes live requests."""
    declared = server_state.app.streams.declared.get(name)
    if declared is None:
        raise NotFoundError(f"this server's application declares no stream {name!r}")
    if declared.grpc is None:
        raise Refused(409, f"stream {name} takes no live requests: give it an address with Stream(..., grpc=...)")
    host, port = read_address(declared.grpc)
    for row in await read_status(server_state.database, name):
        here = row["host"] == socket.gethostname()
        if here or not is_loopback(host):
            reached = ("127.0.0.1" if here else row["host"]) if host in ANYWHERE else host
            return format_address(reached, port)
    raise Refused(503, f"no dispatcher of stream {name} is alive where this server can reach it: `tidemill stream run`")
