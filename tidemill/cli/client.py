"""A running server in place of the database: its HTTP API, asked over one connection.

What acts carries an idempotency key. Where the answer is lost it is asked for again with the same key, and nothing is
done twice.
"""

from __future__ import annotations

import http.client
import secrets
import ssl
import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from tidemill.cli.render import timely
from tidemill.core.errors import ConfigError, NotFoundError, TidemillError
from tidemill.engine.telemetry.address import is_loopback
from tidemill.server.resources.cursor import write_cursor

API = "/api/v1"
CONNECTED_WITHIN = 6.0
ANSWERED_WITHIN = 120.0
ASKED_AGAIN_FOR = 6.0
AGAIN_AFTER = 0.25
PAGE = 200

Row = dict[str, Any]


class ServerError(TidemillError):
    """The server cannot be reached, or refuses what it is asked for."""


class _Problem(msgspec.Struct):
    """What a server says is wrong."""

    detail: str
    errors: list[dict[str, str]] = []


class Remote:
    """One server's API, for as long as the block lasts."""

    def __init__(self, url: str, token: str | None = None, *, plain_http: bool = False) -> None:
        self._secure, host, port, self._path = _read_url(url)
        shown = f"[{host}]" if ":" in host else host
        self.where = f"{'https' if self._secure else 'http'}://{shown}:{port}{self._path}"
        if token is not None and not (self._secure or is_loopback(host) or plain_http):
            raise ConfigError(
                f"the token would be sent to {self.where} for everybody on the way to read: use https, or say "
                "--plain-http if they may"
            )
        self._headers = {"Accept": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        if self._secure:
            context = ssl.create_default_context()
            self._line = http.client.HTTPSConnection(host, port, timeout=CONNECTED_WITHIN, context=context)
        else:
            self._line = http.client.HTTPConnection(host, port, timeout=CONNECTED_WITHIN)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._line.close()

    def get(self, *parts: object, **query: Any) -> Any:
        """What is at an address, such as `get("jobs", 12)`."""
        return self._ask("GET", parts, query)

    def row(self, *parts: object, **query: Any) -> Row:
        """One object, with its moments as such."""
        return timely(self.get(*parts, **query))

    def items(self, *parts: object, **query: Any) -> list[Row]:
        """A list that is short enough to come whole."""
        return [timely(row) for row in self.get(*parts, **query)["items"]]

    def pages(self, *parts: object, limit: int, before: int | None = None, **query: Any) -> list[Row]:
        """So many of a list that comes in pages, newest first; only what is older than `before`."""
        found: list[Row] = []
        cursor = None if before is None else write_cursor(max(1, before))
        while len(found) < limit:
            page = self.get(*parts, limit=min(PAGE, limit - len(found)), cursor=cursor, **query)
            found += page["items"]
            cursor = page["next"]
            if cursor is None:
                break
        return [timely(row) for row in found]

    def post(self, *parts: object, body: object = None) -> Any:
        """Have something done, once however often it is asked for."""
        return self._ask("POST", parts, body=body, acts=True)

    def preview(self, *parts: object, body: object) -> Any:
        """Ask what would be done."""
        return self._ask("POST", parts, body=body)

    def put(self, *parts: object, body: object) -> Any:
        """Set something, which may be said twice."""
        return self._ask("PUT", parts, body=body, acts=True)

    def delete(self, *parts: object) -> None:
        """Have something end; that it is gone when this has to be asked again is as it should be."""
        self._ask("DELETE", parts, acts=True)

    def _ask(
        self,
        method: str,
        parts: Iterable[object],
        query: Mapping[str, Any] | None = None,
        *,
        body: object = None,
        acts: bool = False,
    ) -> Any:
        """Send a request until it is answered, or nobody answers for a while. All requests here may be repeated."""
        address = "/".join((self._path + API, *(quote(str(part), safe="") for part in parts)))
        if asked := {name: _text(value) for name, value in (query or {}).items() if value is not None}:
            address += f"?{urlencode(asked, doseq=True)}"
        headers, data = dict(self._headers), None
        if acts and method == "POST":
            headers["Idempotency-Key"] = secrets.token_urlsafe(16)
        if body is not None:
            data, headers["Content-Type"] = msgspec.json.encode(body), "application/json"
        give_up = time.monotonic() + ASKED_AGAIN_FOR
        is_sent = is_lost = False
        while True:
            try:
                if self._line.sock is None:
                    self._connect()
                is_sent = True
                self._line.request(method, address, data, headers)
                answer = self._line.getresponse()
                return self._read(answer, answer.read())
            except NotFoundError:
                if method == "DELETE" and is_lost:
                    return None
                raise
            except (OSError, http.client.HTTPException) as error:
                self._line.close()
                is_lost = is_sent
                if not is_sent:
                    raise ServerError(f"no server answers at {self.where}: {_reason(error)}") from error
                if time.monotonic() > give_up:
                    doubt = "; it may have done what you asked for: look before you repeat it" if acts else ""
                    raise ServerError(f"the server at {self.where} was lost before it had answered{doubt}") from error
                time.sleep(AGAIN_AFTER)

    def _connect(self) -> None:
        self._line.connect()
        self._line.sock.settimeout(ANSWERED_WITHIN)

    def _read(self, answer: http.client.HTTPResponse, body: bytes) -> Any:
        if answer.status == 204:
            return None
        if answer.status == 401:
            if "Authorization" in self._headers:
                raise ServerError(f"{self.where} does not let this token in: it is wrong, has expired or was revoked")
            raise ServerError(f"{self.where} asks for a token: put it into TIDEMILL_TOKEN, or into a --token-file")
        try:
            if 200 <= answer.status < 300:
                return msgspec.json.decode(body)
            problem = msgspec.json.decode(body, type=_Problem)
        except msgspec.MsgspecError as error:
            what = "has no server that answers" if answer.status >= 500 else "is not a Tidemill server"
            raise ServerError(f"{self.where} {what}: {answer.status} {answer.reason}") from error
        fields = "; ".join(f"{each.get('field', '')}: {each.get('message', '')}" for each in problem.errors)
        told = f"{problem.detail}: {fields}" if fields else problem.detail
        raise NotFoundError(told) if answer.status == 404 else ServerError(told)


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


def _read_url(url: str) -> tuple[bool, str, int, str]:
    """Whether it is secure, host, port, and the path that everything is under."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        parts, host, port = None, None, None
    if parts is None or parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
        shown = "" if "@" in url else f" {url!r}"
        raise ConfigError(f"the server's address{shown} is not one: write it as http://127.0.0.1:7433")
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
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(said.split()) or type(error).__name__
