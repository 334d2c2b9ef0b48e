"""Serves `operations.proto` and `live.proto` beside HTTP: the same callers and roles, and errors as gRPC statuses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import structlog
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from tidemill.core.errors import ConfigError
from tidemill.core.web.address import format_address
from tidemill.engine.authentication import find_grpc_caller
from tidemill.engine.jobs.origin import enter_request
from tidemill.engine.telemetry.tracing import continuing, request_span
from tidemill.ops.operator.errors import kind_of
from tidemill.server.middleware.authentication import require_role
from tidemill.server.problems import Refused, problem_of
from tidemill.server.rpc.methods import DESCRIPTORS, METHODS, Method, RpcCall
from tidemill.server.server_state import ServerState
from tidemill.server.settings import ServerSettings
from tidemill.server.stream_endpoint.grpc_server import GuardedReflection, running_server

log = structlog.get_logger("tidemill.server")

GRACE = 3.0
MOST_CALLS = 1000
READ_WITHIN = 30.0

#: How long connections last, in milliseconds. Clients reconnect by themselves; those that read nothing are closed then.
LASTING = (
    ("grpc.server_handshake_timeout_ms", 20_000),
    ("grpc.max_connection_idle_ms", 300_000),
    ("grpc.max_connection_age_ms", 1_800_000),
    ("grpc.max_connection_age_grace_ms", 360_000),
)

#: The gRPC statuses of HTTP statuses.
CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    409: grpc.StatusCode.FAILED_PRECONDITION,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}


@asynccontextmanager
async def serving_grpc(server_state: ServerState) -> AsyncIterator[None]:
    """Serve gRPC while the block lasts, at the address that the settings name."""
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", server_state.settings.most_body),
            ("grpc.max_concurrent_streams", MOST_CALLS),
            ("grpc.so_reuseport", 0),
            *LASTING,
        ],
        interceptors=[GuardedReflection(_admit_viewer(server_state))],
        maximum_concurrent_rpcs=MOST_CALLS,
    )
    services = [service for file in DESCRIPTORS for service in file.services_by_name.values()]
    server.add_generic_rpc_handlers([_handlers(server_state, service) for service in services])
    where = _listen(server, server_state.settings)
    async with running_server(server, [service.full_name for service in services], grace=GRACE):
        log.info("serving gRPC", at=where)
        yield


def _listen(server: Any, settings: ServerSettings) -> str:
    where = format_address(*settings.grpc_address)
    try:
        if settings.tls_cert is None or settings.tls_key is None:
            server.add_insecure_port(where)
        else:
            pair = (Path(settings.tls_key).read_bytes(), Path(settings.tls_cert).read_bytes())
            server.add_secure_port(where, grpc.ssl_server_credentials([pair]))
    except (RuntimeError, OSError) as error:
        raise ConfigError(f"gRPC cannot be served at {where}: {error}; choose another address with --grpc") from error
    return where


def _handlers(server_state: ServerState, service: ServiceDescriptor) -> Any:
    methods: dict[str, Any] = {}
    for method in service.methods:
        served, path = METHODS[service.name, method.name], f"{service.name}/{method.name}"
        reading = GetMessageClass(method.input_type).FromString
        writing = GetMessageClass(method.output_type).SerializeToString
        if served.stream is not None:
            handler = grpc.unary_stream_rpc_method_handler(_many(server_state, served, path), reading, writing)
        else:
            handler = grpc.unary_unary_rpc_method_handler(_one(server_state, served, path), reading, writing)
        methods[method.name] = handler
    return grpc.method_handlers_generic_handler(service.full_name, methods)


def _one(server_state: ServerState, method: Method, path: str) -> Callable[[Any, Any], Awaitable[Any]]:
    answer = method.answer
    assert answer is not None, path  # noqa: S101 - a method returns one message or many

    async def call(request: Any, context: Any) -> Any:
        began, caller, code = time.perf_counter(), None, grpc.StatusCode.OK
        try:
            caller = await find_grpc_caller(server_state.authenticator, context)
            known = require_role(caller, method.role, read_only=server_state.settings.read_only)
            enter_request("gRPC", path)  # Sets a context variable: each call is a task of its own.
            with _traced(context, path, changes=method.role != "viewer"):
                return await answer(RpcCall(server_state, known, request, _idempotency_key(context)))
        except asyncio.CancelledError:
            code = grpc.StatusCode.CANCELLED
            raise
        except Exception as error:
            code, *details = _status_of(error)
            await context.abort(code, *details)
            raise
        finally:
            if method.role != "viewer":
                ms = round((time.perf_counter() - began) * 1000, 1)
                log.info("call", method=path, status=code.name, ms=ms, who=None if caller is None else caller.name)

    return call


def _traced(context: Any, path: str, *, changes: bool) -> AbstractContextManager[None]:
    """Continue the trace that the metadata of a call names, with a span if the call changes something."""
    given = dict(context.invocation_metadata() or ()).get("traceparent")
    parent = given.decode(errors="replace") if isinstance(given, bytes) else given
    return request_span(parent, "gRPC", path) if changes else continuing(parent)


def _many(server_state: ServerState, method: Method, path: str) -> Callable[[Any, Any], Awaitable[None]]:
    stream = method.stream
    assert stream is not None, path  # noqa: S101 - a method returns one message or many

    async def call(request: Any, context: Any) -> None:
        try:
            caller = await find_grpc_caller(server_state.authenticator, context)
            known = require_role(caller, method.role, read_only=server_state.settings.read_only)
            async with aclosing(stream(RpcCall(server_state, known, request))) as messages:
                async for message in messages:
                    await _write(context, message)
        except Exception as error:
            await context.abort(*_status_of(error))
            raise

    return call


async def _write(context: Any, message: Any) -> None:
    try:
        async with asyncio.timeout(READ_WITHIN):
            await context.write(message)
    except TimeoutError as error:
        raise Refused(429, f"nothing was read of this stream for {READ_WITHIN:g} s") from error


def _admit_viewer(server_state: ServerState) -> Callable[[Any], Awaitable[None]]:
    """Return a function that aborts the calls of callers without the role viewer."""

    async def admit(context: Any) -> None:
        try:
            require_role(await find_grpc_caller(server_state.authenticator, context), "viewer", read_only=False)
        except Exception as error:
            await context.abort(*_status_of(error))
            raise

    return admit


def _idempotency_key(context: Any) -> str | None:
    given = dict(context.invocation_metadata() or ()).get("idempotency-key")
    return None if given is None else str(given)


def _status_of(error: Exception) -> tuple[grpc.StatusCode, str, tuple[tuple[str, str], ...]]:
    """The status of an error, its message, and its problem type as metadata."""
    problem, _ = problem_of(error)
    kind = kind_of(error)
    code = CODES.get(problem.status, grpc.StatusCode.INTERNAL) if kind is None else grpc.StatusCode[kind.code]
    return code, problem.detail, (("problem-type", problem.type),)
