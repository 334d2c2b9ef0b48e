"""Every known field of a workflow file has an input of its own in the editor: none is edited as raw JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tidemill.dags.definition import kinds as dag_kinds
from tidemill.pipelines.workflows.checks import kinds

PLAIN = {"string", "integer", "number", "boolean"}
#: What is JSON to the person who writes it: a JSON Schema.
JSON_ITSELF = {("input", "schema")}


def fields() -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Every field of every kind of node, stage and file, also within fields: where it is, its name and its schema."""
    sources: list[tuple[str, Mapping[str, Any]]] = [
        *((each.type, each.schema["properties"]) for each in (*kinds.kinds(), *dag_kinds.kinds())),
        ("stage", kinds.STAGE),
        ("file", {**kinds.FILE, **kinds.STAGED}),
        ("dag", dag_kinds.dag_schema()["properties"]),
    ]
    for where, known in sources:
        for name, schema in known.items():
            yield where, name, schema
            yield from ((f"{where}.{name}", inner, each) for inner, each in schema.get("properties", {}).items())


def test_every_field_has_an_input_of_its_own() -> None:
    for where, name, schema in fields():
        check_field(where, name, schema)


def check_field(where: str, name: str, schema: Mapping[str, Any]) -> None:
    assert schema.get("format") != "json" or (where, name) in JSON_ITSELF
    assert schema.get("description"), f"{where}.{name} says nothing to people"
    types = schema.get("type", [])
    # A choice, a text, the rows of a list, named values; where the schema leaves the type open, any of these.
    assert ({types} if isinstance(types, str) else set(types)) <= PLAIN | {"array", "object"}
    assert schema.get("properties", {"one": 1}), "an object without known fields is one of named values"
