"""Usage and limits of the control groups of our processes, on a host with cgroup v2.

A control group is the kernel's account of CPU time and memory: for a container or a systemd unit it is exact, including
page cache and child processes. Without one (macOS, cgroup v1, the root group), these functions return None or an empty
result.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

MOUNT = Path("/sys/fs/cgroup")
PROC = Path("/proc")


class CgroupUsage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Usage and limits of one control group. Memory in bytes, CPU time in seconds, limits in bytes and cores."""

    path: str
    memory: int
    cpu_seconds: float
    memory_limit: int | None = None
    cpu_limit: float | None = None
    throttled_seconds: float = 0.0
    oom_kills: int = 0


def group_of(pid: int | str = "self", *, proc: Path) -> str | None:
    """The path of a process's cgroup-v2 group; None if it has none or has exited."""
    for line in (_read(proc / str(pid) / "cgroup") or "").splitlines():
        hierarchy, _, path = line.partition("::")
        if hierarchy == "0" and path:
            return path
    return None


def read_account(path: str, *, mount: Path) -> CgroupUsage | None:
    """A group's account; None where the kernel has none, as for the root group of a host."""
    folder = mount / path.strip("/")
    memory, cpu = _number(folder / "memory.current"), _pairs(folder / "cpu.stat")
    if memory is None or "usage_usec" not in cpu:
        return None
    around = [folder, *(parent for parent in folder.parents if parent.is_relative_to(mount))]
    return CgroupUsage(
        path=path,
        memory=memory,
        cpu_seconds=cpu["usage_usec"] / 1e6,
        memory_limit=_least(_number(each / "memory.max") for each in around),
        cpu_limit=_least(_cores(each / "cpu.max") for each in around),
        throttled_seconds=cpu.get("throttled_usec", 0) / 1e6,
        oom_kills=_pairs(folder / "memory.events").get("oom_kill", 0),
    )


def read_accounts(pids: Iterable[int], *, mount: Path, proc: Path = PROC) -> list[CgroupUsage]:
    """The accounts of all groups of these processes, each once; a nested group is part of the outer one."""
    paths = sorted({path for pid in pids if (path := group_of(pid, proc=proc)) is not None})
    found: list[CgroupUsage] = []
    for path in paths:  # outer groups come first; one without an account hides no inner group
        if any(path.startswith(f"{account.path.rstrip('/')}/") for account in found):
            continue
        account = read_account(path, mount=mount)
        if account is not None:
            found.append(account)
    return found


def _read(file: Path) -> str | None:
    try:
        return file.read_text(encoding="ascii", errors="replace")
    except OSError:
        return None


def _number(file: Path) -> int | None:
    """The number in a file; None for `max`, which means no limit."""
    text = (_read(file) or "").strip()
    return int(text) if text.isdigit() else None


def _pairs(file: Path) -> dict[str, int]:
    """The `name number` lines of a file."""
    words = [line.split() for line in (_read(file) or "").splitlines()]
    return {word[0]: int(word[1]) for word in words if len(word) == 2 and word[1].isdigit()}


def _cores(file: Path) -> float | None:
    """A CPU limit in cores, from `quota period`."""
    words = (_read(file) or "").split()
    if len(words) != 2 or not all(word.isdigit() for word in words) or int(words[1]) == 0:
        return None
    return int(words[0]) / int(words[1])


def _least(limits: Iterable[float | int | None]) -> int | None:
    """The smallest limit: a group also obeys the limits of the groups around it."""
    found = [limit for limit in limits if limit is not None]
    return min(found) if found else None  # pyright: ignore[reportReturnType] - same type as the input
