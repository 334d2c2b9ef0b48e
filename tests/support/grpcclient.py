"""A gRPC client of the server, made from its own description."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass

from tidemill.server.rpc.tidemill_pb2 import DESCRIPTOR


class Rpc:
    """Calls methods by name: `await rpc("Jobs", "Get", id=1)`; `rpc.many` for those that give many messages."""

    def __init__(self, channel: grpc.aio.Channel, token: str | None = None) -> None:
        self._channel = channel
        self._metadata = () if token is None else (("authorization", f"Bearer {token}"),)

    async def __call__(self, service: str, method: str, *, timeout: float = 20.0, **fields: Any) -> Any:
        path, taken, given = _method(service, method)
        call = self._channel.unary_unary(
            path, request_serializer=taken.SerializeToString, response_deserializer=given.FromString
        )
        return await call(taken(**fields), timeout=timeout, metadata=self._metadata)

    def many(self, service: str, method: str, *, timeout: float = 20.0, **fields: Any) -> Any:
        path, taken, given = _method(service, method)
        call = self._channel.unary_stream(
            path, request_serializer=taken.SerializeToString, response_deserializer=given.FromString
        )
        return call(taken(**fields), timeout=timeout, metadata=self._metadata)

    async def refused(self, service: str, method: str, **fields: Any) -> tuple[grpc.StatusCode, str]:
        """The status and the words with which a call is refused."""
        try:
            await self(service, method, **fields)
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details() or ""
        raise AssertionError(f"{service}.{method} was not refused")


def _method(service: str, method: str) -> tuple[str, Any, Any]:
    """A method's path, and the classes of its request and its response."""
    known = DESCRIPTOR.services_by_name[service]
    found = known.methods_by_name[method]
    return f"/{known.full_name}/{method}", GetMessageClass(found.input_type), GetMessageClass(found.output_type)


@asynccontextmanager
async def rpc_client(address: str, token: str | None = None) -> AsyncIterator[Rpc]:
    """A client of a server at an address."""
    async with grpc.aio.insecure_channel(address) as channel:
        yield Rpc(channel, token)
