"""Checks of every request, and headers of every response.

In: the host's name (so that no foreign page can point its own name at this machine), the size of the body, the
caller, and for browsers that the request comes from a page of ours. Out: headers that forbid a page to load or run
anything but our own files, an ETag, gzip.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import hmac
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any
from urllib.parse import urlsplit

import msgspec
import structlog

from tidemill.core.accounts import Caller
from tidemill.core.web.address import is_loopback
from tidemill.engine.authentication import Authenticator, bearer_token
from tidemill.engine.jobs.origin import enter_request
from tidemill.engine.telemetry.tracing import continuing, request_span
from tidemill.server.fair_pool import ASKED_AT
from tidemill.server.local_socket import SOCKET_USER
from tidemill.server.middleware.authentication import CALLER, csrf_token
from tidemill.server.middleware.idempotency import IdempotentRequests, replay_body
from tidemill.server.problems import MEDIA_TYPE, Refused, problem_of
from tidemill.server.settings import ServerSettings

log = structlog.get_logger("tidemill.server")

SAFE = ("GET", "HEAD", "OPTIONS")
MOST_HEAD = 48 * 1024
TOO_LONG = f"the request's address and headers have more than {MOST_HEAD:,} bytes"
BODY_WITHIN = 30.0
WORTH_GZIP = 1024
STRANGERS_BODY = 16 * 1024  # The largest body without a caller: enough to log in.
WEBHOOKS = "/api/v1/webhooks/"  # A signature over the whole body stands in for a caller.

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", CSP.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
)
HSTS = (b"strict-transport-security", b"max-age=31536000")


class Middleware:
    """An ASGI application around another."""

    def __init__(
        self, inner: Any, authenticator: Authenticator, settings: ServerSettings, repeats: IdempotentRequests
    ) -> None:
        self._inner = inner
        self._authenticator = authenticator
        self._settings = settings
        self._repeats = repeats
        self._names = {name.lower() for name in (settings.host, *settings.names)}
        self._headers = [*HEADERS, HSTS] if settings.is_tls else list(HEADERS)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
                return
            await self._inner(scope, receive, send)
            return
        began = time.monotonic()
        ASKED_AT.set(began)
        headers = dict(scope["headers"])
        reply = Reply(send, scope["method"], headers, self._headers)
        parent, method = header_text(headers, b"traceparent"), scope["method"]
        enter_request(method, scope["path"])  # Sets a context variable: each request is a task of its own.
        with continuing(parent) if method in SAFE else request_span(parent, method, scope["path"]):
            await self._answer(scope, receive, headers, reply, began)

    async def _answer(self, scope: Any, receive: Any, headers: dict[bytes, bytes], reply: Reply, began: float) -> None:
        try:
            caller, body = await self._let_in(scope, headers, receive)
            scope[CALLER] = caller
            if body is None:
                asked = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
                await self._inner(asked, receive, reply)
            elif _is_repeatable(scope, headers, caller):
                key = header_text(headers, b"idempotency-key") or ""
                await self._repeats.once(self._inner, scope, body, receive, reply, scope[CALLER], key)
            else:
                await self._inner(scope, replay_body(body, receive), reply)
        except Exception as error:
            if reply.started:
                raise
            answer, more = problem_of(error)
            await reply.problem(answer.status, msgspec.json.encode(answer), more.items())
        finally:
            if scope["method"] not in SAFE:
                log.info(
                    "request",
                    method=scope["method"],
                    path=scope["raw_path"].decode("latin-1"),
                    status=reply.status,
                    ms=round((time.monotonic() - began) * 1000, 1),
                    who=getattr(scope.get(CALLER), "name", None),
                )

    async def _let_in(
        self, scope: Any, headers: dict[bytes, bytes], receive: Any
    ) -> tuple[Caller | None, bytes | None]:
        address = len(scope["raw_path"]) + len(scope["query_string"])
        if sum(len(name) + len(value) for name, value in scope["headers"]) + address > MOST_HEAD:
            raise Refused(431, TOO_LONG)
        host = header_text(headers, b"host") or ""
        if not self._is_ours(host):
            raise Refused(421, f"this server is not called {host[:100]!r}: name it with --name")
        cookie = read_cookie(headers, cookie_name(self._settings))
        client = scope["client"][0] if scope.get("client") else "?"
        user = scope.get(SOCKET_USER)
        caller = await self._authenticator.find(
            bearer_token(header_text(headers, b"authorization")), cookie, client=client, socket_user=user
        )
        if b"authorization" not in headers and (scope["method"] not in SAFE or _is_api(scope["path"])):
            _check_site(headers)
        if scope["method"] in SAFE:
            return caller, None
        if b"authorization" not in headers:
            self._check_page(host, headers, caller)
        signed = scope["path"].startswith(WEBHOOKS)
        return caller, await self._read(headers, receive, known=caller is not None or signed)

    def _is_ours(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        known = self._settings
        if name in self._names:  # A host's name is in small letters here.
            return True
        if known.is_local:
            return is_loopback(name)
        return not known.names or is_loopback(name)

    def _check_page(self, host: str, headers: dict[bytes, bytes], caller: Caller | None) -> None:
        """A change that a browser asks for must come from a page of ours."""
        origin = header_text(headers, b"origin")
        if origin is not None and origin.partition("://")[2].lower() != host.lower():
            raise Refused(403, "this request comes from a page of another origin")
        if caller is not None and caller.session is not None:
            said = header_text(headers, b"x-csrf-token") or ""
            if not hmac.compare_digest(said.encode("utf-8", "replace"), csrf_token(caller.session).encode()):
                raise Refused(403, "send `csrf` of GET /api/v1/session as the header X-CSRF-Token")

    async def _read(self, headers: dict[bytes, bytes], receive: Any, *, known: bool) -> bytes:
        most = self._settings.most_body if known else min(self._settings.most_body, STRANGERS_BODY)
        whose = "" if known else " before you log in"
        size = header_text(headers, b"content-length") or "0"
        if size.isascii() and size.isdigit() and int(size) > most:
            raise Refused(413, f"the request has {int(size):,} bytes, and {most:,} is the most{whose}")
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_WITHIN):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        raise Refused(400, "the request broke off")
                    body += message.get("body", b"")
                    if len(body) > most:
                        raise Refused(413, f"the request has more than {most:,} bytes, which is the most{whose}")
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError as error:
            raise Refused(408, f"the request did not come within {BODY_WITHIN:g} s") from error


class Reply:
    """The way out: holds an answer back until it is whole, unless it comes in pieces.

    With `before_end`, which stores the answer, an answer is sent whole, once it is stored; an event stream is not.
    """

    def __init__(self, send: Any, method: str, headers: dict[bytes, bytes], more: list[tuple[bytes, bytes]]) -> None:
        self.status: int | None = None
        self.started = False
        self.body = b""
        self.before_end: Callable[[], Awaitable[None]] | None = None
        self._send = send
        self._method = method
        self._asked = headers
        self._more = more
        self._start: Any = None
        self._streaming = False

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status, self.body = message["status"], b""
            message["headers"] = [*message.get("headers", ()), *self._more]
            kind = next((value for name, value in message["headers"] if name.lower() == b"content-type"), b"")
            self._streaming = kind.startswith(b"text/event-stream")
            if self._streaming:
                message["headers"] += [(b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
                self.started = True
                await self._send(message)
                if self._method == "HEAD":  # The response ends here: the streaming code sees a disconnect.
                    await self._send({"type": "http.response.body"})
            else:
                self._start = message
        elif message["type"] == "http.response.body" and not self._streaming:
            in_pieces = message.get("more_body", False) and message.get("body") and self._method != "HEAD"
            if in_pieces and self.before_end is None:
                await self._begin_stream()  # A body in pieces is passed on in pieces.
                await self._send(message)
                return
            self.body += message.get("body", b"")
            if not message.get("more_body", False):
                await self._finish()
        elif self._method != "HEAD":
            await self._send(message)

    async def problem(self, status: int, body: bytes, headers: Iterable[tuple[str, str]] = ()) -> None:
        """Answer with a problem in place of everything else."""
        self.body = b""
        more = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        await self({"type": "http.response.start", "status": status, "headers": [*more, _kind(MEDIA_TYPE.encode())]})
        await self({"type": "http.response.body", "body": body})

    async def whole(self, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Answer with JSON as it stands."""
        await self({"type": "http.response.start", "status": status, "headers": [*headers, _kind(b"application/json")]})
        await self({"type": "http.response.body", "body": body})

    async def _begin_stream(self) -> None:
        self._streaming = self.started = True
        self._start["headers"] += [(b"cache-control", b"no-store"), (b"vary", b"authorization, cookie")]
        await self._send(self._start)

    async def _finish(self) -> None:
        if self.before_end is not None:
            await self.before_end()
        self.started = True
        start, body = self._start, self.body
        headers = [(name, value) for name, value in start["headers"] if name.lower() != b"content-length"]
        named = {name.lower() for name, _ in headers}
        if b"cache-control" not in named:
            headers.append((b"cache-control", b"no-cache" if self._method in SAFE else b"no-store"))
        if self._method in ("GET", "HEAD") and start["status"] == 200 and b"etag" not in named and body:
            tag = b'W/"' + hashlib.blake2b(body, digest_size=12).hexdigest().encode() + b'"'
            headers.append((b"etag", tag))
            if tag in [each.strip() for each in self._asked.get(b"if-none-match", b"").split(b",")]:
                start["status"], body = 304, b""
                self.status = 304
                headers = [(name, value) for name, value in headers if name.lower() != b"content-type"]
        if len(body) >= WORTH_GZIP and b"gzip" in self._asked.get(b"accept-encoding", b""):
            body = gzip.compress(body, compresslevel=1, mtime=0)
            headers += [(b"content-encoding", b"gzip")]
        headers.append((b"vary", b"accept-encoding, authorization, cookie"))
        if start["status"] not in (204, 304):
            headers.append((b"content-length", str(len(body)).encode()))
        start["headers"] = headers
        await self._send(start)
        await self._send({"type": "http.response.body", "body": b"" if self._method == "HEAD" else body})


