"""The GPUs of a host: read through NVIDIA's library where `tidemill[gpu]` is installed, else with a vendor's tool.

    find_probe().read()      # [] on a host without a GPU, or without a way to read it

`nvidia-smi` and `rocm-smi` are programs to start, so they are polled less often than the library. A probe that fails
is skipped for a while and then tried again: a driver may be updated under a running worker.
"""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Protocol

import msgspec
import structlog
from msgspec import Meta

log = structlog.get_logger("tidemill.telemetry")

MIB = 1024 * 1024
TOOL_EVERY = 15.0
TOOL_PATIENCE = 10.0
AFTER_FAILURE = 300.0

NVIDIA_SMI = (
    "nvidia-smi",
    "--query-gpu=index,name,utilization.gpu,memory.used,memory.total,temperature.gpu,power.draw",
    "--format=csv,noheader,nounits",
)
ROCM_SMI = (
    "rocm-smi", "--showproductname", "--showuse", "--showmeminfo", "vram", "--showtemp", "--showpower", "--json",
)  # fmt: skip


class Gpu(msgspec.Struct, frozen=True, omit_defaults=True):
    """The current state of one GPU; None for what is unknown."""

    index: int
    name: str
    busy: Annotated[float | None, Meta(description="The share of time that it was busy, from 0 to 1.")] = None
    memory: Annotated[int | None, Meta(description="Bytes in use.")] = None
    memory_total: int | None = None
    temperature: Annotated[float | None, Meta(description="Degrees Celsius.")] = None
    power: Annotated[float | None, Meta(description="Watts.")] = None


class Probe(Protocol):
    """A way to read the GPUs."""

    def read(self) -> list[Gpu]: ...


class NoProbe:
    """No GPU, or no way to read it."""

    def read(self) -> list[Gpu]:
        return []


class LibraryProbe:
    """Reads GPUs through `pynvml`, the module of nvidia-ml-py."""

    def __init__(self, library: Any) -> None:
        self._library = library
        library.nvmlInit()

    def read(self) -> list[Gpu]:
        return [self._one(index) for index in range(self._library.nvmlDeviceGetCount())]

    def _one(self, index: int) -> Gpu:
        ask = self._library
        device = ask.nvmlDeviceGetHandleByIndex(index)
        name = ask.nvmlDeviceGetName(device)
        # Version 2 of this call excludes the driver's reserved memory, as nvidia-smi does.
        newer = getattr(ask, "nvmlMemory_v2", None)
        memory = self._ask(ask.nvmlDeviceGetMemoryInfo, device, newer) if newer is not None else None
        if memory is None:
            memory = self._ask(ask.nvmlDeviceGetMemoryInfo, device)
        use = self._ask(ask.nvmlDeviceGetUtilizationRates, device)
        power = self._ask(ask.nvmlDeviceGetPowerUsage, device)
        temperature = self._ask(ask.nvmlDeviceGetTemperature, device, ask.NVML_TEMPERATURE_GPU)
        return Gpu(
            index=index,
            name=name.decode() if isinstance(name, bytes) else name,
            busy=None if use is None else use.gpu / 100,
            memory=None if memory is None else memory.used,
            memory_total=None if memory is None else memory.total,
            temperature=None if temperature is None else float(temperature),
            power=None if power is None else power / 1000,
        )

    def _ask(self, question: Callable[..., Any], *of: Any) -> Any:
        """A value, or None: not every GPU supports every query."""
        try:
            return question(*of)
        except self._library.NVMLError:
            return None


class ToolProbe:
    """Reads GPUs with a vendor's command-line tool, at most every few seconds."""

    def __init__(self, command: Sequence[str], parse: Callable[[str], list[Gpu]], *, every: float = TOOL_EVERY) -> None:
        self._command = command
        self._parse = parse
        self._every = every
        self._ask_at = 0.0
        self._known: list[Gpu] = []

    def read(self) -> list[Gpu]:
        now = time.monotonic()
        if now >= self._ask_at:
            self._ask_at = now + self._every
            self._known = []  # return nothing rather than old values if the tool fails now
            asked = subprocess.run(self._command, capture_output=True, text=True, timeout=TOOL_PATIENCE, check=True)
            self._known = self._parse(asked.stdout)
        return self._known


class FailsafeProbe:
    """A probe that may fail: it is then skipped for a while, and the reason is logged."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._again_at = 0.0

    def read(self) -> list[Gpu]:
        if time.monotonic() < self._again_at:
            return []
        try:
            return self._probe.read()
        except Exception as error:  # noqa: BLE001 - drivers and tools can fail in any way
            self._again_at = time.monotonic() + AFTER_FAILURE
            log.warning("the GPUs cannot be read", error=str(error) or repr(error), again_in=f"{AFTER_FAILURE:g}s")
            return []


def find_probe(path: str | None = None) -> Probe:
    """The best way to read the GPUs of this host; `path` is searched for tools instead of PATH."""
    library = _find_library()
    if library is not None:
        return FailsafeProbe(library)
    for command, parse in ((NVIDIA_SMI, parse_nvidia_smi), (ROCM_SMI, parse_rocm_smi)):
        tool = shutil.which(command[0], path=path)
        if tool is not None:
            return FailsafeProbe(ToolProbe((tool, *command[1:]), parse))
    return NoProbe()


def parse_nvidia_smi(text: str) -> list[Gpu]:
    """Parse the output of `NVIDIA_SMI`: one line per GPU, `[N/A]` for unknown values."""
    gpus = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 7 or not cells[0].isdigit():
            continue
        busy, memory, total, temperature, power = (_measured(cell) for cell in cells[2:])
        gpus.append(
            Gpu(
                index=int(cells[0]),
                name=cells[1],
                busy=None if busy is None else busy / 100,
                memory=None if memory is None else int(memory * MIB),
                memory_total=None if total is None else int(total * MIB),
                temperature=temperature,
                power=power,
            )
        )
    return gpus


def parse_rocm_smi(text: str) -> list[Gpu]:
    """Parse the output of `ROCM_SMI`, whose field names differ between versions."""
    start = text.find("{")  # warnings may come first
    if start < 0:
        return []
    cards: Mapping[str, Any] = json.loads(text[start:])
    gpus = []
    for card, fields in cards.items():
        if not card.startswith("card") or not card[4:].isdigit() or not isinstance(fields, Mapping):
            continue
        readings = {str(name).lower(): str(value) for name, value in fields.items()}
        busy, memory, total = (
            _measured(readings.get(name))
            for name in ("gpu use (%)", "vram total used memory (b)", "vram total memory (b)")
        )
        gpus.append(
            Gpu(
                index=int(card[4:]),
                name=_first(readings, "card series", "device name", "card model", "card sku") or "AMD GPU",
                busy=None if busy is None else busy / 100,
                memory=None if memory is None else int(memory),
                memory_total=None if total is None else int(total),
                temperature=_measured(_first(readings, "temperature (sensor edge)", "temperature (sensor junction)")),
                power=_measured(
                    _first(readings, "average graphics package power", "current socket graphics package power")
                ),
            )
        )
    return sorted(gpus, key=lambda gpu: gpu.index)


def _find_library() -> Probe | None:
    try:
        library = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        return LibraryProbe(library)
    except library.NVMLError:
        return None  # installed on a host without an NVIDIA driver


def _first(readings: Mapping[str, str], *beginnings: str) -> str | None:
    for beginning in beginnings:
        for name, value in readings.items():
            if name.startswith(beginning) and value.upper() != "N/A":
                return value
    return None


def _measured(cell: str | None) -> float | None:
    try:
        return float(cell) if cell is not None else None
    except ValueError:
        return None
