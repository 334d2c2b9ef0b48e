"""A process with a memory limit is in a control group of its own, where it may make one.

The control groups are plain folders here: the kernel of a test machine seldom delegates any.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidemill.engine.containment.memory_limit import _own_group, remove_group


@pytest.fixture
def tree(tmp_path: Path) -> tuple[Path, Path]:
    """A mount with the group `unit/worker` of this process, and its /proc."""
    mount, proc = tmp_path / "cgroup", tmp_path / "proc"
    (mount / "unit" / "worker").mkdir(parents=True)
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text("0::/unit/worker\n")
    return mount, proc


def test_a_call_with_a_limit_is_in_a_group_beside_that_of_its_worker_and_returns(tree: tuple[Path, Path]) -> None:
    mount, proc = tree
    group = mount / "unit" / f"tidemill-{os.getpid()}"
    with _own_group(400, mount=mount, proc=proc):
        assert (mount / "unit" / "cgroup.subtree_control").read_text() == "+memory"
        assert (group / "memory.max").read_text() == "400"
        assert (group / "cgroup.procs").read_text() == str(os.getpid())
    assert (mount / "unit" / "worker" / "cgroup.procs").read_text() == str(os.getpid())


def test_without_the_right_to_make_groups_the_call_goes_on_without_one(tree: tuple[Path, Path]) -> None:
    mount, proc = tree
    group = mount / "unit" / f"tidemill-{os.getpid()}"
    group.write_text("in the way")
    with _own_group(400, mount=mount, proc=proc):
        assert not (mount / "unit" / "worker" / "cgroup.procs").exists()


def test_in_the_root_group_there_is_none(tree: tuple[Path, Path]) -> None:
    mount, proc = tree
    (proc / "self" / "cgroup").write_text("0::/\n")
    with _own_group(400, mount=mount, proc=proc):
        assert [each.name for each in mount.iterdir()] == ["unit"]


def test_the_group_of_a_process_that_has_died_in_it_is_removed(tree: tuple[Path, Path]) -> None:
    mount, proc = tree
    (mount / "unit" / "tidemill-77").mkdir()
    remove_group(77, mount=mount, proc=proc)
    remove_group(77, mount=mount, proc=proc)
    assert not (mount / "unit" / "tidemill-77").exists()
