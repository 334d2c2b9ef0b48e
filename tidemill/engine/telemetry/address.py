"""Where the metrics are served: an address as people write it."""

from __future__ import annotations

import re

from tidemill.core.errors import ConfigError

LOOPBACK = "127.0.0.1"

_ADDRESS = re.compile(r"(?:(?:\[(?P<six>[0-9a-fA-F:]+)\]|(?P<host>[^\s:\[\]]*)):)?(?P<port>\d{1,5})\Z")


def read_address(text: str) -> tuple[str, int]:
    """Host and port of `127.0.0.1:9464`, `[::1]:9464`, `:9464` or `9464`; without a host, only this machine may ask."""
    found = _ADDRESS.match(text.strip())
    if found is None or not 0 < int(found["port"]) < 65_536:
        raise ConfigError(
            f"metrics {text!r} is not an address: write host:port, such as 127.0.0.1:9464, or only a port"
        )
    return found["six"] or found["host"] or LOOPBACK, int(found["port"])
