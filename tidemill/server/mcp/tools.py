"""The operations that assistants are offered as tools, and their descriptions."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from tidemill.ops.operator.operation import Operation
from tidemill.ops.operator.registry import all_operations

#: What an assistant needs to find out what happens and to act on it. Accounts, credentials, files and settings stay
#: with people.
OFFERED = (
    "get_overview", "search", "explain", "explain_why_not",
    "list_startable", "list_jobs", "get_job", "get_job_log", "enqueue_job", "retry_jobs", "cancel_jobs",
    "list_batches", "get_batch", "enqueue_batch", "cancel_batch",
    "list_workflows", "list_runs", "get_run", "get_dag_tree", "get_ticks", "get_run_log", "start_run", "send_event",
    "fork_run", "retry_run", "rerun_dag", "cancel_run", "cancel_node",
    "list_inputs", "submit_input",
    "list_queues", "pause_queue", "resume_queue", "list_workers", "get_worker", "list_history", "get_history",
    "list_schedules", "run_schedule", "pause_schedule", "resume_schedule",
    "list_streams", "list_dead_letters", "get_dead_letter", "replay_dead_letters",
    "list_monitors", "list_alerts", "get_alert", "ack_alerts", "note_alert", "silence_alerts",
    "list_pipelines", "get_pipeline", "get_state", "retry_states",
    "list_audit",
)  # fmt: skip


class Tool(msgspec.Struct, frozen=True):
    """An operation with the JSON Schema of its arguments."""

    operation: Operation[Any, Any]
    schema: dict[str, Any]


@lru_cache(maxsize=1)
def offered_tools() -> dict[str, Tool]:
    """The tools by name."""
    found = {each.name: each for each in all_operations()}
    return {name: Tool(found[name], schema_of(found[name].args)) for name in OFFERED}


def schema_of(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON Schema of arguments, an object at its root, as the protocol wants it."""
    schema = msgspec.json.schema(kind)
    parts = schema["$defs"]
    root = {**parts.pop(schema["$ref"].rpartition("/")[2])}
    return {**root, "$defs": parts} if parts else root
