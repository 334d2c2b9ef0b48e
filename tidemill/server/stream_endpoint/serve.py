"""Serves live requests over gRPC (`live.proto`, with reflection and health) and HTTP.

    POST /v1/run   {"eligibilities": ["spam_comment"], "payload": {...}, "timeout": 2.0}
    GET  /healthz  200 while requests are accepted

A request needs a token with the role operator: `Authorization: Bearer tm_...`. Requests from web pages of other origins
are refused. Errors: no token (UNAUTHENTICATED, 401), a role that is not enough (PERMISSION_DENIED, 403), too many open
requests (RESOURCE_EXHAUSTED, 429), no engine ready (UNAVAILABLE, 503), deadline exceeded (DEADLINE_EXCEEDED, 504),
invalid request (INVALID_ARGUMENT, 400).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import urlsplit

import msgspec
import structlog

from tidemill.core.accounts import Caller, check_role
from tidemill.core.errors import ConfigError, ForbiddenError, TooManyAttemptsError
from tidemill.core.web.address import format_address, is_loopback, read_address
from tidemill.engine.authentication import Authenticator, bearer_token, find_grpc_caller
from tidemill.store.database import Database
from tidemill.streams.definition.stream import Stream
from tidemill.streams.runner.live_requests import (
    LiveError,
    LiveRequests,
    LiveResult,
    NoTokenError,
    NotPermittedError,
    SaturatedError,
)

log = structlog.get_logger("tidemill.streams")

MOST_BODY = 16 << 20
LONGEST = 300.0
BODY_WITHIN = 30.0
ANYWHERE = ("0.0.0.0", "::")  # noqa: S104 - compared with, not bound to

#: For each kind of error: the status of gRPC and of HTTP.
STATUSES = {
    "invalid": ("INVALID_ARGUMENT", 400),
    "unauthenticated": ("UNAUTHENTICATED", 401),
    "forbidden": ("PERMISSION_DENIED", 403),
    "saturated": ("RESOURCE_EXHAUSTED", 429),
    "unavailable": ("UNAVAILABLE", 503),
    "deadline": ("DEADLINE_EXCEEDED", 504),
}


class Request(msgspec.Struct, forbid_unknown_fields=True):
    """A request over HTTP."""

    eligibilities: list[str]
    payload: msgspec.Raw
    timeout: float | None = None
    headers: dict[str, str] = {}


@asynccontextmanager
async def serving_stream(stream: Stream, live_requests: LiveRequests, database: Database) -> AsyncIterator[None]:
    """Serve live requests at the addresses of the stream while the block runs."""
    async with contextlib.AsyncExitStack() as stack:
        if stream.grpc is None and stream.http is None:
            yield
            return
        authenticator = Authenticator(database, database.application or "", trust_local=stream.live_trust_local)
        recording = asyncio.create_task(authenticator.record_uses(), name="tidemill-uses")
        stack.push_async_callback(_end, recording)
        if stream.grpc is not None:
            await stack.enter_async_context(_grpc(stream, live_requests, stream.grpc, authenticator))
        if stream.http is not None:
            await stack.enter_async_context(_http(stream, live_requests, stream.http, authenticator))
        yield


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _admit(finding: Awaitable[Caller | None]) -> None:
    """Raise unless the caller may run the stream's plans."""
    try:
        caller = await finding
        if caller is None:
            raise NoTokenError("this needs a token: `tidemill token create NAME --role operator` makes one")
        check_role(caller, "operator")
    except ForbiddenError as error:
        raise NotPermittedError(str(error)) from error
    except TooManyAttemptsError as error:
        raise SaturatedError(str(error)) from error


# -- gRPC -----------------------------------------------------------------------------------------


@asynccontextmanager
async def _grpc(
    stream: Stream, live_requests: LiveRequests, address: str, authenticator: Authenticator
) -> AsyncIterator[None]:
    import grpc

    from tidemill.server.stream_endpoint.grpc_server import GuardedReflection, running_server
    from tidemill.server.stream_endpoint.live_pb2 import DESCRIPTOR, RunRequest, RunResponse

    service_name = DESCRIPTOR.services_by_name["Live"].full_name

    async def admit(context: Any) -> None:
        try:
            await _admit(find_grpc_caller(authenticator, context))
        except LiveError as error:
            await context.abort(getattr(grpc.StatusCode, STATUSES[error.status][0]), str(error))
            raise

    async def run(request: Any, context: Any) -> Any:
        await admit(context)
        left = context.time_remaining()
        timeout = LONGEST if left is None else min(left, LONGEST)
        headers = {name: value.encode() for name, value in request.headers.items()}
        try:
            found = await live_requests.ask(request.payload, request.eligibilities, timeout=timeout, headers=headers)
        except LiveError as error:
            await context.abort(getattr(grpc.StatusCode, STATUSES[error.status][0]), str(error))
            raise
        return RunResponse(result=found.result, failures=found.failures)

    server = grpc.aio.server(interceptors=[GuardedReflection(admit)])
    method = grpc.unary_unary_rpc_method_handler(
        run, request_deserializer=RunRequest.FromString, response_serializer=RunResponse.SerializeToString
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service_name, {"Run": method}),))
    host, port = read_address(address)
    try:
        server.add_insecure_port(format_address(host, port))
    except RuntimeError as error:
        raise ConfigError(f"stream {stream.name}: gRPC cannot be served at {address}: {error}") from error
    async with running_server(server, (service_name,), grace=5.0) as healthy:
        log.info("live requests over gRPC", stream=stream.name, at=format_address(host, port))

        async def report_drain() -> None:
            """Load balancers send nothing more from the first moment of a drain."""
            await live_requests.closing.wait()
            await healthy.enter_graceful_shutdown()

        reporting = asyncio.create_task(report_drain(), name="tidemill-health")
        try:
            yield
        finally:
            await _end(reporting)


