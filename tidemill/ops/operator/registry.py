"""All operations, loaded: for the server, and for tests that go through them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tidemill.ops.operator.operation import REGISTRY, Operation

#: The modules of nouns, each of which declares operations.
NOUNS = (
    "admin.overview", "jobs.jobs", "runs.runs", "runs.start", "runs.journal", "runs.events", "runs.cancel",
    "runs.migrate", "runs.dags", "runs.inputs", "jobs.queues", "jobs.workers", "jobs.schedules", "admin.hosts",
    "admin.search", "admin.audit", "admin.tokens", "admin.credentials", "admin.sessions", "admin.retention",
    "admin.forget", "admin.deploy", "admin.check", "admin.history", "streams.streams", "streams.dead_letters",
    "monitors.monitors", "monitors.roster", "monitors.alerts", "monitors.backtests", "pipelines.pipelines",
    "pipelines.states", "pipelines.plan", "pipelines.lineage", "pipelines.change", "pipelines.triggers",
    "workflows.files", "explain",
)  # fmt: skip


def all_operations() -> list[Operation[Any, Any]]:
    """Every operation that there is."""
    for noun in NOUNS:
        import_module(f"tidemill.ops.{noun}")
    return list(REGISTRY.values())
