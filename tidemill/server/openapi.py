"""The part of the OpenAPI document that follows from the declared operations."""

from __future__ import annotations

from typing import Any, get_origin

import msgspec

from tidemill.ops.operator.operation import Operation
from tidemill.ops.operator.registry import all_operations
from tidemill.server.problems import MEDIA_TYPE, Problem

REFERENCE = "#/components/schemas/{name}"


def describe_operations(prefix: str) -> dict[str, Any]:
    """Paths and schemas of all operations."""
    operations = all_operations()
    kinds = [kind for each in operations for kind in (each.path_type, each.rest_type, each.result)]
    described, schemas = msgspec.json.schema_components([Problem, *kinds], ref_template=REFERENCE)
    _open_objects(schemas)
    problem, *found = described
    paths: dict[str, Any] = {}
    for at, operation in enumerate(operations):
        path, rest, result = found[3 * at : 3 * at + 3]
        place = paths.setdefault(prefix + operation.path, {})
        place[operation.method.lower()] = _describe(
            operation, _properties(path, schemas), rest, _properties(rest, schemas), result, problem
        )
    for kind in {each.path_type.__name__ for each in operations}:
        schemas.pop(kind, None)  # A path's parameters are described one by one.
    return {"paths": paths, "components": {"schemas": schemas}}


def _open_objects(schema: Any) -> None:
    """Say of objects without declared fields that they may have any; generators of clients need to be told."""
    if isinstance(schema, list):
        for each in schema:
            _open_objects(each)
    elif isinstance(schema, dict):
        if schema.get("type") == "object" and "properties" not in schema:
            schema.setdefault("additionalProperties", True)
        for each in schema.values():
            _open_objects(each)


def _describe(
    operation: Operation[Any, Any],
    path: list[tuple[str, Any, bool]],
    rest: Any,
    fields: list[tuple[str, Any, bool]],
    result: Any,
    problem: Any,
) -> dict[str, Any]:
    parameters = [_parameter("path", *each) for each in path]
    answer: dict[str, Any] = {"description": (get_origin(operation.result) or operation.result).__doc__ or "Done."}
    if operation.status != 204:
        answer["content"] = {"application/json": {"schema": result}}
    failed = {"description": "What is wrong.", "content": {MEDIA_TYPE: {"schema": problem}}}
    told: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "description": operation.description,
        "responses": {str(operation.status): answer, "4XX": failed},
    }
    if not operation.takes_body:
        parameters += [_parameter("query", *each) for each in fields]
    elif operation.body is not None:
        whole = next(schema for name, schema, _ in fields if name == operation.body)
        told["requestBody"] = {"required": False, "content": {"application/json": {"schema": whole}}}
    elif fields:
        required = any(needed for _, _, needed in fields)
        told["requestBody"] = {"required": required, "content": {"application/json": {"schema": rest}}}
    return told | ({"parameters": parameters} if parameters else {})


def _parameter(place: str, name: str, schema: Any, required: bool) -> dict[str, Any]:
    told = {"name": name, "in": place, "required": required or place == "path", "schema": schema}
    return told | ({"description": schema["description"]} if "description" in schema else {})


def _properties(schema: Any, schemas: dict[str, Any]) -> list[tuple[str, Any, bool]]:
    """The fields of a Struct: name, schema, and whether it is required."""
    whole = schemas[schema["$ref"].rpartition("/")[2]]
    return [(name, each, name in whole.get("required", ())) for name, each in whole.get("properties", {}).items()]