# -- HTTP -----------------------------------------------------------------------------------------


@asynccontextmanager
async def _http(
    stream: Stream, live_requests: LiveRequests, address: str, authenticator: Authenticator
) -> AsyncIterator[None]:
    import uvicorn

    listening = asyncio.Event()

    class LiveServer(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield  # The role handles signals.

        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            listening.set()

    host, port = read_address(address)
    config = uvicorn.Config(
        _application(live_requests, host, authenticator),
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        lifespan="off",
        loop="none",
    )
    server = LiveServer(config)
    serving = asyncio.create_task(_serve(server, stream.name, address))
    started = asyncio.create_task(listening.wait())
    await asyncio.wait([serving, started], return_when=asyncio.FIRST_COMPLETED)
    started.cancel()
    if serving.done():
        serving.result()
    log.info("live requests over HTTP", stream=stream.name, at=f"http://{format_address(host, port)}/v1/run")
    try:
        yield
    finally:
        server.should_exit = True
        await serving


async def _serve(server: Any, stream: str, address: str) -> None:
    try:
        await server.serve()
    except SystemExit:
        raise ConfigError(f"stream {stream}: HTTP cannot be served at {address}: is the port in use?") from None


def _application(live_requests: LiveRequests, bound: str, authenticator: Authenticator) -> Any:
    async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        status, body = await _answer(live_requests, bound, authenticator, scope, receive)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        if status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if status == 429:
            headers.append((b"retry-after", b"1"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return application


async def _answer(
    live_requests: LiveRequests, bound: str, authenticator: Authenticator, scope: dict[str, Any], receive: Any
) -> tuple[int, bytes]:
    path, method = scope["path"], scope["method"]
    sent = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    if (refused := _refusal(bound, sent)) is not None:
        return refused
    if path == "/healthz":
        return (503, _error_body("unavailable", "stopping")) if live_requests.closed else (200, b'{"status":"serving"}')
    if path != "/v1/run":
        return 404, _error_body("invalid", "there is only /v1/run and /healthz here")
    if method != "POST":
        return 405, _error_body("invalid", "only POST works here")
    if sent.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        return 415, _error_body("invalid", "send JSON, with content-type: application/json")
    client = scope["client"][0] if scope.get("client") else "?"
    try:
        await _admit(authenticator.find(bearer_token(sent.get("authorization")), None, client=client))
    except LiveError as error:
        return STATUSES[error.status][1], _error_body(error.status, str(error))
    try:
        async with asyncio.timeout(BODY_WITHIN):
            body = await _body(receive)
    except TimeoutError:
        return 408, _error_body("invalid", f"the request did not come within {BODY_WITHIN:g} s")
    if body is None:
        return 400, b""
    if len(body) > MOST_BODY:
        return 413, _error_body("invalid", f"a request may have {MOST_BODY} bytes")
    try:
        request = msgspec.json.decode(body, type=Request)
        timeout = LONGEST if request.timeout is None else min(request.timeout, LONGEST)
        headers = {name: value.encode() for name, value in request.headers.items()}
        found = await live_requests.ask(bytes(request.payload), request.eligibilities, timeout=timeout, headers=headers)
    except msgspec.DecodeError as error:
        return 400, _error_body("invalid", f"the request cannot be read: {error}")
    except LiveError as error:
        return STATUSES[error.status][1], _error_body(error.status, str(error))
    return 200, _found(found)


def _refusal(bound: str, headers: dict[str, str]) -> tuple[int, bytes] | None:
    """The refusal of a request for another host, or from a web page of another origin; None if it is accepted."""
    host = headers.get("host", "")
    name = _host_of(f"//{host}")
    if bound not in ANYWHERE and name != bound.lower() and not is_loopback(name):
        return 421, _error_body("invalid", f"this is not {host[:100]!r}")
    origin = headers.get("origin")
    foreign = origin is not None and origin.partition("://")[2].lower() != host.lower()
    if foreign or headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return 403, _error_body("invalid", "this request comes from a page of another origin")
    return None


def _host_of(address: str) -> str:
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""


async def _body(receive: Any) -> bytes | None:
    """The body of a request, cut off a little above the limit; None if the client has disconnected."""
    body = bytearray()
    more = True
    while more and len(body) <= MOST_BODY:
        part = await receive()
        if part["type"] != "http.request":
            return None
        body += part.get("body", b"")
        more = part.get("more_body", False)
    return bytes(body)


def _found(found: LiveResult) -> bytes:
    return msgspec.json.encode({"result": msgspec.Raw(found.result), "failures": found.failures})


def _error_body(status: str, words: str) -> bytes:
    return msgspec.json.encode({"error": status, "message": words})
