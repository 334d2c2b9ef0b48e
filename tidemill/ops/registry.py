"""All operations, loaded: for the server, and for tests that go through them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tidemill.ops.operation import REGISTRY, Operation

#: The modules of nouns, each of which declares operations.
NOUNS = (
    "overview", "jobs", "runs", "dags", "inputs", "queues", "workers", "schedules", "hosts", "search", "audit",
    "tokens", "retention", "streams", "dead_letters", "monitors", "roster", "alerts", "backtests",
    "pipelines.read", "pipelines.change", "pipelines.triggers", "workflows.files",
)  # fmt: skip


def all_operations() -> list[Operation[Any, Any]]:
    """Every operation that there is."""
    for noun in NOUNS:
        import_module(f"tidemill.ops.{noun}")
    return list(REGISTRY.values())
