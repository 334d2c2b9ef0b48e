"""HTTP requests to other machines: every one that the package sends goes through here.

A host is resolved once, its addresses are checked, and the connection goes to an address that was checked: neither a
redirect nor a changed DNS record leads to a machine that only this one can reach. Refused are loopback, private,
link-local, metadata, unspecified, multicast and reserved addresses, also inside IPv4-mapped, 6to4, Teredo and NAT64
addresses, unless `App(allow_hosts=[...])` or `TIDEMILL_ALLOW_HOSTS` names them:

    feeds.internal          the host, at any port        10.1.0.0/16        a network
    127.0.0.1:8080          one port of a host           [::1]:8080         the same for IPv6

An address that the application's own code states (`HttpSource("http://10.0.0.7/feed")`) is allowed as it stands, and
where it redirects to is checked. The proxy that the environment names (`HTTPS_PROXY`) resolves hosts itself;
a host that this machine resolves to a refused address is refused there too.
"""

from __future__ import annotations

import codecs
import contextlib
import ipaddress
import re
import socket
import ssl
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urljoin, urlsplit

import msgspec

from tidemill.core.errors import ConfigError, TidemillError
from tidemill.core.web.address import format_address
from tidemill.core.web.public_url import check_http_url, site_of

if TYPE_CHECKING:
    import http.client

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

REDIRECTS = 5
MOST_BYTES = 64 << 20
_PORTS = {"http": 80, "https": 443}
_AS_GET = (301, 302, 303)
_CHARSET = re.compile(r"charset=[\"']?([\w.:-]+)", re.IGNORECASE)
_PLAIN_PATH = "!#$%&'()*+,/:;=?@[]~"
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
#: Not public, though `ipaddress` may say so: metadata services, NAT64 for local use, site-local addresses.
_RESERVED = tuple(map(ipaddress.ip_network, ("168.63.129.16/32", "192.0.0.0/24", "64:ff9b:1::/48", "fec0::/10")))
#: Kinds of addresses that a host name never stands for, also one that the application's code states.
_NEVER_NAMED = ("unspecified", "multicast", "link-local", "reserved")


class OutboundHttpError(TidemillError):
    """An HTTP request that got no answer; the text holds no path, which may be secret."""


class RefusedAddressError(OutboundHttpError):
    """An HTTP request that was not sent, because it would have reached a machine that is not allowed."""


class HttpAnswer(msgspec.Struct, frozen=True):
    """The answer to a request."""

    status: int
    body: bytes
    location: str | None = None
    """Where a redirect that was not followed leads."""
    reason: str = ""
    headers: dict[str, str] = {}
    """By their names in lower case."""

    def text(self, most: int | None = None) -> str:
        """The beginning of the body, as a message shows it."""
        return self.decoded()[:most].strip()

    def decoded(self, default: str = "utf-8") -> str:
        """The body as text, in the encoding that the server names."""
        named = _CHARSET.search(self.headers.get("content-type", ""))
        try:
            encoding = codecs.lookup(named[1] if named else default).name
            return self.body.decode("utf-8-sig" if encoding == "utf-8" else encoding, errors="replace")
        except (LookupError, UnicodeError):  # Some encodings of Python ignore `errors`.
            return self.body.decode(errors="replace")


class AllowedHosts(msgspec.Struct, frozen=True):
    """The hosts and networks that requests may reach though their addresses are not public."""

    names: frozenset[tuple[str, int | None]] = frozenset()
    networks: tuple[tuple[Network, int | None], ...] = ()

    def covers(self, host: str, port: int, address: Address) -> bool:
        """Whether a host is named, or one of its addresses."""
        if (host, None) in self.names or (host, port) in self.names:
            return True
        address = _unwrap(address)
        return any(
            wanted in (None, port) and address.version == network.version and address in network
            for network, wanted in self.networks
        )


def read_allowed_hosts(entries: Iterable[str]) -> AllowedHosts:
    """The hosts, host:port pairs and networks of a setting; a `ConfigError` names the one that is none of these."""
    names: set[tuple[str, int | None]] = set()
    networks: list[tuple[Network, int | None]] = []
    for entry in entries:
        with contextlib.suppress(ValueError):
            networks.append((ipaddress.ip_network(entry.strip("[]")), None))
            continue
        try:
            parts = urlsplit(f"//{entry}")
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        if not host or parts.path or parts.query or re.search(r"[@*\s]", entry):
            raise ConfigError(f"allow_hosts: {entry!r} is not a host, host:port or network such as 10.0.0.0/8")
        try:
            networks.append((ipaddress.ip_network(host), port))
        except ValueError:
            names.add((host, port))
    return AllowedHosts(frozenset(names), tuple(networks))


