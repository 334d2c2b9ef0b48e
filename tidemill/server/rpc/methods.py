"""The methods that gRPC serves: one for each operation, and those of `live.proto`."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, NamedTuple

import msgspec
from google.protobuf.message_factory import GetMessageClass

from tidemill.core.accounts import AccountRole, Caller
from tidemill.ops.operator.operation import Operation
from tidemill.ops.operator.registry import all_operations
from tidemill.ops.operator.validation import read_arguments
from tidemill.server.live.hub import Topics
from tidemill.server.live.live_requests import ask_stream
from tidemill.server.middleware.idempotency import check_idempotency_key
from tidemill.server.rpc import live_pb2, operations_pb2
from tidemill.server.rpc.messages import fill_message, read_request
from tidemill.server.rpc.proto import method_of, service_of
from tidemill.server.server_state import ServerState
from tidemill.store.access.idempotency import AnsweredError, IdempotencyKey

VALUE_PIECE = 1 << 20
DESCRIPTORS = (operations_pb2.DESCRIPTOR, live_pb2.DESCRIPTOR)


class RpcCall(NamedTuple):
    """One call of a method."""

    server_state: ServerState
    caller: Caller
    request: Any
    idempotency_key: str | None = None


class Method(NamedTuple):
    """The role that a method needs, and its function."""

    role: AccountRole
    answer: Callable[[RpcCall], Awaitable[Any]] | None = None
    stream: Callable[[RpcCall], AsyncGenerator[Any]] | None = None
    """For a method that returns many messages."""


def operation_method(operation: Operation[Any, Any]) -> Method:
    """The method that does an operation: fields of the same names go in and out."""
    service, method = service_of(operation), method_of(operation)
    described = operations_pb2.DESCRIPTOR.services_by_name[service].methods_by_name[method]
    response = GetMessageClass(described.output_type)

    async def answer(call: RpcCall) -> Any:
        args = read_arguments(operation.args, read_request(call.request, operation.args))
        key = _key(call, operation, described.full_name)
        try:
            result = await call.server_state.local(call.caller, key=key).do(operation, args)
        except AnsweredError as before:
            result = msgspec.json.decode(before.body, type=operation.result)
        else:
            call.server_state.after(operation)
        return response() if result is None else fill_message(response(), result, operation.result)

    return Method(operation.role, answer)


def _key(call: RpcCall, operation: Operation[Any, Any], name: str) -> IdempotencyKey | None:
    if call.idempotency_key is None or not operation.acts:
        return None
    check_idempotency_key(call.idempotency_key, is_secret=operation.secret)
    request = call.request.SerializeToString(deterministic=True)
    return IdempotencyKey(
        call.caller.name, call.idempotency_key, hashlib.sha256(b"\0".join((name.encode(), request))).digest()
    )


async def ask(call: RpcCall) -> Any:
    request = call.request
    found = await ask_stream(call.server_state, request.stream, list(request.eligibilities), request.payload)
    return live_pb2.AskStreamResponse(
        result=found.result.decode(), failed_plans=list(found.failures), failures=list(found.failures.values())
    )


async def watch(call: RpcCall) -> AsyncGenerator[Any]:
    hub, request = call.server_state.hub, call.request
    hub.check_room(call.caller)
    last_id = request.last_id if request.HasField("last_id") else None
    async for frame in hub.frames(call.caller, Topics.read(request.topics), last_id):
        change = live_pb2.Change(id=frame.id, kind=frame.kind)
        if frame.changes is not None:
            change.queues.extend(frame.changes.queues)
            change.runs.extend(frame.changes.runs)
            change.kinds.extend(frame.changes.kinds)
            change.all_runs = frame.changes.all_runs
        yield change


async def read_large_value(call: RpcCall) -> AsyncGenerator[Any]:
    async for piece in call.server_state.local(call.caller).read_value(call.request.place):
        for start in range(0, len(piece), VALUE_PIECE):
            yield live_pb2.ValuePiece(data=piece[start : start + VALUE_PIECE])


METHODS: dict[tuple[str, str], Method] = {
    **{(service_of(each), method_of(each)): operation_method(each) for each in all_operations()},
    ("Live", "AskStream"): Method("operator", ask),
    ("Live", "WatchChanges"): Method("viewer", stream=watch),
    ("Live", "ReadValue"): Method("viewer", stream=read_large_value),
}
