"""Control groups of version 2, from files such as the kernel shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.engine.telemetry.cgroup import group_of, read_account, read_accounts

GIB = 1024**3


@pytest.fixture
def mount(tmp_path: Path) -> Path:
    """A host's tree: the root, a slice with limits, a service in it, a pod beside it."""
    mount = tmp_path / "cgroup"
    _write(mount, "cpu.stat", "usage_usec 900000000\nuser_usec 600000000\n")
    _write(mount / "system.slice", "memory.current", "4294967296\n")
    _write(mount / "system.slice", "memory.max", f"{8 * GIB}\n")
    _write(mount / "system.slice", "cpu.max", "max 100000\n")
    _write(mount / "system.slice", "cpu.stat", "usage_usec 50000000\n")
    service = mount / "system.slice" / "tidemill.service"
    _write(service, "memory.current", "1073741824\n")
    _write(service, "memory.max", "max\n")
    _write(service, "memory.events", "low 0\nhigh 3\nmax 1\noom 1\noom_kill 2\n")
    _write(service, "cpu.max", "150000 100000\n")
    _write(service, "cpu.stat", "usage_usec 12500000\nuser_usec 1\nnr_throttled 4\nthrottled_usec 250000\n")
    _write(service / "helpers", "memory.current", "4096\n")
    _write(service / "helpers", "cpu.stat", "usage_usec 1000000\n")
    pod = mount / "pod"
    _write(pod, "memory.current", "2048\n")
    _write(pod, "memory.max", "4096\n")
    _write(pod, "cpu.max", "max 100000\n")
    _write(pod, "cpu.stat", "usage_usec 2000000\n")
    return mount


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    proc = tmp_path / "proc"
    _write(proc / "11", "cgroup", "0::/system.slice/tidemill.service\n")
    _write(proc / "12", "cgroup", "0::/system.slice/tidemill.service/helpers\n")
    _write(proc / "13", "cgroup", "0::/pod\n")
    _write(proc / "14", "cgroup", "0::/\n")
    _write(proc / "15", "cgroup", "4:memory:/user\n1:cpu:/user\n")
    return proc


def test_a_group_tells_what_it_uses_and_the_tightest_limits_around_it(mount: Path) -> None:
    account = read_account("/system.slice/tidemill.service", mount=mount)
    assert account is not None
    assert (account.memory, account.cpu_seconds) == (GIB, 12.5)
    assert (account.memory_limit, account.cpu_limit) == (8 * GIB, 1.5)
    assert (account.throttled_seconds, account.oom_kills) == (0.25, 2)


def test_a_group_without_a_cpu_limit_says_so(mount: Path) -> None:
    account = read_account("/pod", mount=mount)
    assert account is not None
    assert (account.memory_limit, account.cpu_limit) == (4096, None)


def test_the_root_of_a_host_has_no_account(mount: Path) -> None:
    assert read_account("/", mount=mount) is None


def test_the_root_inside_a_container_is_the_containers_own(mount: Path) -> None:
    account = read_account("/", mount=mount / "pod")
    assert account is not None
    assert (account.memory, account.memory_limit) == (2048, 4096)


def test_a_host_without_version_2_has_none(tmp_path: Path) -> None:
    assert read_account("/system.slice/tidemill.service", mount=tmp_path / "nothing") is None


def test_a_process_is_found_in_its_group(proc: Path) -> None:
    assert group_of(11, proc=proc) == "/system.slice/tidemill.service"
    assert group_of(15, proc=proc) is None, "version 1 only"
    assert group_of(99, proc=proc) is None, "it is gone"


def test_every_group_counts_once_and_with_what_is_inside_it(mount: Path, proc: Path) -> None:
    accounts = read_accounts([11, 12, 13, 14, 15, 99], mount=mount, proc=proc)
    # Process 14 is in the root, which has no account and hides nobody else's.
    assert [account.path for account in accounts] == ["/pod", "/system.slice/tidemill.service"]


def test_files_that_make_no_sense_are_no_account(mount: Path) -> None:
    (mount / "pod" / "memory.current").write_text("garbage\n")
    assert read_account("/pod", mount=mount) is None


def _write(folder: Path, name: str, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
