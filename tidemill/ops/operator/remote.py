"""Operations through a running server: the same calls and the same errors as on the database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec

from tidemill.ops.operator.http_client import HttpClient, RemoteChanges, ServerError
from tidemill.ops.operator.operation import A, Operation, R
from tidemill.store.large_values import value_place


class Remote:
    """Does operations by asking a server, which checks the role of the token and the arguments."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client

    @property
    def where(self) -> str:
        return self._client.where

    async def do(self, operation: Operation[A, R], args: A, /) -> R:
        """Do an operation; a request whose answer is lost is repeated with the same idempotency key."""
        given = _given(args)
        parts = [
            given.pop(part[1:-1]) if part.startswith("{") else part for part in operation.path.strip("/").split("/")
        ]
        body = msgspec.json.encode(given if operation.body is None else given.get(operation.body))
        answer = await self._client.request_async(
            operation.method,
            parts,
            None if operation.takes_body else given,
            body=body if operation.takes_body else None,
            acts=operation.acts,
            keyed=not operation.secret,
        )
        try:
            return msgspec.json.decode(answer or b"null", type=operation.result)
        except msgspec.ValidationError as error:
            raise ServerError(
                f"{self._client.where} answers something else than {operation.name} returns: {error}"
            ) from error

    def read_value(self, place: str) -> AsyncIterator[bytes]:
        """A value that is too large for an answer, in pieces."""
        return self._client.stream(["values", *value_place(place)])

    def watch(self, *topics: str) -> AbstractAsyncContextManager[RemoteChanges]:
        """Follow the server's changes while the block lasts."""
        return self._client.changes(topics)


def _given(args: msgspec.Struct) -> dict[str, Any]:
    """The arguments that differ from their defaults, as plain values."""
    plain = msgspec.to_builtins(args)
    return {
        field.name: plain[field.encode_name]
        for field in msgspec.structs.fields(args)
        if field.required or getattr(args, field.name) != _default(field)
    }


def _default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
