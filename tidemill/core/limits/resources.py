"""What a task needs of the machine that runs it: processors, GPUs, memory, and what a cluster names itself."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tidemill.core.errors import ConfigError
from tidemill.core.limits.memory_size import format_memory, parse_memory

Needs = Mapping[str, float | str]


class Resources(msgspec.Struct, frozen=True):
    """The resources of one job. `others` are those that a cluster's nodes declare under names of their own."""

    cpu: float = 1.0
    gpu: float = 0.0
    memory: int = 0
    """In bytes; 0 if it does not matter."""
    others: dict[str, float] = {}

    def __str__(self) -> str:
        parts = [f"cpu {self.cpu:g}"]
        parts += [f"gpu {self.gpu:g}"] if self.gpu else []
        parts += [f"memory {format_memory(self.memory)}"] if self.memory else []
        return ", ".join([*parts, *(f"{name} {amount:g}" for name, amount in self.others.items())])


def parse_resources(needs: Needs) -> Resources:
    """The resources of `resources={"cpu": 4, "gpu": 0.5, "memory": "8 GB"}`."""
    amounts = {name: _amount(name, value) for name, value in needs.items() if name != "memory"}
    memory = parse_memory(needs["memory"], what="resources: memory") if "memory" in needs else 0
    cpu, gpu = amounts.pop("cpu", 1.0), amounts.pop("gpu", 0.0)
    return Resources(cpu, gpu, memory, amounts)


def _amount(name: str, value: float | str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ConfigError(f"resources: {name} is {value!r}; write a number, such as 4 or 0.5")
    return float(value)
