"""The Unix socket of a server: the user that runs the server works through it without a token.

Its mode is 0600 in a private directory, so only that user and root can open it.
"""

from __future__ import annotations

import errno
import os
import pwd
import socket
import stat
import struct
from pathlib import Path

import structlog

log = structlog.get_logger("tidemill.server")

#: Where a request's ASGI scope names the user at the other end of the socket.
SOCKET_USER = "tidemill.socket_user"

NAME = "server.sock"
LONGEST_PATH = 103  # The kernel's `sun_path` has room for this many bytes on every system.


def socket_path(directory: str | Path, application: str) -> Path:
    """Where the server of an application listens for local commands."""
    return Path(os.path.realpath(directory)) / f"{application}.{NAME}"


def listen_locally(path: Path) -> socket.socket | None:
    """A socket that only this user can open; None, with a log line, where there can be none."""
    if len(os.fsencode(path)) > LONGEST_PATH:
        log.warning("no local socket: its path is too long", path=str(path))
        return None
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if _answers(path):
            raise OSError(errno.EADDRINUSE, "another server uses it")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        before = os.umask(0o177)  # Setting the mode after `bind` would leave a gap in which others can connect.
        try:
            made.bind(os.fsencode(path))
        finally:
            os.umask(before)
        made.listen()
    except OSError as error:
        made.close()
        log.warning("no local socket: commands on this machine need a token", path=str(path), error=error.strerror)
        return None
    made.setblocking(False)
    return made


def close_locally(listening: socket.socket, path: Path) -> None:
    """Close the socket and remove its file."""
    listening.close()
    path.unlink(missing_ok=True)


def socket_user(connection: socket.socket | None) -> str | None:
    """The name of the user at the other end of a local socket; None for every other connection."""
    if connection is None or connection.family != socket.AF_UNIX:
        return None
    if not hasattr(socket, "SO_PEERCRED"):
        return "local"
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _answers(path: Path) -> bool:
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise OSError(errno.EEXIST, "a file that is not a socket is in its way")
    except FileNotFoundError:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(os.fsencode(path))
        except OSError as error:
            return error.errno == errno.EAGAIN  # A full backlog means that the server is alive.
    return True
