"""Limits the memory of a process while a call lasts: an allocation beyond it raises `MemoryError` in the call."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from tidemill.core.memory_size import format_memory

STATUS, DATA = Path("/proc/self/statm"), 5


class OutOfMemoryError(Exception):
    """A task has taken more memory than its `memory=` allows."""


@contextlib.contextmanager
def limited_memory(size: int | None) -> Iterator[None]:
    """Let the process take this much more memory than it does now, on Linux; elsewhere nothing is limited."""
    if size is None or sys.platform != "linux":
        yield
        return
    import resource

    kind = resource.RLIMIT_DATA  # What can be written; RLIMIT_AS would count what is only reserved, too.
    soft, hard = resource.getrlimit(kind)
    wanted = int(STATUS.read_text().split()[DATA]) * resource.getpagesize() + size
    resource.setrlimit(kind, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
    try:
        yield
    except MemoryError as error:
        resource.setrlimit(kind, (soft, hard))
        raise OutOfMemoryError(f"it took more than the {format_memory(size)} of its memory=") from error
    finally:
        resource.setrlimit(kind, (soft, hard))
