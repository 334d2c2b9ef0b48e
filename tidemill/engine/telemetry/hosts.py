"""The current resource use of this host: CPU, memory, disk, GPUs, and the share of our processes.

CPU is counted in cores: 2.0 is a quarter of a machine with eight. The first reading has no predecessor and returns 0.
Our processes are those passed when reading, with all their children.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import psutil

from tidemill.engine.telemetry import cgroup
from tidemill.engine.telemetry.gpu import Gpu, Probe, find_probe


class Usage(msgspec.Struct, frozen=True):
    """CPU in cores, memory in bytes."""

    cpu: float
    memory: int


class ProcessUsage(msgspec.Struct, frozen=True):
    """The resource use of one of our processes, with its children."""

    pid: int
    cpu: float
    memory: int


class GroupUsage(msgspec.Struct, frozen=True, omit_defaults=True):
    """The combined use of our control groups, and the tightest limits on them; see `cgroup`."""

    cpu: float
    memory: int
    groups: int = 1
    cpu_limit: float | None = None
    memory_limit: int | None = None
    throttled: float = 0.0
    """The share of time for which they were throttled."""
    oom_kills: int = 0


class HostSample(msgspec.Struct, frozen=True, omit_defaults=True):
    """One sample of a host. Sizes in bytes, CPU in cores."""

    cores: int
    cpu: float
    load: float
    memory: int
    memory_total: int
    disk: int
    disk_total: int
    ours: Usage
    swap: int = 0
    group: GroupUsage | None = None
    gpus: tuple[Gpu, ...] = ()
    processes: tuple[ProcessUsage, ...] = ()


CHILDREN = Path("/proc/thread-self/children")
"""The kernel's list of the children of a thread; not every kernel has it."""


class HostReader:
    """Reads a host repeatedly, and keeps the previous reading to compare with."""

    def __init__(self, *, gpus: Probe | None = None, cgroups: Path = cgroup.MOUNT) -> None:
        self._disk = Path.cwd()
        self._gpus = gpus or find_probe()
        self._cgroups = cgroups
        self._read_at = 0.0
        self._host: tuple[float, float] | None = None
        self._spent: dict[int, float] = {}
        self._groups: dict[str, cgroup.CgroupUsage] = {}

    def read(self, pids: Iterable[int] = ()) -> HostSample:
        """Take a sample; `pids` are our processes. Takes a few milliseconds, longer if a tool must be run."""
        now = time.monotonic()
        passed, self._read_at = now - self._read_at, now
        memory, disk = psutil.virtual_memory(), psutil.disk_usage(str(self._disk))
        cores = psutil.cpu_count() or 1
        processes, members = self._read_processes(sorted(set(pids)), passed)
        return HostSample(
            cores=cores,
            cpu=self._read_cpu(cores),
            load=round(os.getloadavg()[0], 2),
            memory=memory.total - memory.available,
            memory_total=memory.total,
            disk=disk.used,
            disk_total=disk.used + disk.free,  # without the space reserved for root
            swap=psutil.swap_memory().used,
            ours=Usage(round(sum(each.cpu for each in processes), 3), sum(each.memory for each in processes)),
            group=self._read_groups(members, passed),
            gpus=tuple(self._gpus.read()),
            processes=tuple(processes),
        )

    def _read_cpu(self, cores: int) -> float:
        times = psutil.cpu_times()
        idle = times.idle + getattr(times, "iowait", 0.0)
        # User time already includes guest time.
        total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        before, self._host = self._host, (total, idle)
        if before is None or total <= before[0]:
            return 0.0
        busy = 1 - (idle - before[1]) / (total - before[0])
        return round(min(1.0, max(0.0, busy)) * cores, 3)

    def _read_processes(self, pids: list[int], passed: float) -> tuple[list[ProcessUsage], list[int]]:
        """The use of each of our processes with its children, and the ids of all of them."""
        families = _families(pids)
        found: list[ProcessUsage] = []
        spent: dict[int, float] = {}
        for pid, family in families.items():
            cpu, memory = 0.0, 0
            for member in family:
                try:
                    with member.oneshot():
                        times, size = member.cpu_times(), member.memory_info().rss
                except psutil.Error:
                    continue  # It has just exited, or belongs to another user.
                spent[member.pid] = times.user + times.system
                if member.pid in self._spent and passed > 0:
                    cpu += max(0.0, spent[member.pid] - self._spent[member.pid]) / passed
                memory += size
            if memory:
                found.append(ProcessUsage(pid, round(cpu, 3), memory))
        self._spent = spent
        return found, list(spent)

    def _read_groups(self, pids: list[int], passed: float) -> GroupUsage | None:
        accounts = {account.path: account for account in cgroup.read_accounts(pids, mount=self._cgroups)}
        before, self._groups = self._groups, accounts
        if not accounts:
            return None
        pairs = [(account, before[path]) for path, account in accounts.items() if path in before and passed > 0]
        cpu_limits = [account.cpu_limit for account in accounts.values()]
        memory_limits = [account.memory_limit for account in accounts.values()]
        return GroupUsage(
            cpu=round(sum(max(0.0, now.cpu_seconds - then.cpu_seconds) for now, then in pairs) / (passed or 1.0), 3),
            memory=sum(account.memory for account in accounts.values()),
            groups=len(accounts),
            cpu_limit=_together(cpu_limits),
            memory_limit=None if (limit := _together(memory_limits)) is None else int(limit),
            throttled=round(
                max((now.throttled_seconds - then.throttled_seconds for now, then in pairs), default=0.0)
                / (passed or 1.0),
                3,
            ),
            oom_kills=sum(account.oom_kills for account in accounts.values()),
        )


def _families(pids: list[int]) -> dict[int, list[psutil.Process]]:
    """Each of these processes with its descendants, down to the next of these processes."""
    wanted, children_of = set(pids), _children_of if CHILDREN.exists() else _scan_children()
    families: dict[int, list[psutil.Process]] = {}
    for pid in pids:
        family, todo = families.setdefault(pid, []), [pid]
        while todo:
            member = todo.pop()
            with contextlib.suppress(psutil.Error):  # It has just exited.
                family.append(psutil.Process(member))
            todo += [child for child in children_of(member) if child not in wanted]
    return families


def _children_of(pid: int) -> list[int]:
    """The children of a process, from the kernel's list: all processes of a host take far longer to read."""
    found: list[int] = []
    with contextlib.suppress(OSError):  # It has just exited, or one of its threads has.
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as opened:
                found += map(int, opened.read().split())
    return found


def _scan_children() -> Callable[[int], list[int]]:
    """The same where the kernel has no such list."""
    children: dict[int, list[int]] = {}
    for process in psutil.process_iter(["ppid"]):
        if process.info["ppid"] not in (None, process.pid):
            children.setdefault(process.info["ppid"], []).append(process.pid)
    return lambda pid: children.pop(pid, [])  # Visit each pid once: a reused one could form a cycle.


def _together(limits: list[float | None] | list[int | None]) -> float | None:
    """The combined limit of several groups; unlimited if one of them has no limit."""
    return None if any(limit is None for limit in limits) else sum(limit for limit in limits if limit is not None)
