"""A running server's HTTP API over one connection: requests that may be repeated, and the stream of changes.

A request that changes something carries an idempotency key. When the answer is lost, the request is sent again with the
same key, so that nothing is done twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import secrets
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from tidemill.core.errors import ConfigError, ConflictError, NotFoundError, TidemillError
from tidemill.core.web.address import is_loopback
from tidemill.engine.event_wait import wait_for_event
from tidemill.ops.operator.errors import error_of

API = "/api/v1"
CONNECT_TIMEOUT = 6.0
ANSWER_TIMEOUT = 120.0
RETRY_FOR = 6.0
RETRY_AFTER = 0.25
PIECE = 1 << 20

#: A server's Unix socket: `unix:/path/to/shop.server.sock`.
UNIX, LOCAL_URL = "unix:", "http://localhost"


class ServerError(TidemillError):
    """The server cannot be reached, or refuses a request."""


class _Problem(msgspec.Struct):
    """What a server says is wrong."""

    detail: str
    type: str = ""
    errors: list[dict[str, str]] = []


class HttpClient:
    """One server, and the token to send to it."""

    def __init__(self, url: str, token: str | None = None, *, plain_http: bool = False) -> None:
        self._socket = url.removeprefix(UNIX) if url.startswith(UNIX) else None
        self._secure, self._host, self._port, self._path = _read_url(url if self._socket is None else LOCAL_URL)
        shown = f"[{self._host}]" if ":" in self._host else self._host
        self.where = self._socket or f"{'https' if self._secure else 'http'}://{shown}:{self._port}{self._path}"
        if token is not None and not (self._secure or is_loopback(self._host) or plain_http):
            raise ConfigError(
                f"the token would be sent to {self.where} unencrypted, for anyone on the network to read: use https, "
                "or allow it with --plain-http"
            )
        self._headers = {"Accept": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._connection = self._connect()
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the connection; a request that is under way fails."""
        _break_off(self._connection)

    def request(
        self,
        method: str,
        parts: Iterable[object],
        query: Mapping[str, Any] | None = None,
        *,
        body: bytes | None = None,
        acts: bool = False,
        keyed: bool = True,
        given_up: threading.Event | None = None,
    ) -> bytes:
        """Send a request until it is answered, or no answer comes for a while. All requests here may be repeated.

        Nothing is sent once the request is `given_up`.
        """
        given_up = given_up or threading.Event()
        address = self._address(parts, query)
        headers = dict(self._headers)
        if acts and method == "POST" and keyed:
            headers["Idempotency-Key"] = secrets.token_urlsafe(16)
        if body is not None:
            headers["Content-Type"] = "application/json"
        give_up = time.monotonic() + RETRY_FOR
        is_sent = is_lost = False
        with self._lock:
            while True:
                try:
                    if self._connection.sock is None:
                        _open(self._connection)
                    if given_up.is_set():
                        raise ServerError(f"the request to {self.where} was given up")
                    is_sent = True
                    self._connection.request(method, address, body, headers)
                    answer = self._connection.getresponse()
                    return self._read(answer, answer.read())
                except ConflictError:
                    # The server that got the request first may still be about to answer it.
                    if not (acts and is_lost) or time.monotonic() > give_up:
                        raise
                    time.sleep(RETRY_AFTER)
                except NotFoundError:
                    if method == "DELETE" and is_lost:
                        return b""
                    raise
                except (OSError, http.client.HTTPException) as error:
                    self._connection.close()
                    is_lost = is_sent
                    if not is_sent:
                        raise ServerError(f"no server answers at {self.where}: {_reason(error)}") from error
                    if time.monotonic() > give_up:
                        doubt = "; it may have done what you asked for: look before you repeat it" if acts else ""
                        lost = f"the server at {self.where} was lost before it had answered{doubt}"
                        raise ServerError(lost) from error
                    time.sleep(RETRY_AFTER)

    async def request_async(self, *args: Any, **more: Any) -> bytes:
        """The same without blocking the event loop; cancelling it breaks the request off."""
        given_up = threading.Event()
        try:
            return await asyncio.to_thread(self.request, *args, given_up=given_up, **more)
        except asyncio.CancelledError:
            given_up.set()  # Otherwise the thread would send the request again.
            self.close()
            raise

    async def stream(self, parts: Iterable[object]) -> AsyncIterator[bytes]:
        """An answer in pieces, on a connection of its own."""
        connection = self._connect()
        try:
            await asyncio.to_thread(_open, connection)
            await asyncio.to_thread(connection.request, "GET", self._address(parts, None), headers=self._headers)
            answer = await asyncio.to_thread(connection.getresponse)
            if answer.status != 200:
                self._read(answer, await asyncio.to_thread(answer.read))
            while piece := await asyncio.to_thread(answer.read, PIECE):
                yield piece
        except (OSError, http.client.HTTPException) as error:
            raise ServerError(f"{self.where} broke off: {_reason(error)}") from error
        finally:
            connection.close()

    @asynccontextmanager
    async def changes(self, topics: tuple[str, ...]) -> AsyncIterator[RemoteChanges]:
        """Follow the server's stream of changes while the block lasts, on a connection of its own."""
        stream = RemoteChanges(self._connect(), self._address(["changes"], {"topic": topics}), self._headers)
        reading = asyncio.create_task(asyncio.to_thread(stream.read))
        try:
            yield stream
        finally:
            stream.close()
            await asyncio.gather(reading, return_exceptions=True)

    def _address(self, parts: Iterable[object], query: Mapping[str, Any] | None) -> str:
        address = "/".join((self._path + API, *(quote(str(part), safe="") for part in parts)))
        if given := {name: _text(value) for name, value in (query or {}).items() if value is not None}:
            address += f"?{urlencode(given, doseq=True)}"
        return address

    def _connect(self) -> http.client.HTTPConnection:
        if self._socket is not None:
            return _UnixConnection(self._socket)
        if not self._secure:
            return http.client.HTTPConnection(self._host, self._port, timeout=CONNECT_TIMEOUT)
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(self._host, self._port, timeout=CONNECT_TIMEOUT, context=context)

    def _read(self, answer: http.client.HTTPResponse, body: bytes) -> bytes:
        if 200 <= answer.status < 300 and (answer.status == 204 or body[:1] in (b"{", b"[")):
            return body
        if answer.status == 401:
            if "Authorization" in self._headers:
                raise ServerError(f"{self.where} rejects this token: it is wrong, has expired or was revoked")
            raise ServerError(
                f"{self.where} asks for a token: put it into TIDEMILL_TOKEN, or into a --token-file; "
                "on the server's machine, its user can also work through its socket (--server unix:PATH)"
            )
        try:
            problem = msgspec.json.decode(body, type=_Problem)
        except msgspec.MsgspecError as error:
            what = "has no server that answers" if answer.status >= 500 else "is not a Tidemill server"
            raise ServerError(f"{self.where} {what}: {answer.status} {answer.reason}") from error
        field = problem.errors[0].get("field", "") if problem.errors else ""
        known = error_of(problem.type, problem.detail, field)
        if known is not None:
            raise known
        fields = "; ".join(f"{each.get('field', '')}: {each.get('message', '')}" for each in problem.errors)
        raise ServerError(f"{problem.detail}: {fields}" if fields else problem.detail)


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=CONNECT_TIMEOUT)
        self._unix_path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._unix_path)


