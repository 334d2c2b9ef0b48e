"""A gRPC client of the server, made from its own description."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import msgspec
from google.protobuf.message_factory import GetMessageClass

from tidemill.ops.operator.operation import Operation
from tidemill.server.rpc.messages import fill_message, null_texts, read_message
from tidemill.server.rpc.methods import DESCRIPTORS
from tidemill.server.rpc.proto import method_of, service_of

SERVICES = {name: service for file in DESCRIPTORS for name, service in file.services_by_name.items()}


class Rpc:
    """Calls methods by name: `await rpc("Jobs", "GetJob", id=1)`; `rpc.many` for those that return many messages."""

    def __init__(self, channel: grpc.aio.Channel, token: str | None = None) -> None:
        self._channel = channel
        self._metadata = () if token is None else (("authorization", f"Bearer {token}"),)

    async def __call__(
        self, service: str, method: str, *, timeout: float = 60.0, idempotency_key: str | None = None, **fields: Any
    ) -> Any:
        return await self.send(
            service, method, _method(service, method)[1](**fields), timeout=timeout, idempotency_key=idempotency_key
        )

    async def send(
        self, service: str, method: str, request: Any, *, timeout: float = 60.0, idempotency_key: str | None = None
    ) -> Any:
        path, taken, given = _method(service, method)
        call = self._channel.unary_unary(
            path, request_serializer=taken.SerializeToString, response_deserializer=given.FromString
        )
        metadata = (*self._metadata, *([] if idempotency_key is None else [("idempotency-key", idempotency_key)]))
        return await call(request, timeout=timeout, metadata=metadata)

    async def do(self, operation: Operation[Any, Any], args: msgspec.Struct) -> Any:
        """Do an operation; returns the fields of its result that are set, as plain values."""
        response = await self.send(service_of(operation), method_of(operation), request_of(operation, args))
        if operation.result is type(None):
            return None
        return msgspec.to_builtins(read_message(response, operation.result))

    def many(self, service: str, method: str, *, timeout: float = 60.0, **fields: Any) -> Any:
        path, taken, given = _method(service, method)
        call = self._channel.unary_stream(
            path, request_serializer=taken.SerializeToString, response_deserializer=given.FromString
        )
        return call(taken(**fields), timeout=timeout, metadata=self._metadata)

    async def refused(self, service: str, method: str, **fields: Any) -> tuple[grpc.StatusCode, str]:
        """The status and the message with which a call is refused."""
        try:
            await self(service, method, **fields)
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details() or ""
        raise AssertionError(f"{service}.{method} was not refused")


def request_of(operation: Operation[Any, Any], args: msgspec.Struct) -> Any:
    """The request with these arguments; raises `TypeError` or `ValueError` if the message cannot hold them."""
    request = fill_message(_method(service_of(operation), method_of(operation))[1](), args, operation.args)
    for field in msgspec.structs.fields(args):
        given = getattr(args, field.name)
        if given == [] and field.default is None:
            raise ValueError(f"{field.name}: a message cannot hold an empty list in place of none")
        if given is None and field.name in null_texts(operation.args):
            setattr(request, field.name, "")
    return request


def _method(service: str, method: str) -> tuple[str, Any, Any]:
    """A method's path, and the classes of its request and its response."""
    known = SERVICES[service]
    found = known.methods_by_name[method]
    return f"/{known.full_name}/{method}", GetMessageClass(found.input_type), GetMessageClass(found.output_type)


@asynccontextmanager
async def rpc_client(address: str, token: str | None = None) -> AsyncIterator[Rpc]:
    """A client of a server at an address."""
    async with grpc.aio.insecure_channel(address) as channel:
        yield Rpc(channel, token)
