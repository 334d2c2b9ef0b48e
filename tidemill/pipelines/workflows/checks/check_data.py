"""Checks the data of one node: its fields, its templates and its expressions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tidemill.core.did_you_mean import did_you_mean
from tidemill.core.errors import ConfigError
from tidemill.core.expressions.paths import Path
from tidemill.pipelines.workflows.checks.kinds import (
    FIELDS,
    IDLE_FIELDS,
    MOST,
    NEEDS,
    OPEN,
    OUTWARD,
    PINNED,
    REFUSED_FIELDS,
    USES_CREDENTIAL,
    Fields,
    fields_of,
)
from tidemill.pipelines.workflows.checks.problem import WorkflowProblem
from tidemill.pipelines.workflows.expressions.javascript import (
    ExpressionError,
    alone_in,
    bare,
    check_expression,
    expressions_in,
    is_open,
    names_in,
    required_roots,
)
from tidemill.pipelines.workflows.expressions.safe_templates import TemplateError, check_templates
from tidemill.pipelines.workflows.node_types.values import check_json
from tidemill.pipelines.workflows.nodes import NODE_TYPES, TRANSFORMS

#: Fields that hold JSON as a text.
JSON_TEXTS = {"hardwired": "json", "http": "json_body"}
MOST_DIGITS = 15
_BARE = {("if", "condition"), ("transform", "expression")}


def data_problems(type: str, data: Mapping[str, Any], place: Path) -> Iterator[WorkflowProblem]:
    fields = fields_of(type)
    is_pinned = bool(data.get("pinned")) and "pinnedOutput" in data  # It does not run.
    for group in () if is_pinned else NEEDS.get(type, ()):
        if all(data.get(name) in (None, "") for name in group):
            message = " or ".join(name for name in group[:2] if not (fields or {}).get(name, {}).get("deprecated"))
            yield WorkflowProblem((*place, group[0]) if group[0] in data else place, f"{message} is missing")
    for name, value in data.items():
        schema = (fields or {}).get(name) or PINNED.get(name)
        if schema is not None:
            message = _misfit(value, schema, filled=type in NODE_TYPES)
            if message is not None:
                yield WorkflowProblem((*place, name), message)
            yield from _entry_problems(value, schema, (*place, name))
            first = data.get(schema.get("of", name))
            if value not in (None, "", first) and first not in (None, ""):
                yield WorkflowProblem((*place, name), f"this is another name for {schema['of']}, which is there, too")
        elif fields is not None and type not in OPEN:
            hint = did_you_mean(name, fields)
            yield WorkflowProblem((*place, name), f"{type} does not read the field {name!r}{hint}", "unknown")
        if not is_pinned and value not in (None, "", [], {}) and name in REFUSED_FIELDS.get(type, {}):
            yield WorkflowProblem((*place, name), REFUSED_FIELDS[type][name])
        elif value and name == "credentialName" and type in FIELDS and type not in USES_CREDENTIAL:
            message = f"{type} logs in nowhere, and uses no credential: {', '.join(USES_CREDENTIAL)} do"
            yield WorkflowProblem((*place, name), message, "note")
        elif value and name in IDLE_FIELDS.get(type, {}):
            yield WorkflowProblem((*place, name), IDLE_FIELDS[type][name], "note")
    if type == "state_transform" and data.get("transform") and str(data["transform"]) not in TRANSFORMS:
        hint = did_you_mean(data["transform"], TRANSFORMS)
        message = f"the application declares no @transform({data['transform']!r}){hint}"
        yield WorkflowProblem((*place, "transform"), f"{message}: until it does, every build fails", "note")
    if data.get("stateType") and "(" in str(data.get("filter") or ""):
        yield WorkflowProblem((*place, "filter"), "this filter is not understood")
    if not is_pinned:
        yield from json_problems(type, data, place)


def _entry_problems(value: Any, schema: Mapping[str, Any], place: Path) -> Iterator[WorkflowProblem]:
    """Fields that nothing reads in the entries of a list of objects."""
    known = schema.get("items", {}).get("properties")
    for at, each in enumerate(value if known and isinstance(value, list) else ()):
        for name in each if isinstance(each, Mapping) else ():
            if name not in known:
                message = f"the field {name!r} is not understood{did_you_mean(name, known)}"
                yield WorkflowProblem((*place, at, name), message, "unknown")


def template_problems(type: str, data: Mapping[str, Any], place: Path) -> Iterator[WorkflowProblem]:
    try:
        check_templates(type, dict(data))
    except TemplateError as error:
        field = error.field or ("command" if type == "run_command" else "query")
        yield WorkflowProblem((*place, field), str(error))


def json_problems(type: str, data: Mapping[str, Any], place: Path) -> Iterator[WorkflowProblem]:
    """What is written as JSON in a text and is not."""
    field = JSON_TEXTS.get(type, "")
    text = data.get(field)
    if not isinstance(text, str) or not text.strip():
        return
    if type == "hardwired" and alone_in(text) is not None:
        return
    if type == "http" and data.get("body_mode") not in (None, "", "json"):
        return
    try:
        check_json(text)
    except ConfigError as error:
        yield WorkflowProblem((*place, field), str(error))


def setting_problems(data: Mapping[str, Any], fields: Fields, place: Path = ()) -> Iterator[WorkflowProblem]:
    """Check the values of a file or a stage, which have no templates; unknown fields are not checked."""
    for name, schema in fields.items():
        value = data.get(name)
        if value is None:
            continue
        problem = _misfit(value, schema, filled=False)
        if problem is None and schema.get("type") == "string" and not isinstance(value, str):
            problem = "this is a text"
        if problem is not None:
            yield WorkflowProblem((*place, name), problem)
        elif isinstance(value, list):
            for at, each in enumerate(value):
                if (wrong := _misfit(each, schema.get("items", {}), filled=False)) is not None or each is None:
                    yield WorkflowProblem((*place, name, at), wrong or "an entry is missing")
        elif isinstance(value, Mapping):
            others = {each: schema["additionalProperties"] for each in value if "additionalProperties" in schema}
            yield from setting_problems(value, {**others, **schema.get("properties", {})}, (*place, name))


def _misfit(value: Any, schema: Mapping[str, Any], *, filled: bool = True) -> str | None:
    """Why a value does not fit a field; None if it does. Where templates are filled in, one may become anything."""
    if value is None or (filled and isinstance(value, str) and "{{" in value):
        return None
    if "enum" in schema and value not in schema["enum"]:
        return f"{value!r:.100} is not one of {', '.join(map(str, schema['enum']))}"
    kind = schema.get("type")
    if isinstance(kind, list):
        message = [_misfit(value, {**schema, "type": each}, filled=filled) for each in kind]
        return None if None in message else message[0]
    if kind in ("integer", "number"):
        number = number_in(value)
        if number is None:
            return f"{value!r:.100} is not a number"
        least, most = schema.get("minimum", 0), schema.get("maximum", MOST)
        if number < least:
            return f"{value!r:.100} is less than {least:,}"
        if number > most:
            return f"{value!r:.100} is more than {most:,}, which is the most"
        if kind == "integer" and number != int(number):
            return f"{value!r} is not a whole number"
    if kind == "object" and not isinstance(value, Mapping):
        return "this is an object"
    if kind == "array":
        if not isinstance(value, list):
            return "this is a list"
        needed = schema.get("items", {}).get("required", ())
        for at, each in enumerate(value):
            if needed and not (isinstance(each, Mapping) and all(each.get(name) for name in needed)):
                return f"entry {at} is not an object with {' and '.join(needed)}: write {{name, value}}"
    if kind == "boolean" and not isinstance(value, bool):
        return "this is true or false"
    if kind == "string" and isinstance(value, Mapping | list):
        return "this is a text"
    return None


def expression_problems(type: str, data: Mapping[str, Any], place: Path, roots: set[str]) -> Iterator[WorkflowProblem]:
    if type.startswith("state_") and type != "state_write":
        fields: Iterable[str] = [name for name in data if name not in ("pattern", "path", "input", "output")]
    else:
        fields = [name for name in data if name != "pinnedOutput"]
    for name in fields:
        value = data[name]
        if is_open(value):
            yield WorkflowProblem((*place, name), "a {{ has no }}; the text {{ itself is written as {{'{{'}}")
            continue
        try:
            is_bare = (type, name) in _BARE and isinstance(value, str) and value.strip()
            found = [bare(value)] if is_bare else expressions_in(value)
        except ExpressionError as error:
            yield WorkflowProblem((*place, name), str(error))
            continue
        for text in found:
            message = _wrong_with(text, roots) or _exposed(type, name, text)
            if message is not None:
                yield WorkflowProblem((*place, name), message)
                break


def _wrong_with(text: str, roots: set[str]) -> str | None:
    try:
        check_expression(text)
    except ExpressionError as error:
        return str(error)
    for kind in ("env", "credentials"):
        if None in names_in(text, kind):
            return f"name what you read: ${kind}.NAME, or ${kind}['NAME']"
    for root in sorted(required_roots(text) - roots):
        return f"$.{root}: no node of this name leads here{did_you_mean(root, roots - {'items'})}"
    return None


def _exposed(type: str, field: str, text: str) -> str | None:
    """Why an expression may not read a credential where it stands; None if it may, or reads none."""
    if not names_in(text, "credentials") or type in OUTWARD or (type, field) == ("run_command", "stdin"):
        return None
    if type in NODE_TYPES and type not in FIELDS:
        return None  # The application's own code decides what it does with it.
    return f"$credentials cannot be read here, where its value would be kept or shown: {', '.join(OUTWARD)} may read it"


def number_in(value: Any) -> int | float | None:
    """The number that a value is, or that a text of digits writes; None if it is neither."""
    if isinstance(value, str):
        text = value.strip()
        return int(text) if text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS else None
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return None
    return value
