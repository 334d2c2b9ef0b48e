"""Database URLs as libpq reads them: several hosts, host and port as parameters, service files."""

from __future__ import annotations

import os
from urllib.parse import parse_qs, quote, unquote, urlsplit

from tidemill.core.errors import ConfigError

DEFAULT_PORT = "5432"


def check_database_url(url: str) -> None:
    """Raise ConfigError if a URL cannot be read."""
    parts = urlsplit(url)
    if parts.scheme not in ("postgresql", "postgres"):
        raise ConfigError("the database URL must start with postgresql://")
    for host, port in hosts_of(url):
        if not port.isdigit() or not 0 < int(port) < 65536:
            raise ConfigError(f"the database URL cannot be read: {port!r} is not a port of {host}")


def hosts_of(url: str) -> list[tuple[str, str]]:
    """The hosts of a URL, each with its port: `postgresql://a:5432,b:5433/shop` has two."""
    parts = urlsplit(url)
    given = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    named = parts.netloc.rpartition("@")[2] or given.get("host", "")
    ports = given.get("port", "").split(",")
    found: list[tuple[str, str]] = []
    for at, each in enumerate(named.split(",") if named else []):
        host, port = _split(each)
        found.append((unquote(host), port or ports[at if at < len(ports) else -1] or DEFAULT_PORT))
    return found


def place_of(url: str) -> str:
    """Where a URL leads, for messages: hosts, ports and database, without user and password."""
    parts = urlsplit(url)
    given = parse_qs(parts.query)
    database = parts.path.rstrip("/") or "".join(f"/{quote(name)}" for name in given.get("dbname", ())[-1:])
    hosts = ",".join(f"{host or 'localhost'}:{port}" for host, port in hosts_of(url))
    if not hosts and "service" in given:
        return f"service {given['service'][-1]}{database}"
    return f"{hosts or f'localhost:{DEFAULT_PORT}'}{database}"


def database_of(url: str) -> str:
    """The name of the database that a URL leads to, if it names one."""
    return unquote(urlsplit(url).path.lstrip("/"))


def with_database(url: str, name: str) -> str:
    """The URL of another database on the same server."""
    parts = urlsplit(url)  # urlunsplit would leave out the slashes of an empty host.
    return f"{parts.scheme}://{parts.netloc}/{quote(name)}" + (f"?{parts.query}" if parts.query else "")


def to_primary(url: str) -> str:
    """The URL of the primary: of several hosts, the one that is not a standby."""
    return url if len(hosts_of(url)) < 2 else _with_attributes(url, "primary")


def to_writable(url: str) -> str:
    """The URL for connections that write: a server that is read-only counts as one that does not answer.

    A single address may lead to a standby, too: that of a proxy which has not noticed a failover yet.
    """
    is_chosen = "service=" in url or "PGTARGETSESSIONATTRS" in os.environ
    return url if is_chosen else _with_attributes(url, "read-write")


def to_any(url: str) -> str:
    """The URL for connections that only read, also from a standby."""
    return _with_attributes(url, "any")


def _with_attributes(url: str, attributes: str) -> str:
    if "target_session_attrs=" in url:
        return url
    return f"{url}{'&' if urlsplit(url).query else '?'}target_session_attrs={attributes}"


def _split(host: str) -> tuple[str, str]:
    """Host and port; an IPv6 address is in brackets, a socket's folder has no port."""
    if host.startswith("["):
        address, _, rest = host[1:].partition("]")
        return address, rest.removeprefix(":")
    if host.startswith(("/", "%2F", "%2f")):
        return host, ""
    name, _, port = host.partition(":")
    return name, port
