"""What libpq reads from files: connection services (`pg_service.conf`) and passwords (`.pgpass`).

The driver reads them too, but a little differently: no `PGSERVICE`, no file of the system, an unknown service is
ignored, a `%` in a service is an error, and passwords with an escaped colon are wrong.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from tidemill.core.errors import ConfigError
from tidemill.store.connection.url import hosts_of

_FIELD = re.compile(r"((?:\\.|[^\\:])*)(?::|$)")


def with_service(url: str, environ: Mapping[str, str] = os.environ) -> str:
    """The URL with what its service says, which `?service=` or PGSERVICE names; what the URL itself says goes first."""
    parts = urlsplit(url)
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    name = given.pop("service", None) or environ.get("PGSERVICE")
    if not name:
        return url
    options = _read_service(name, given.pop("servicefile", None), environ)
    if parts.username is not None:
        options.pop("user", None)
    if parts.password is not None:
        options.pop("password", None)
    if parts.path.strip("/"):
        options.pop("dbname", None)
    if parts.netloc.rpartition("@")[2]:
        options.pop("host", None)
        options.pop("port", None)
    query = urlencode({**options, **given}, quote_via=quote)
    return f"{parts.scheme}://{parts.netloc}{parts.path}" + (f"?{query}" if query else "")


def _read_service(name: str, file: str | None, environ: Mapping[str, str]) -> dict[str, str]:
    """The settings of a service, from the user's file or from that of the system."""
    file = file or environ.get("PGSERVICEFILE")
    own = Path(file) if file else Path.home() / ".pg_service.conf"
    places = [own, Path(environ.get("PGSYSCONFDIR", "/etc/postgresql-common")) / "pg_service.conf"]
    for place in places:
        try:
            lines = place.read_text().splitlines()
        except OSError:
            continue
        section = None
        found: dict[str, str] | None = None
        for line in map(str.strip, lines):
            if line.startswith("["):
                section = line.strip("[]")
                found = {} if section == name and found is None else found
            elif line and not line.startswith("#") and section == name and found is not None:
                key, _, value = line.partition("=")
                found[key.strip()] = value.strip()
        if found is not None:
            return found
    raise ConfigError(f"there is no connection service {name!r} in {' or '.join(map(str, places))}")


def login_of(url: str) -> dict[str, Any]:
    """The arguments of a connection that a password file has; it is read for each, because passwords change."""
    password = find_password(url)
    return {} if password is None else {"password": password}


def find_password(url: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """The password of a file for a URL with one host; None if it has none, or if the URL or PGPASSWORD has one."""
    parts, hosts = urlsplit(url), hosts_of(url)
    given = dict(parse_qsl(parts.query))
    if parts.password is not None or "password" in given or "PGPASSWORD" in environ:
        return None
    found_hosts = hosts or [(environ.get("PGHOST", "localhost"), environ.get("PGPORT", "5432"))]
    if len(found_hosts) > 1:
        return None
    host, port = found_hosts[0]
    user = given.get("user") or parts.username or environ.get("PGUSER") or environ.get("USER", "")
    database = given.get("dbname") or parts.path.strip("/") or environ.get("PGDATABASE") or user
    file = given.get("passfile") or environ.get("PGPASSFILE")
    place = Path(file) if file else Path.home() / ".pgpass"
    try:
        if place.stat().st_mode & 0o077:
            return None  # The driver warns.
        lines = place.read_text().splitlines()
    except OSError:
        return None
    wanted = ("localhost" if host.startswith("/") else host, port, database, user)
    for line in lines:
        if line.startswith("#") or not line.strip():
            continue
        *fields, password = [_unescaped(field) for field in _FIELD.findall(line)[:5]]
        if len(fields) == 4 and all(field in ("*", want) for field, want in zip(fields, wanted, strict=True)):
            return password
    return None


def _unescaped(field: str) -> str:
    return re.sub(r"\\(.)", r"\1", field)
