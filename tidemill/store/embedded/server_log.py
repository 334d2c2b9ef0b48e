"""The log file of an embedded PostgreSQL, kept small: the current file and the previous one."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import BinaryIO

LARGEST = 4 * 1024 * 1024
TAIL_BYTES = 64 * 1024


class ServerLog:
    """A file that the server appends to, and that we read from the end and truncate."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self) -> BinaryIO:
        """Open for appending, so that the server continues at the end after `trim`."""
        return os.fdopen(os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab")

    def size(self) -> int:
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def trim(self) -> None:
        """Rotate a large log by copying and truncating it: the server keeps the file open."""
        if self.size() > LARGEST:
            # On a full disk, truncate even if the copy fails; the caller must not fail.
            with contextlib.suppress(OSError):
                shutil.copyfile(self.path, self.path.with_suffix(".log.1"))
            with contextlib.suppress(OSError):
                os.truncate(self.path, 0)

    def tail(self, lines: int, since: int = 0) -> str:
        """The last lines written after the first `since` bytes."""
        if not self.path.exists():
            return ""
        with self.path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(since if since <= end else 0, end - TAIL_BYTES))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
