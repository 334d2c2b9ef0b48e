"""Serves `tidemill.proto` beside HTTP: the same callers, the same roles, the same errors in gRPC's own words."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import structlog
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from tidemill.core.errors import ConfigError
from tidemill.engine.authentication import find_grpc_caller
from tidemill.ops.operator.errors import kind_of
from tidemill.server.middleware.authentication import require_role
from tidemill.server.problems import Refused, problem_of
from tidemill.server.rpc.methods import VERBS, Verb
from tidemill.server.rpc.tidemill_pb2 import DESCRIPTOR
from tidemill.server.server_state import ServerState
from tidemill.server.settings import ServerSettings
from tidemill.streams.live.guarded_reflection import GuardedReflection

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

#: The statuses of HTTP in the words of gRPC.
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
    services = DESCRIPTOR.services_by_name.values()
    names = [service.full_name for service in services]
    server.add_generic_rpc_handlers([_handlers(server_state, service) for service in services])
    healthy = health.aio.HealthServicer()  # pyright: ignore[reportAttributeAccessIssue] - is there at run time
    health_pb2_grpc.add_HealthServicer_to_server(healthy, server)
    reflection.enable_server_reflection((*names, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    where = _listen(server, server_state.settings)
    for name in ("", *names):
        await healthy.set(name, health_pb2.HealthCheckResponse.SERVING)
    await server.start()
    log.info("serving gRPC", at=where)
    try:
        yield
    finally:
        await healthy.enter_graceful_shutdown()
        await server.stop(GRACE)


def _listen(server: Any, settings: ServerSettings) -> str:
    host, port = settings.grpc_address
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
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
        verb, path = VERBS[service.name, method.name], f"{service.name}/{method.name}"
        reading = GetMessageClass(method.input_type).FromString
        writing = GetMessageClass(method.output_type).SerializeToString
        if verb.follow is not None:
            methods[method.name] = grpc.unary_stream_rpc_method_handler(
                _many(server_state, verb, path), reading, writing
            )
        else:
            methods[method.name] = grpc.unary_unary_rpc_method_handler(_one(server_state, verb, path), reading, writing)
    return grpc.method_handlers_generic_handler(service.full_name, methods)


def _one(server_state: ServerState, verb: Verb, path: str) -> Callable[[Any, Any], Awaitable[Any]]:
    act = verb.act
    assert act is not None, path  # noqa: S101 - a method gives one message or many

    async def call(request: Any, context: Any) -> Any:
        began, caller, code = time.perf_counter(), None, grpc.StatusCode.OK
        try:
            caller = await find_grpc_caller(server_state.authenticator, context)
            return await act(
                server_state, require_role(caller, verb.role, read_only=server_state.settings.read_only), request
            )
        except asyncio.CancelledError:
            code = grpc.StatusCode.CANCELLED
            raise
        except Exception as error:
            code, detail = _told(error)
            await context.abort(code, detail)
            raise
        finally:
            if verb.role != "viewer":
                ms = round((time.perf_counter() - began) * 1000, 1)
                log.info("call", method=path, status=code.name, ms=ms, who=None if caller is None else caller.name)

    return call


def _many(server_state: ServerState, verb: Verb, path: str) -> Callable[[Any, Any], Awaitable[None]]:
    follow = verb.follow
    assert follow is not None, path  # noqa: S101 - a method gives one message or many

    async def call(request: Any, context: Any) -> None:
        try:
            caller = await find_grpc_caller(server_state.authenticator, context)
            known = require_role(caller, verb.role, read_only=server_state.settings.read_only)
            async with aclosing(follow(server_state, known, request)) as messages:
                async for message in messages:
                    await _write(context, message)
        except Exception as error:
            await context.abort(*_told(error))
            raise

    return call


async def _write(context: Any, message: Any) -> None:
    try:
        async with asyncio.timeout(READ_WITHIN):
            await context.write(message)
    except TimeoutError as error:
        raise Refused(429, f"nothing was read of this stream for {READ_WITHIN:g} s") from error


def _admit_viewer(server_state: ServerState) -> Callable[[Any], Awaitable[None]]:
    """Aborts calls of those who may not even look."""

    async def admit(context: Any) -> None:
        try:
            require_role(await find_grpc_caller(server_state.authenticator, context), "viewer", read_only=False)
        except Exception as error:
            await context.abort(*_told(error))
            raise

    return admit


def _told(error: Exception) -> tuple[grpc.StatusCode, str]:
    """The code and the message for an error."""
    told, _ = problem_of(error)
    kind = kind_of(error)
    if kind is not None:
        return grpc.StatusCode[kind.code], told.detail
    return CODES.get(told.status, grpc.StatusCode.INTERNAL), told.detail
