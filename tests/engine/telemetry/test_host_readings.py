"""Reading this very host: what it says must agree with what the test makes it do."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tidemill.core.codec import decode, encode
from tidemill.engine.telemetry import hosts
from tidemill.engine.telemetry.gpu import Gpu, NoProbe
from tidemill.engine.telemetry.hosts import HostReader, HostSample


class OneGpu:
    def read(self) -> list[Gpu]:
        return [Gpu(0, "NVIDIA H200", 0.5, 1, 2)]


def test_a_sample_is_within_the_bounds_of_the_machine() -> None:
    reader = HostReader(gpus=NoProbe())
    reader.read()
    sample = reader.read([os.getpid()])
    assert sample.cores == psutil.cpu_count()
    assert 0 <= sample.cpu <= sample.cores
    assert 0 < sample.memory < sample.memory_total == psutil.virtual_memory().total
    assert 0 < sample.disk <= sample.disk_total
    assert 0 < sample.ours.memory < sample.memory_total


def test_the_first_reading_has_nothing_to_compare_with() -> None:
    sample = HostReader(gpus=NoProbe()).read([os.getpid()])
    assert (sample.cpu, sample.ours.cpu) == (0.0, 0.0)


@pytest.mark.parametrize("children", ["/proc/thread-self/children", "/no/such/list"])
def test_work_shows_as_ours_with_the_children_it_started(children: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "CHILDREN", Path(children))
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        reader = HostReader(gpus=NoProbe())
        reader.read([os.getpid()])
        started, used = time.monotonic(), time.process_time()
        while time.process_time() - used < 0.4:
            pass
        sample = reader.read([os.getpid()])
        took = time.monotonic() - started
    finally:
        child.kill()
        child.wait()
    (own,) = sample.processes
    assert own.pid == os.getpid()
    assert own.cpu > 0.8 * 0.4 / took, "this process and its child were busy all the time"
    assert own.memory > psutil.Process().memory_info().rss, "the child's memory counts too"
    assert sample.ours.cpu == own.cpu


@pytest.mark.parametrize("children", ["/proc/thread-self/children", "/no/such/list"])
def test_a_process_of_ours_below_another_counts_for_itself_only(children: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "CHILDREN", Path(children))
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        sample = HostReader(gpus=NoProbe()).read([os.getpid(), child.pid])
    finally:
        child.kill()
        child.communicate()
    assert [each.pid for each in sample.processes] == sorted([os.getpid(), child.pid])
    assert sample.ours.memory == sum(each.memory for each in sample.processes)


def test_processes_that_are_gone_are_left_out() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    sample = HostReader(gpus=NoProbe()).read([os.getpid(), gone.pid])
    assert [each.pid for each in sample.processes] == [os.getpid()]


def test_a_host_without_control_groups_has_no_group(tmp_path: Path) -> None:
    assert HostReader(gpus=NoProbe(), cgroups=tmp_path).read([os.getpid()]).group is None


def test_a_sample_survives_the_database_form() -> None:
    sample = HostReader(gpus=OneGpu()).read([os.getpid()])
    data = encode(sample)
    assert decode(data, HostSample) == sample
    assert len(data) < 1000, "seventeen thousand of these are kept for each host"