def _is_repeatable(scope: Any, headers: dict[bytes, bytes], caller: Caller | None) -> bool:
    """Whether the answer of a request is kept under its key; a signed webhook has a key of its own."""
    has_key = b"idempotency-key" in headers and scope["method"] == "POST"
    return caller is not None and has_key and not scope["path"].startswith(WEBHOOKS)


def _is_api(path: str) -> bool:
    """Whether an address needs a caller: the API's, that of an application's page, or the metrics."""
    parts = [part for part in path.split("/") if part]
    return parts[:1] == ["api"] or parts == ["metrics"] or (parts[:1] == ["pages"] and parts[2:3] == ["api"])


def _check_site(headers: dict[bytes, bytes]) -> None:
    if header_text(headers, b"sec-fetch-site") not in (None, "same-origin", "none"):
        raise Refused(403, "this request comes from a page of another site")


def cookie_name(settings: ServerSettings) -> str:
    """The cookie's name; over TLS one that browsers guard."""
    return "__Host-tidemill" if settings.is_tls else "tidemill"


def _kind(value: bytes) -> tuple[bytes, bytes]:
    return (b"content-type", value)


def header_text(headers: dict[bytes, bytes], name: bytes) -> str | None:
    """The value of a header."""
    value = headers.get(name)
    return None if value is None else value.decode("latin-1")


def read_cookie(headers: dict[bytes, bytes], name: str) -> str | None:
    """The value of a cookie."""
    for part in (header_text(headers, b"cookie") or "").split(";"):
        key, _, value = part.strip().partition("=")
        if key == name and value:
            return value
    return None
