"""The Unix socket of an embedded PostgreSQL: where it lives, its address, and whether the server answers.

The server listens only there. The socket's directory is private (mode 0700), so only the owner of the data and root can
reach it; both could read the data files anyway, so there is no password.
"""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import stat
import struct
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from tidemill.core.errors import StoreError

NAME = "tidemill"  # of the database and of its superuser
PORT = 5432
SOCKET = f".s.PGSQL.{PORT}"

# A socket's path must fit the kernel's `sun_path`: 108 bytes on Linux, 104 on macOS, with a final NUL.
LONGEST_PATH = 103

# Not the temporary directory of the environment: every process must choose the same path.
SHORT_ROOT = Path("/tmp")  # noqa: S108 (the directory made in it is private and its owner is checked)

ANSWER_TIMEOUT = 5.0
PROTOCOL = 196608  # version 3.0
TOO_MANY_CONNECTIONS = "53300"
NOT_NOW = ("57P01", "57P02", "57P03")  # shutting down, crashed, starting up


def socket_directory(directory: Path) -> Path:
    """`directory`/run, or a short path where that one is not a valid socket address."""
    inside = directory / "run"
    path = os.fsencode(inside / SOCKET)
    # Clients split a host at commas, the server strips quotes, and URLs are UTF-8.
    plain = not set(b',"\\\n') & set(path) and _is_utf8(path)
    if plain and len(path) <= LONGEST_PATH:
        return inside
    return SHORT_ROOT / f"tidemill-{hashlib.sha256(os.fsencode(directory)).hexdigest()[:20]}"


def dsn_for(sockets: Path) -> str:
    """The address for asyncpg, psycopg and psql; it names the port so that PGPORT is ignored."""
    return f"postgresql:///{NAME}?host={quote(str(sockets), safe='')}&port={PORT}&user={NAME}"


def make_private(sockets: Path) -> None:
    """Create the socket's directory, accessible only to its owner."""
    sockets.mkdir(mode=0o700, exist_ok=True)
    if stat.S_ISDIR(sockets.lstat().st_mode) and sockets.lstat().st_uid == os.geteuid():
        sockets.chmod(0o700)


def check_private(sockets: Path, directory: Path) -> None:
    """Reject a socket directory that another user could have created to read our traffic."""
    try:
        found = sockets.lstat()
    except FileNotFoundError:
        return
    owners = {os.geteuid()}
    if os.geteuid() == 0 and directory.exists():
        owners.add(directory.stat().st_uid)  # the account under which root runs the server
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in owners or found.st_mode & 0o022:
        raise StoreError(
            f"the socket directory {sockets} is not a private directory of this user (owner uid {found.st_uid}, "
            f"mode {stat.S_IMODE(found.st_mode):o}); remove it, or choose another database directory"
        )


def answers(sockets: Path) -> bool:
    """Whether a session can begin now: runs the protocol's start-up until 'ready for query'."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(ANSWER_TIMEOUT)
        try:
            connection.connect(os.fsencode(sockets / SOCKET))
            connection.sendall(_startup_message())
            with connection.makefile("rb") as replies:
                ready = _session_begins(replies)
            if ready:
                connection.sendall(struct.pack("!ci", b"X", 4))
            return ready
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM):
                raise StoreError(
                    f"no permission to connect to the database socket in {sockets}; run as the user who owns "
                    f"it, or choose another database directory"
                ) from error
            return False  # no server listens, or it exited meanwhile


def _session_begins(replies: BinaryIO) -> bool:
    while len(head := replies.read(5)) == 5:
        kind, size = struct.unpack("!ci", head)
        body = replies.read(size - 4)
        if kind == b"Z":
            return True
        if kind == b"E":
            return _means_running(body)
    return False


def _means_running(body: bytes) -> bool:
    fields = {field[:1]: field[1:].decode(errors="replace") for field in body.split(b"\0") if field}
    code = fields.get(b"C", "")
    if code in NOT_NOW:
        return False
    if code == TOO_MANY_CONNECTIONS:
        return True  # it runs; the next connection gets the error that it is full
    raise StoreError(
        f"the embedded PostgreSQL refuses connections to database {NAME!r}: {fields.get(b'M', '')} ({code}); "
        f"if the database was dropped or renamed, create it again or choose a new directory"
    )


def _startup_message() -> bytes:
    body = struct.pack("!i", PROTOCOL) + f"user\0{NAME}\0database\0{NAME}\0\0".encode()
    return struct.pack("!i", len(body) + 4) + body


def _is_utf8(path: bytes) -> bool:
    try:
        path.decode()
    except UnicodeDecodeError:
        return False
    return True
