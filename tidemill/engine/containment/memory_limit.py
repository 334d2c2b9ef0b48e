"""Limits the memory of a process while a call lasts: an allocation beyond it raises `MemoryError` in the call.

Where the process may make control groups (cgroup v2, delegated to it), it is in one of its own meanwhile, with the same
limit: this counts the processes that the call starts, too, and the kernel kills the group when it needs more.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from tidemill.core.limits.memory_size import format_memory
from tidemill.engine.telemetry.cgroup import MOUNT, PROC, group_of

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
        with _own_group(size):
            yield
    except MemoryError as error:
        resource.setrlimit(kind, (soft, hard))
        raise OutOfMemoryError(f"it took more than the {format_memory(size)} of its memory=") from error
    finally:
        resource.setrlimit(kind, (soft, hard))


@contextlib.contextmanager
def _own_group(size: int, *, mount: Path = MOUNT, proc: Path = PROC) -> Iterator[None]:
    home, group = _groups(os.getpid(), mount, proc)
    if home is None or not _enter(home, group, size):
        yield
        return
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            (home / "cgroup.procs").write_text(str(os.getpid()))
            group.rmdir()


def remove_group(pid: int, *, mount: Path = MOUNT, proc: Path = PROC) -> None:
    """Remove the control group of a process that has died in it."""
    home, group = _groups(pid, mount, proc)
    if home is not None:
        with contextlib.suppress(OSError):
            group.rmdir()


def _groups(pid: int, mount: Path, proc: Path) -> tuple[Path | None, Path]:
    """The control group of this process, and that of a process with a limit of its own, which is beside it."""
    path = group_of(proc=proc)
    home = None if path in (None, "/") else mount / str(path).lstrip("/")
    return home, (mount if home is None else home.parent) / f"tidemill-{pid}"


def _enter(home: Path, group: Path, size: int) -> bool:
    """Whether the process is in a control group of its own from now on; without the right to that it is not."""
    try:
        with contextlib.suppress(OSError):
            (home.parent / "cgroup.subtree_control").write_text("+memory")
        group.mkdir(exist_ok=True)
        (group / "memory.max").write_text(str(size))
        (group / "memory.oom.group").write_text("1")
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError:
        with contextlib.suppress(OSError):
            group.rmdir()
        return False
    return True
