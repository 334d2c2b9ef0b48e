"""The kinds of nodes that a dag may have, with the fields of each as JSON Schemas: what editors offer.

The fields are those of the nodes' own classes; what is written differently in files is told here, and what each is
for.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tidemill.dags.definition.model import Dag, InputNode, SubDag, TaskNode

#: What each field is for.
ABOUT: dict[str, str] = {
    "name": "Letters, digits, _ and -; not run, item or index.",
    "task": "The task that it runs.",
    "prompt": "What somebody is asked: Load {{$.extract.rows}} rows?",
    "dag": "The name of a file beside this one, or a dag written out.",
    "args": 'The arguments: {"day": {"$from": "run.day"}}.',
    "deps": "The nodes that come before. Without it, those that its refs read.",
    "queue": "Where its job waits; as the task has it, if left out.",
    "priority": "0 to 9; 9 goes first.",
    "budget": "The longest that an attempt may take: 90, or 10m.",
    "stall": "The longest that it may be silent after its first progress.",
    "required_model": "The model that must be loaded.",
    "retry": "A number of attempts, or a policy.",
    "skip_if": "A condition in CEL: extract.rows == 0. Or a ref that is true or false.",
    "skip_with": "With which skipped deps it is skipped too.",
    "on_failure": "fail_run ends the run at once; continue lets the rest go on.",
    "map": 'A ref to a list: one job for each item. {"$from": "extract.files"}',
    "max_parallel": "Of a map: how many items at a time.",
    "tolerate": "Of a map: how many items may fail.",
    "schema": "The JSON Schema that the answer must fit.",
    "timeout": "How long to wait for the answer: 2h.",
    "default": "The answer after the timeout.",
    "about": "For readers.",
    "nodes": "The nodes.",
    "result": "What a run gives, with refs; without it, what the last nodes give.",
}
#: What is written otherwise in files than it is kept.
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
    "max_parallel": {"type": "integer", "minimum": 1},
    "tolerate": {"type": "integer", "minimum": 0},
    "about": {"type": "string", "format": "textarea"},
}
#: What editors show only when it is asked for.
RARE = ("stall", "required_model", "skip_with", "on_failure", "max_parallel", "tolerate", "about")
KINDS = {"task": TaskNode, "input": InputNode, "dag": SubDag}


class NodeKind(msgspec.Struct, frozen=True):
    """A kind of nodes. `mark` is the field by which a file tells it."""

    type: str
    mark: str
    about: str
    schema: dict[str, Any]


def kinds() -> list[NodeKind]:
    """All kinds of nodes."""
    marks = {"task": "task", "input": "prompt", "dag": "dag"}
    about = {
        "task": "Runs a task as a job; with map, one for each item of a list.",
        "input": "Asks a person, and waits for the answer.",
        "dag": "A whole dag as one node.",
    }
    return [NodeKind(name, marks[name], about[name], schema_of(kind)) for name, kind in KINDS.items()]


def schema_of(kind: Any) -> dict[str, Any]:
    """What a node, or a dag, looks like in a file."""
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
    """What stands at the top of a dag's file, beside its nodes."""
    schema = schema_of(Dag)
    del schema["properties"]["nodes"]
    return {**schema, "required": ["name"]}


def _field(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = {"description": ABOUT[name], **({"rare": True} if name in RARE else {})}
    if name in WRITTEN:
        return {**WRITTEN[name], **told}
    choices = [each for each in schema.get("anyOf", [schema]) if each.get("type") != "null"]
    plain = {key: value for key, value in (choices[0] if choices else {}).items() if key not in ("default", "$ref")}
    return {**plain, **told}
