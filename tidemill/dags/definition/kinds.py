"""The kinds of nodes of a dag, with the fields of each as JSON Schemas, for editors.

The fields come from the node classes; this module adds their descriptions and the forms that differ in files.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tidemill.dags.definition.model import Dag, InputNode, SubDag, TaskNode

#: The description of each field.
ABOUT: dict[str, str] = {
    "name": "Letters, digits, _ and -; not run, item or index.",
    "task": "The task that the node runs.",
    "prompt": "The question to a person: Load {{$.extract.rows}} rows?",
    "dag": "The name of a file beside this one, or a dag written out.",
    "args": 'The arguments: {"day": {"$from": "run.day"}}.',
    "deps": "The nodes that must end first. By default, the nodes that its refs read.",
    "queue": "The queue of its job; by default, the queue of the task.",
    "priority": "0 to 9; 9 runs first.",
    "budget": "The maximum duration of an attempt: 90, or 10m.",
    "stall": "The maximum time without progress after its first progress report.",
    "required_model": "The model that must be loaded.",
    "retry": "A number of attempts, or a policy.",
    "skip_if": "A condition in CEL: extract.rows == 0. Or a ref that is true or false.",
    "skip_with": "Which skipped deps cause it to be skipped: all, any or none.",
    "on_failure": "fail_run ends the run at once; continue lets the other nodes run.",
    "map": 'A ref to a list: one job for each item. {"$from": "extract.files"}',
    "max_concurrency": "For a map: how many items run at the same time.",
    "tolerate": "For a map: how many items may fail.",
    "schema": "The JSON Schema of the answer.",
    "timeout": "How long to wait for the answer: 2h.",
    "default": "The answer that is used after the timeout.",
    "about": "For readers.",
    "nodes": "The nodes.",
    "result": "The result of a run, with refs; by default, the results of the last nodes.",
}
#: The fields whose form in files differs from the stored form.
WRITTEN: dict[str, dict[str, Any]] = {
    "budget": {"type": ["number", "string"], "format": "duration"},
    "stall": {"type": ["number", "string"], "format": "duration"},
    "timeout": {"type": ["number", "string"], "format": "duration"},
    "retry": {},
    "dag": {"suggest": "files"},
    "schema": {"type": "object"},
    "skip_if": {"format": "expression", "type": ["string", "object"]},
    "prompt": {"type": "string", "format": "textarea"},
    "task": {"type": "string", "suggest": "tasks"},
    "queue": {"type": "string", "suggest": "queues"},
    "priority": {"type": "integer", "minimum": 0, "maximum": 9},
    "max_concurrency": {"type": "integer", "minimum": 1},
    "tolerate": {"type": "integer", "minimum": 0},
    "about": {"type": "string", "format": "textarea"},
}
#: The fields that editors show only on request.
RARE = ("stall", "required_model", "skip_with", "on_failure", "max_concurrency", "tolerate", "about")
KINDS = {"task": TaskNode, "input": InputNode, "dag": SubDag}


class NodeKind(msgspec.Struct, frozen=True):
    """A kind of node. `mark` is the field that identifies it in a file."""

    type: str
    mark: str
    about: str
    schema: dict[str, Any]


def kinds() -> list[NodeKind]:
    """Return all kinds of nodes."""
    marks = {"task": "task", "input": "prompt", "dag": "dag"}
    about = {
        "task": "Runs a task as a job; with map, one job for each item of a list.",
        "input": "Asks a person and waits for the answer.",
        "dag": "A whole dag as one node.",
    }
    return [NodeKind(name, marks[name], about[name], schema_of(kind)) for name, kind in KINDS.items()]


def schema_of(kind: Any) -> dict[str, Any]:
    """Return the JSON Schema of a node, or of a dag, in a file."""
    found = msgspec.json.schema(kind)
    own = found["$defs"][kind.__name__]
    properties = {name: _field(name, schema) for name, schema in own["properties"].items() if name != "kind"}
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in own["required"] if name != "kind"],
        "additionalProperties": False,
    }


def dag_schema() -> dict[str, Any]:
    """Return the JSON Schema of a dag's own fields, without its nodes."""
    schema = schema_of(Dag)
    del schema["properties"]["nodes"]
    return {**schema, "required": ["name"]}


def _field(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    extra: dict[str, Any] = {"description": ABOUT[name], **({"rare": True} if name in RARE else {})}
    if name in WRITTEN:
        return {**WRITTEN[name], **extra}
    choices = [each for each in schema.get("anyOf", [schema]) if each.get("type") != "null"]
    plain = {key: value for key, value in (choices[0] if choices else {}).items() if key not in ("default", "$ref")}
    return {**plain, **extra}
