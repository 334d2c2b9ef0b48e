"""Where a server listens."""

from __future__ import annotations

import errno
import socket

import msgspec

from tidemill.core.errors import ConfigError
from tidemill.server.settings import ServerSettings

BACKLOG = 2048


def listen(settings: ServerSettings) -> socket.socket:
    """A socket that listens where the settings say, or the one that this process was given."""
    if settings.listening is not None:
        given = socket.socket(fileno=settings.listening)
        given.setblocking(False)
        return given
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigError(f"there is no address {settings.host!r} to listen at: {error}") from error
    family, kind, protocol, _, address = found[0]
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        if error.errno == errno.EADDRINUSE and settings.or_any_port and settings.port:
            return listen(msgspec.structs.replace(settings, port=0))
        why = "another process listens there" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
        raise ConfigError(
            f"cannot listen at {settings.host}:{settings.port}: {why}; choose another with --port"
        ) from error
    made.setblocking(False)
    return made