class RemoteChanges:
    """Ends waits when the server's stream names a change."""

    def __init__(self, connection: http.client.HTTPConnection, address: str, headers: Mapping[str, str]) -> None:
        self._connection = connection
        self._connection.auto_open = 0  # A closed connection must not reopen by itself.
        self._address = address
        self._headers = {**headers, "Accept": "text/event-stream"}
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._closed = False

    async def wait(self, seconds: float) -> None:
        """Return at a change, or after this many seconds."""
        await wait_for_event(self._changed, seconds)
        self._changed.clear()

    def read(self) -> None:
        """Read the stream until it is closed; runs in a thread. A lost stream is opened again from where it was."""
        while not self._closed:
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError, AttributeError):
                _open(self._connection)
                if not self._closed:  # `close` finds no socket to break off while it is being connected.
                    self._connection.request("GET", self._address, headers=self._headers)
                    self._follow(self._connection.getresponse())
            self._connection.close()
            if not self._closed:
                time.sleep(RETRY_AFTER)

    def close(self) -> None:
        self._closed = True
        _break_off(self._connection)

    def _follow(self, answer: http.client.HTTPResponse) -> None:
        for line in answer:
            if line.startswith(b"id: "):
                self._headers["Last-Event-ID"] = line[4:].strip().decode()
            elif line.startswith(b"event: "):
                self._loop.call_soon_threadsafe(self._changed.set)


def read_token(file: str | None, token: str | None, usual_file: str | None) -> str | None:
    """The token to send: from a file that was named, else the environment's, else from its file. It is never shown."""
    where = "TIDEMILL_TOKEN"
    if file is not None or not token:
        where = file or usual_file or ""
        if not where:
            return None
        try:
            token = Path(where).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the token file {where} cannot be read: {_reason(error)}") from error
    token = (token or "").strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(f"{where} does not hold a token: put there what `tidemill token create` prints")
    return token


def _open(connection: http.client.HTTPConnection) -> None:
    """Connect soon or fail, and then be patient with answers."""
    connection.connect()
    connection.sock.settimeout(ANSWER_TIMEOUT)


def _break_off(connection: http.client.HTTPConnection) -> None:
    """Close a connection, also while another thread waits for its answer."""
    sock = connection.sock
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
    connection.close()


def _read_url(url: str) -> tuple[bool, str, int, str]:
    """Whether it is secure, host, port, and the path that everything is under."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        parts, host, port = None, None, None
    if parts is None or parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
        shown = "" if "@" in url else f" {url!r}"
        raise ConfigError(f"the server's address{shown} is not one: write it as http://127.0.0.1:7433, or as unix:PATH")
    if parts.username or parts.password:
        raise ConfigError("the server's address holds a password: put a token into TIDEMILL_TOKEN instead")
    secure = parts.scheme == "https"
    return secure, host, port or (443 if secure else 80), parts.path.rstrip("/").removesuffix(API)


def _text(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value).lower() if isinstance(value, bool) else value


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not trusted ({error.verify_message}); SSL_CERT_FILE can name a file with your own "
            "authority's"
        )
    if isinstance(error, ssl.SSLError) and error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
        return "it does not speak TLS; write its address with http://"
    message = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(message.split()) or type(error).__name__