_NONE = AllowedHosts()
_allowed: ContextVar[AllowedHosts] = ContextVar("tidemill_allowed_hosts", default=_NONE)


def allow_hosts(entries: Iterable[str]) -> None:
    """Allow hosts for everything that starts from here on: what a process does first with its settings."""
    _allowed.set(read_allowed_hosts(entries))


@contextlib.contextmanager
def allowing_hosts(entries: Iterable[str]) -> Iterator[None]:
    """Allow hosts for what starts within the block."""
    token = _allowed.set(read_allowed_hosts(entries))
    try:
        yield
    finally:
        _allowed.reset(token)


def why_refused(address: Address) -> str | None:
    """What makes an address one that strangers must not choose; None for a public one."""
    address = _unwrap(address)
    for kind in ("loopback", "unspecified", "multicast", "link_local", "private"):
        if getattr(address, f"is_{kind}"):
            return kind.replace("_", "-")
    reserved = any(address.version == network.version and address in network for network in _RESERVED)
    return "reserved" if reserved or not address.is_global else None


def _unwrap(address: Address) -> Address:
    """The IPv4 address that an IPv6 address leads to, if it does."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    teredo = address.teredo
    inner = address.ipv4_mapped or address.sixtofour or (None if teredo is None else teredo[1])
    if inner is None and 1 < int(address) <= 0xFFFFFFFF:  # IPv4-compatible, which some stacks still route.
        inner = ipaddress.IPv4Address(int(address))
    return address if inner is None else inner


class OutboundHttp:
    """Sends requests and keeps their connections. For one thread at a time."""

    def __init__(self, *, timeout: float, stated: Iterable[str] = ()) -> None:
        """`stated` are the URLs that the application's code or the environment states."""
        self._timeout = timeout
        self._stated = {_place(url)[1:] for url in stated}
        self._connections: dict[tuple[str, str, int], http.client.HTTPConnection] = {}

    def request(
        self,
        method: str,
        url: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        redirects: int = REDIRECTS,
    ) -> HttpAnswer:
        """The answer to a request, after at most this many redirects; with 0, a redirect is the answer."""
        sent = dict(headers or {})
        for _ in range(redirects + 1):
            answer = self._send(method, url, body, sent)
            if answer.location is None or not redirects:
                return answer
            target = urljoin(url, answer.location)
            if _place(target) != _place(url):  # What is secret in the headers stays with its host.
                sent = {name: value for name, value in sent.items() if name.lower() in ("accept", "content-type")}
            if answer.status in _AS_GET and method != "HEAD":
                method, body = "GET", None
            url = target
        raise OutboundHttpError(f"{site_of(url)} redirects more than {redirects} times")

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _send(self, method: str, url: str, body: bytes | None, headers: Mapping[str, str]) -> HttpAnswer:
        import http.client  # Every process loads this module, and few send requests.

        place, parts = _place(url), urlsplit(url)
        path = quote(f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}", safe=_PLAIN_PATH)
        for kept in (True, False) if place in self._connections else (False,):
            try:
                connection = self._connection(place)
                target = path if connection.host == place[1] else f"{parts.scheme}://{parts.netloc}{path}"
                connection.request(method, path if parts.scheme == "https" else target, body, dict(headers))
                response = connection.getresponse()
                read = response.read(MOST_BYTES + 1)
                if len(read) > MOST_BYTES:
                    raise OutboundHttpError(f"{site_of(url)} answered with more than {MOST_BYTES >> 20} MB")
                if response.length:  # What the server announced and did not send.
                    raise OutboundHttpError(f"{site_of(url)} ended its answer after {len(read)} bytes, too early")
                location = response.headers["Location"] if 300 <= response.status < 400 else None
                answer_headers = {name.lower(): value for name, value in response.headers.items()}
                return HttpAnswer(response.status, read, location, response.reason or "", answer_headers)
            except (OSError, http.client.HTTPException, ValueError, OutboundHttpError) as error:
                if (dropped := self._connections.pop(place, None)) is not None:
                    dropped.close()
                if isinstance(error, OutboundHttpError):
                    raise
                if not kept:  # A kept connection may have been closed by the server while it was idle.
                    reason = str(error) if isinstance(error, OSError) else ""  # Others may contain the whole address.
                    raise OutboundHttpError(
                        f"{site_of(url)} does not answer: {reason or type(error).__name__}"
                    ) from error
        raise AssertionError("unreachable")

    def _connection(self, place: tuple[str, str, int]) -> http.client.HTTPConnection:
        if place not in self._connections:
            self._connections[place] = self._open(*place)
        return self._connections[place]

    def _open(self, scheme: str, host: str, port: int) -> http.client.HTTPConnection:
        import http.client

        proxy = _proxy_for(scheme, host)
        if proxy is not None:
            with contextlib.suppress(socket.gaierror):  # The proxy may know hosts that this machine does not.
                self._checked(host, port)
            if scheme == "http":
                return http.client.HTTPConnection(*proxy, timeout=self._timeout)
            connection = http.client.HTTPSConnection(*proxy, timeout=self._timeout)
            connection.set_tunnel(host, port)
            return connection
        connection = http.client.HTTPConnection(host, port, timeout=self._timeout)
        connection.default_port = _PORTS[scheme]
        connection.auto_open = 0  # It would connect again by name, to an address that was not checked.
        connection.sock = _connect(self._checked(host, port), self._timeout)
        if scheme == "https":
            connection.sock = ssl.create_default_context().wrap_socket(connection.sock, server_hostname=host)
        return connection

    def _checked(self, host: str, port: int) -> list[Any]:
        """The addresses of a host that a connection may go to, as `getaddrinfo` gives them."""
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [ipaddress.ip_address(str(each[4][0]).partition("%")[0]) for each in found]
        kinds = [self._why_refused(host, port, each) for each in addresses]
        if all(kinds):
            place = format_address(host, port)
            raise RefusedAddressError(
                f"{place} was not asked: its address is {kinds[0]}; if this application may reach it, "
                f'name it: App(allow_hosts=["{place}"]) or TIDEMILL_ALLOW_HOSTS={place}'
            )
        return [each for each, kind in zip(found, kinds, strict=True) if kind is None]

    def _why_refused(self, host: str, port: int, address: Address) -> str | None:
        kind = why_refused(address)
        if kind is None or _allowed.get().covers(host, port, address):
            return None
        stated = (host, port) in self._stated and (kind not in _NEVER_NAMED or _is_literal(host))
        return None if stated else kind


