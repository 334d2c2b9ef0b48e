"""Limits the memory of a process while a call lasts: an allocation beyond it raises `MemoryError` in the call."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from tidemill.core.memory_size import format_memory

STATUS = Path("/proc/self/statm")


class OutOfMemoryError(Exception):
    """A task has taken more memory than its `memory=` allows."""


@contextlib.contextmanager
def limited_memory(size: int | None) -> Iterator[None]:
    """Let the process take this much more memory than it does now. The system must know RLIMIT_AS, as Linux does."""
    if size is None or sys.platform != "linux":
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = int(STATUS.read_text().split()[0]) * resource.getpagesize() + size
    resource.setrlimit(resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
    try:
        yield
    except MemoryError as error:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        raise OutOfMemoryError(f"it took more than the {format_memory(size)} of its memory=") from error
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
