"""What the machine of a worker has, and which tasks need more: their jobs are left to other workers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from tidemill.core.limits.memory_size import format_memory
from tidemill.core.limits.resources import Resources
from tidemill.engine.jobs.task import Task


class Machine:
    """The resources of this machine; `declared` ones replace those that are found."""

    def __init__(self, declared: Mapping[str, float]) -> None:
        self._declared = declared

    @cached_property
    def _found(self) -> dict[str, float]:
        import psutil

        from tidemill.engine.telemetry.gpu import find_probe  # Few tasks need any of it.

        return {"gpu": len(find_probe().read()), "memory": psutil.virtual_memory().total}

    def missing(self, needs: Resources) -> str | None:
        """What a task needs and the machine does not have; its processors are shared by all jobs."""
        wanted = {"gpu": needs.gpu, "memory": needs.memory, **needs.others}
        for name, amount in wanted.items():
            has = self._declared.get(name, self._found.get(name, 0)) if amount else 0
            if amount > has and name == "memory":
                return f"memory {format_memory(needs.memory)}, and this machine has {format_memory(int(has))}"
            if amount > has:
                return f"{name} {amount:g}, and this machine has {f'{has:g}' if has else 'none'}"
        return None


def find_missing(tasks: Mapping[str, Task[Any, Any]], declared: Mapping[str, float]) -> dict[str, str]:
    """The tasks that this machine cannot run, each with what it needs."""
    machine = Machine(declared)
    needs = {name: tasks[name].options.resources for name in tasks}
    missing = {name: machine.missing(each) for name, each in needs.items() if each is not None}
    return {name: what for name, what in missing.items() if what is not None}
