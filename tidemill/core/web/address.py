"""Network addresses: a host and a port."""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache

from tidemill.core.errors import ConfigError

LOOPBACK = "127.0.0.1"

_ADDRESS = re.compile(r"(?:(?:\[(?P<six>[0-9a-fA-F:]+)\]|(?P<host>[^\s:\[\]]*)):)?(?P<port>\d{1,5})\Z")


def read_address(text: str, *, what: str = "metrics") -> tuple[str, int]:
    """Host and port of `127.0.0.1:9464`, `[::1]:9464`, `:9464` or `9464`; without a host, loopback only."""
    found = _ADDRESS.match(text.strip())
    if found is None or not 0 < int(found["port"]) < 65_536:
        raise ConfigError(f"{what} {text!r} is not an address: write host:port, such as 127.0.0.1:9464, or only a port")
    return found["six"] or found["host"] or LOOPBACK, int(found["port"])


def format_address(host: str, port: int) -> str:
    """Host and port as one address; IPv6 needs brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@lru_cache(maxsize=256)
def is_loopback(host: str) -> bool:
    """Whether an address is a loopback address."""
    if host in ("localhost", ""):
        return host == "localhost"
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
