"""Nodes that only compute: starts, literal values, fields, expressions and conditions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from tidemill.core.errors import ConfigError
from tidemill.pipelines.workflows.expressions.javascript import (
    Hole,
    alone_in,
    bare,
    evaluate,
    fill,
    find_holes,
    is_true,
    shown,
)
from tidemill.pipelines.workflows.nodes import node_type


@node_type("start")
@node_type("webhook")
def pass_on(data: dict[str, Any], item: dict[str, Any]) -> Any:
    """Starts a run: returns the payload."""
    return item.get("payload")


@node_type("scheduled")
def scheduled(data: dict[str, Any], item: dict[str, Any]) -> Any:
    """Starts a run on a schedule: returns the time of the fire."""
    given = item.get("payload")
    at = given.get("scheduledAt") if isinstance(given, Mapping) else None
    moment = datetime.fromtimestamp(at, UTC) if isinstance(at, int | float) else datetime.now(UTC)
    return {**(given if isinstance(given, Mapping) else {}), "time": moment.isoformat()}


@node_type("hardwired", per_item=False, raw=("items", "value", "json"))
def hardwired(data: dict[str, Any], items: list[dict[str, Any]]) -> Any:
    """Returns its literal items."""
    context = {"items": items, **(items[0] if items else {})}
    value = data.get("items", data.get("value"))
    is_json = value is None
    if is_json:
        value = data.get("json")
    if isinstance(value, str) and (is_json or value.lstrip()[:1] in ("[", "{")) and alone_in(value) is None:
        return fill_json(value, context)
    made = fill(value, context)
    return _parsed(made) if is_json and isinstance(made, str) else made


@node_type("set")
def set_fields(data: dict[str, Any], item: dict[str, Any]) -> Any:
    """Returns its fields, filled in."""
    fields = data.get("fields", {name: value for name, value in data.items() if name not in ("pinned", "pinnedOutput")})
    return pairs(fields, "fields") if isinstance(fields, list) else fields


@node_type("transform", raw=("expression",))
def transform_item(data: dict[str, Any], item: dict[str, Any]) -> Any:
    """Returns the value of its expression as `result`."""
    return {"result": evaluate(bare(shown(data["expression"])), item)}


@node_type("if", raw=("condition",))
def decide(data: dict[str, Any], item: dict[str, Any]) -> Any:
    """Lets an item through if its condition holds; a connection named false takes the others."""
    return is_true(bare(shown(data["condition"])), item)


def pairs(given: Any, field: str) -> dict[str, Any]:
    """A list of `{name, value}` as an object; an object as it is."""
    if given is None or given == "":
        return {}
    if isinstance(given, Mapping):
        return dict(given)
    if not isinstance(given, list) or not all(isinstance(each, Mapping) and each.get("name") for each in given):
        raise ConfigError(f"{field} is a list of {{name, value}}, or an object")
    return {str(each["name"]): each.get("value") for each in given}


def fill_json(text: str, context: Mapping[str, Any]) -> Any:
    """JSON text with its expressions filled in: a value stays one value, whatever is in it."""
    return _read_json(text, lambda hole: evaluate(hole.expression, context))


def check_json(text: str) -> None:
    """Raise a `ConfigError` if a text is JSON for no values of its expressions: one may be a text or a number."""
    try:
        _read_json(text, lambda _: "a")
    except ConfigError:
        _read_json(text, lambda _: 1)


def _read_json(text: str, value_of: Callable[[Hole], Any]) -> Any:
    parts: list[str] = []
    at, in_string = 0, False
    for hole in find_holes(text):
        before = text[at : hole.start]
        parts.append(before)
        in_string = _ends_in_string(before, in_string)
        value = value_of(hole)
        parts.append(json.dumps(shown(value))[1:-1] if in_string else json.dumps(value))
        at = hole.end
    return _parsed("".join([*parts, text[at:]]))


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"this is not JSON: {error}") from error


def _ends_in_string(text: str, in_string: bool) -> bool:
    skip = False
    for char in text:
        if skip:
            skip = False
        elif char == "\\":
            skip = True
        elif char == '"':
            in_string = not in_string
    return in_string
