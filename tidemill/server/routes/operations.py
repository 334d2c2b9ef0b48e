"""Every operation over HTTP: its route follows from its declaration."""

from __future__ import annotations

import re
from typing import Any, get_origin
from urllib.parse import parse_qs

import msgspec
from litestar import Request, Response
from litestar.handlers import HTTPRouteHandler

from tidemill.core.errors import ArgumentError
from tidemill.ops.operator.operation import Operation, bare_type, header_fields
from tidemill.ops.operator.registry import all_operations
from tidemill.ops.operator.validation import read_arguments, read_json, read_value
from tidemill.server.json_response import JsonBytes
from tidemill.server.middleware.idempotency import KEY, REPLAYED
from tidemill.server.server_state import ServerState, caller_of
from tidemill.store.access.idempotency import AnsweredError


class _Versioned(msgspec.Struct):
    version: str


def operation_routes(server_state: ServerState) -> list[HTTPRouteHandler]:
    """The routes of all operations."""
    return [_route(server_state, operation) for operation in all_operations()]


def _route(server_state: ServerState, operation: Operation[Any, Any]) -> HTTPRouteHandler:
    lists = list_fields(operation.rest_type)

    async def handle(request: Request[Any, Any, Any]) -> Response[bytes]:
        args = await _read(operation, request, lists)
        try:
            body = await server_state.local(caller_of(request), key=request.scope.get(KEY)).answer(operation, args)
        except AnsweredError as before:
            return JsonBytes(before.body, before.status, headers=[REPLAYED])
        server_state.after(operation)
        version = msgspec.json.decode(body, type=_Versioned).version if operation.etag else None
        return JsonBytes(body, operation.status, version)

    return HTTPRouteHandler(
        path=_litestar_path(operation),
        http_method=operation.method,
        status_code=200,  # `JsonBytes` has the status of the operation.
        opt={"role": operation.role},
        include_in_schema=False,
    )(handle)


async def _read(operation: Operation[Any, Any], request: Request[Any, Any, Any], lists: frozenset[str]) -> Any:
    """The arguments of a request: from the path, and from the body or the query."""
    if operation.body is not None:
        rest = operation.rest_type(**{operation.body: read_value(await request.body())})
    elif operation.takes_body:
        rest = read_json(operation.rest_type, await request.body())
    else:
        given = parse_qs(request.scope["query_string"].decode("latin-1"), keep_blank_values=True)
        rest = read_arguments(operation.rest_type, _flat(given, lists), texts=True)
    for name, header in header_fields(operation.rest_type).items():
        if (given := request.headers.get(header)) is not None:
            rest = msgspec.structs.replace(rest, **{name: _from_header(header, given)})
    if not operation.path_fields:
        return rest
    path = read_arguments(operation.path_type, _path_values(operation, request.path_params), texts=True)
    return operation.args(**msgspec.structs.asdict(path), **msgspec.structs.asdict(rest))


def _from_header(header: str, given: str) -> str | bool | None:
    """A condition: the version in `If-Match`, or whether `If-None-Match: *` asks for a new object."""
    if header == "If-None-Match":
        return given.strip() == "*"
    return given.strip().removeprefix("W/").strip('"') or None


def _path_values(operation: Operation[Any, Any], found: dict[str, Any]) -> dict[str, Any]:
    long = operation.long_field
    return found if long is None else {**found, long: str(found[long]).lstrip("/")}


def _flat(given: dict[str, list[str]], lists: frozenset[str]) -> dict[str, Any]:
    for name, values in given.items():
        if len(values) > 1 and name not in lists:
            raise ArgumentError(name, "is given more than once")
    return {name: values if name in lists else values[0] for name, values in given.items()}


def list_fields(kind: type[msgspec.Struct]) -> frozenset[str]:
    """The fields of a Struct that may be repeated in a query."""
    return frozenset(
        each.name for each in msgspec.structs.fields(kind) if get_origin(bare_type(each.type)) in (list, tuple)
    )


def _litestar_path(operation: Operation[Any, Any]) -> str:
    kinds = {each.name: bare_type(each.type) for each in msgspec.structs.fields(operation.args)}

    def typed(at: re.Match[str]) -> str:
        kind = "path" if at[1] == operation.long_field else "int" if kinds[at[1]] is int else "str"
        return f"{{{at[1]}:{kind}}}"

    return re.sub(r"\{(\w+)\}", typed, operation.path)
