"""Tells when a file has changed, on Linux, by inotify: no polling, and nothing to pay while it is quiet.

The folder is watched, so that a file may be made, replaced or moved away. Elsewhere, and for changes that another
machine makes on a shared disk, there are no notifications: a slow poll stays behind them.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
import sys
from pathlib import Path

_CHANGES = 0x002 | 0x008 | 0x080 | 0x100  # modified, closed after writing, moved here, made
_FLAGS = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)
_HEAD = struct.Struct("iIII")
_READ = 1 << 16


class FileChanges:
    """Notifications of one file."""

    def __init__(self, path: str | Path) -> None:
        self._name = os.path.basename(path).encode()
        self._fd = _watch(os.path.dirname(path) or ".")
        self._is_new = True

    async def wait(self) -> None:
        """Return once the file has changed since the last call; the first call returns at once."""
        if self._is_new:  # The file may have changed before it was watched.
            self._is_new = False
            return
        if self._fd is None:
            await asyncio.get_running_loop().create_future()
            return
        loop, fd = asyncio.get_running_loop(), self._fd
        while not self._has_changed(fd):
            readable = asyncio.Event()
            loop.add_reader(fd, readable.set)
            try:
                await readable.wait()
            finally:
                loop.remove_reader(fd)

    def _has_changed(self, fd: int) -> bool:
        """Whether one of the waiting notifications is about the file, or some were lost."""
        found = False
        while True:
            try:
                data = os.read(fd, _READ)
            except BlockingIOError:
                return found
            at = 0
            while at < len(data):
                watch, _, _, length = _HEAD.unpack_from(data, at)
                at += _HEAD.size + length
                found |= watch < 0 or data[at - length : at].rstrip(b"\0") == self._name

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _watch(folder: str) -> int | None:
    """A descriptor with the notifications of a folder; None where there are none."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    fd = libc.inotify_init1(_FLAGS)
    if fd < 0:
        return None
    if libc.inotify_add_watch(fd, os.fsencode(folder), _CHANGES) < 0:
        os.close(fd)
        return None
    return fd
