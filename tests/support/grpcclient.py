"""A gRPC client of the server, made from its own description."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from tidemill.server.rpc.messages import SERVICES, message_class, service_name


class Rpc:
    """Calls methods by name: `await rpc("Jobs", "Get", id=1)`; `rpc.many` for those that give many messages."""

    def __init__(self, channel: grpc.aio.Channel, token: str | None = None) -> None:
        self._channel = channel
        self._metadata = () if token is None else (("authorization", f"Bearer {token}"),)

    async def __call__(self, service: str, method: str, *, timeout: float = 20.0, **fields: Any) -> Any:
        taken, *_, given = SERVICES[service][method].split()
        call = self._channel.unary_unary(
            f"/{service_name(service)}/{method}",
            request_serializer=message_class(taken).SerializeToString,
            response_deserializer=message_class(given).FromString,
        )
        return await call(message_class(taken)(**fields), timeout=timeout, metadata=self._metadata)

    def many(self, service: str, method: str, *, timeout: float = 20.0, **fields: Any) -> Any:
        taken, *_, given = SERVICES[service][method].split()
        call = self._channel.unary_stream(
            f"/{service_name(service)}/{method}",
            request_serializer=message_class(taken).SerializeToString,
            response_deserializer=message_class(given).FromString,
        )
        return call(message_class(taken)(**fields), timeout=timeout, metadata=self._metadata)

    async def refused(self, service: str, method: str, **fields: Any) -> tuple[grpc.StatusCode, str]:
        """The status and the words with which a call is refused."""
        try:
            await self(service, method, **fields)
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details() or ""
        raise AssertionError(f"{service}.{method} was not refused")


@asynccontextmanager
async def rpc_client(address: str, token: str | None = None) -> AsyncIterator[Rpc]:
    """A client of a server at an address."""
    async with grpc.aio.insecure_channel(address) as channel:
        yield Rpc(channel, token)
