"""Reading what the vendors' tools say. The texts are recorded samples: those of the H200 were printed by `nvidia-smi`
on a host that has one; the others have the shape of other cards and versions, with figures of no real host."""

from __future__ import annotations

import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from tidemill.engine.telemetry import gpu
from tidemill.engine.telemetry.gpu import FailsafeProbe, Gpu, LibraryProbe, NoProbe, ToolProbe, find_probe

H200 = "0, NVIDIA H200, 0, 0, 143771, 39, 127.10\n"
H200_AT_WORK = "0, NVIDIA H200, 100, 1395, 143771, 63, 687.96\n"

TWO_OLDER_CARDS = """\
0, Tesla T4, 97, 11021, 15360, 71, 68.93
1, GeForce GT 710, [N/A], 212, 2002, 41, [N/A]
"""

ROCM = """\
{"card0": {"Temperature (Sensor edge) (C)": "38.0", "Temperature (Sensor junction) (C)": "41.0",
"Average Graphics Package Power (W)": "89.0", "GPU use (%)": "12", "VRAM Total Memory (B)": "68702699520",
"VRAM Total Used Memory (B)": "10960896", "Card Series": "AMD INSTINCT MI250", "Card Model": "0x740c"},
"card1": {"Temperature (Sensor edge) (C)": "N/A", "Temperature (Sensor junction) (C)": "55.0",
"Current Socket Graphics Package Power (W)": "140.0", "GPU use (%)": "100", "VRAM Total Memory (B)": "206141652992",
"VRAM Total Used Memory (B)": "1073741824", "Card series": "N/A", "Device Name": "AMD Instinct MI300X"},
"system": {"Driver version": "6.7.0"}}
"""


def test_nvidia_smi_of_an_h200_is_read() -> None:
    assert gpu.parse_nvidia_smi(H200) == [
        Gpu(0, "NVIDIA H200", 0.0, memory=0, memory_total=143771 * 1024**2, temperature=39.0, power=127.1)
    ]


def test_a_gpu_at_work_is_fully_busy() -> None:
    (card,) = gpu.parse_nvidia_smi(H200_AT_WORK)
    assert (card.busy, card.memory, card.temperature, card.power) == (1.0, 1395 * 1024**2, 63.0, 687.96)


def test_what_a_card_does_not_tell_is_none() -> None:
    busy, quiet = gpu.parse_nvidia_smi(TWO_OLDER_CARDS)
    assert (busy.busy, busy.memory, busy.power) == (0.97, 11021 * 1024**2, 68.93)
    assert (quiet.name, quiet.busy, quiet.memory, quiet.power) == ("GeForce GT 710", None, 212 * 1024**2, None)


def test_rocm_smi_is_read_whatever_its_version_calls_things() -> None:
    first, second = gpu.parse_rocm_smi(ROCM)
    assert first == Gpu(0, "AMD INSTINCT MI250", 0.12, 10960896, 68702699520, 38.0, 89.0)
    assert second == Gpu(1, "AMD Instinct MI300X", 1.0, 1073741824, 206141652992, 55.0, 140.0)


def test_rocm_smi_may_print_a_warning_first() -> None:
    assert len(gpu.parse_rocm_smi(f"WARNING: AMD GPU device(s) is/are in a low-power state.\n\n{ROCM}")) == 2


@pytest.mark.parametrize("parse", [gpu.parse_nvidia_smi, gpu.parse_rocm_smi])
@pytest.mark.parametrize(
    "text", ["", "No devices were found\n", "NVIDIA-SMI has failed because it couldn't communicate\n"]
)
def test_a_tool_without_a_gpu_gives_none(parse: Any, text: str) -> None:
    assert parse(text) == []


def test_a_host_without_any_tool_has_no_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_find_library", lambda: None)
    found = find_probe(path=str(tmp_path))
    assert isinstance(found, NoProbe)
    assert found.read() == []


def test_the_tool_on_the_path_is_asked_and_not_too_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_find_library", lambda: None)
    _tool(tmp_path, "nvidia-smi", f"echo asked >> {tmp_path}/asked; printf '{H200}'")
    probe = find_probe(path=str(tmp_path))
    assert [each.name for each in probe.read()] == ["NVIDIA H200"]
    assert [each.name for each in probe.read()] == ["NVIDIA H200"]
    assert (tmp_path / "asked").read_text() == "asked\n"


def test_a_tool_that_fails_is_left_alone_and_the_log_says_why(tmp_path: Path) -> None:
    tool = _tool(tmp_path, "rocm-smi", f"echo asked >> {tmp_path}/asked; exit 3")
    probe = FailsafeProbe(ToolProbe([str(tool)], gpu.parse_rocm_smi, every=0.0))
    with capture_logs() as logs:
        assert probe.read() == []
        assert probe.read() == []
    assert [entry["event"] for entry in logs] == ["the GPUs cannot be read"]
    assert "exit status 3" in logs[0]["error"]
    assert (tmp_path / "asked").read_text() == "asked\n"


def test_the_library_is_asked_for_every_card_and_may_not_know_everything() -> None:
    probe = LibraryProbe(_Library())
    assert probe.read() == [
        Gpu(0, "NVIDIA H200", 0.5, memory=2 * 1024**3, memory_total=140 * 1024**3, temperature=61.0, power=430.5),
        Gpu(1, "NVIDIA H200", None, memory=2 * 1024**3, memory_total=140 * 1024**3, temperature=61.0, power=430.5),
    ]


def test_the_library_is_asked_for_what_is_in_use_without_the_drivers_own() -> None:
    (first, second) = LibraryProbe(_NewerLibrary()).read()
    assert first.memory == 1024**3
    assert second.memory == 2 * 1024**3, "an older driver does not know the newer question"


class _Library:
    """What `pynvml` offers of two cards, of which the second cannot tell how busy it is."""

    NVML_TEMPERATURE_GPU = 0
    NVMLError = RuntimeError

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, device: int) -> str | bytes:
        return b"NVIDIA H200" if device else "NVIDIA H200"

    def nvmlDeviceGetMemoryInfo(self, device: int) -> SimpleNamespace:
        return SimpleNamespace(used=2 * 1024**3, total=140 * 1024**3)

    def nvmlDeviceGetUtilizationRates(self, device: int) -> SimpleNamespace:
        if device == 1:
            raise RuntimeError("Not Supported")
        return SimpleNamespace(gpu=50, memory=10)

    def nvmlDeviceGetPowerUsage(self, device: int) -> int:
        return 430_500

    def nvmlDeviceGetTemperature(self, device: int, sensor: int) -> int:
        return 61


class _NewerLibrary(_Library):
    """The same with the newer question for memory, which the second card's driver does not know."""

    nvmlMemory_v2 = 2

    def nvmlDeviceGetMemoryInfo(self, device: int, version: int | None = None) -> SimpleNamespace:
        if version is None:
            return super().nvmlDeviceGetMemoryInfo(device)
        if device == 1:
            raise RuntimeError("Function Not Found")
        return SimpleNamespace(used=1024**3, total=140 * 1024**3)


def _tool(folder: Path, name: str, script: str) -> Path:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return file
