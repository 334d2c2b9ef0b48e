"""The part of the OpenAPI document that follows from the declared operations."""

from __future__ import annotations

from typing import Any, get_origin

import msgspec

from tidemill.ops.operator.operation import Operation
from tidemill.ops.operator.registry import all_operations
from tidemill.server.problems import MEDIA_TYPE, Problem

REFERENCE = "#/components/schemas/{name}"

#: What any request may be answered with beside its result.
ANY_REQUEST = {
    401: "No token or session, or one that is not valid.",
    403: "The role is not enough, the server is read-only, or the request comes from a page of another origin.",
    404: "There is no such object.",
    421: "The server has another name.",
    422: "Something in the request is wrong: `errors` names the field.",
    429: "Too much at once, or too many wrong tokens: try again later.",
    431: "The address and the headers are too long.",
    500: "An error of the server: its log has more.",
    503: "The database does not answer: try again.",
    504: "It took too long.",
}
#: What a request may be answered with that reads.
READS = {304: "It has not changed since the version in `If-None-Match`."}
#: What a request may be answered with that changes something.
CHANGES = {
    400: "The request broke off.",
    408: "The request did not come in time.",
    409: "The state of the object does not allow it, or the idempotency key is in use.",
    412: "The object has been changed since the version in `If-Match`.",
    413: "The request is too large.",
    428: "The request names no version in `If-Match`.",
}


def declare_statuses(paths: dict[str, Any]) -> None:
    """Declare every status that a request may be answered with."""
    for methods in paths.values():
        for method, document in methods.items():
            responses = document["responses"]
            for status, about in {**ANY_REQUEST, **(READS if method == "get" else CHANGES)}.items():
                problem = {MEDIA_TYPE: {"schema": {"$ref": REFERENCE.format(name=Problem.__name__)}}}
                responses[str(status)] = {"description": about, **({} if status == 304 else {"content": problem})}


def describe_operations(prefix: str) -> dict[str, Any]:
    """Paths and schemas of all operations."""
    operations = all_operations()
    kinds = [kind for each in operations for kind in (each.path_type, each.rest_type, each.result)]
    described, schemas = msgspec.json.schema_components([Problem, *kinds], ref_template=REFERENCE)
    _open_objects(schemas)
    found = described[1:]
    paths: dict[str, Any] = {}
    for at, operation in enumerate(operations):
        path, rest, result = found[3 * at : 3 * at + 3]
        place = paths.setdefault(prefix + operation.path, {})
        place[operation.method.lower()] = _describe(
            operation, _properties(path, schemas), rest, _properties(rest, schemas), result
        )
    for kind in {each.path_type.__name__ for each in operations}:
        schemas.pop(kind, None)  # A path's parameters are described one by one.
    return {"paths": paths, "components": {"schemas": schemas}}


def _open_objects(schema: Any) -> None:
    """Allow any field in objects without declared fields; client generators need it stated."""
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
) -> dict[str, Any]:
    parameters = [_parameter("path", *each) for each in path]
    answer: dict[str, Any] = {"description": (get_origin(operation.result) or operation.result).__doc__ or "Done."}
    if operation.status != 204:
        answer["content"] = {"application/json": {"schema": result}}
    document: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "description": operation.description,
        "responses": {str(operation.status): answer},
    }
    if not operation.takes_body:
        parameters += [_parameter("query", *each) for each in fields]
    elif operation.body is not None:
        whole = next(schema for name, schema, _ in fields if name == operation.body)
        document["requestBody"] = {"required": False, "content": {"application/json": {"schema": whole}}}
    elif fields:
        required = any(needed for _, _, needed in fields)
        document["requestBody"] = {"required": required, "content": {"application/json": {"schema": rest}}}
    return document | ({"parameters": parameters} if parameters else {})


def _parameter(place: str, name: str, schema: Any, required: bool) -> dict[str, Any]:
    parameter = {"name": name, "in": place, "required": required or place == "path", "schema": schema}
    return parameter | ({"description": schema["description"]} if "description" in schema else {})


def _properties(schema: Any, schemas: dict[str, Any]) -> list[tuple[str, Any, bool]]:
    """The fields of a Struct: name, schema, and whether it is required."""
    whole = schemas[schema["$ref"].rpartition("/")[2]]
    return [(name, each, name in whole.get("required", ())) for name, each in whole.get("properties", {}).items()]
