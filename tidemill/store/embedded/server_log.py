"""The log file of an embedded PostgreSQL, kept small: one file and the one before it."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import BinaryIO

LARGEST = 4 * 1024 * 1024
TAIL_BYTES = 64 * 1024


class ServerLog:
    """A file that the server appends to and that we read the end of and cut."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self) -> BinaryIO:
        """For appending, so that the server goes on at the end after `trim`."""
        return os.fdopen(os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab")

    def size(self) -> int:
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def trim(self) -> None:
        """Set a large log aside. Copied and emptied in place: the server keeps the file open."""
        if self.size() > LARGEST:
            # A full disk is when emptying matters most, copy or no copy; and who calls this must live on.
            with contextlib.suppress(OSError):
                shutil.copyfile(self.path, self.path.with_suffix(".log.1"))
            with contextlib.suppress(OSError):
                os.truncate(self.path, 0)

    def tail(self, lines: int, since: int = 0) -> str:
        """The last lines, of what was written after the first `since` bytes."""
        if not self.path.exists():
            return ""
        with self.path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(since if since <= end else 0, end - TAIL_BYTES))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