def fetch(
    method: str,
    url: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    timeout: float,
    redirects: int = REDIRECTS,
    stated: bool = False,
) -> HttpAnswer:
    """Send one request; `stated` says that the application's code or the environment states its URL."""
    client = OutboundHttp(timeout=timeout, stated=(url,) if stated else ())
    try:
        return client.request(method, url, body, headers, redirects=redirects)
    finally:
        client.close()


def _place(url: str) -> tuple[str, str, int]:
    """The scheme, host and port of a URL."""
    try:
        parts = urlsplit(check_http_url(url))
    except ConfigError as error:
        raise OutboundHttpError(str(error)) from None
    return parts.scheme, (parts.hostname or "").rstrip("."), parts.port or _PORTS[parts.scheme]


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _proxy_for(scheme: str, host: str) -> tuple[str, int] | None:
    """The host and port of the proxy that the environment names for a request."""
    import urllib.request

    named = urllib.request.getproxies().get(scheme)
    if named is None or urllib.request.proxy_bypass(host):
        return None
    parts = urlsplit(named if "://" in named else f"http://{named}")
    return (parts.hostname or "", parts.port or 8080)


def _connect(addresses: Iterable[Any], timeout: float) -> socket.socket:
    """A connection to the first of these addresses that accepts one."""
    failure: OSError | None = None
    for family, kind, protocol, _, address in addresses:
        connection = socket.socket(family, kind, protocol)
        connection.settimeout(timeout)
        try:
            connection.connect(address)
            return connection
        except OSError as error:
            connection.close()
            failure = error
    raise failure or OSError("no address")
