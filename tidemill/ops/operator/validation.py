"""Arguments that do not fit their types, in words that name the field and say what fits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec

from tidemill.core.did_you_mean import did_you_mean
from tidemill.core.errors import ArgumentError, PayloadError

T = TypeVar("T", bound=msgspec.Struct)

_AT = re.compile(r" - at `\$?\.?(.*)`\Z")
_NAMES = {
    "int": "an integer", "float": "a number", "str": "text", "bool": "true or false", "null": "null",
    "object": "an object", "array": "a list", "datetime": "a date and time", "date": "a date",
}  # fmt: skip
_PATTERNS = (
    (re.compile(r"Expected `(?:int|float)` (>=|<=|>|<) (\S+)"), "number"),
    (re.compile(r"Expected `(str|array|object)` of length (>=|<=) (\d+)"), "length"),
    (re.compile(r"Expected `([^`]+)`, got `([^`]+)`"), "type"),
)
_FORMS = {
    "Invalid RFC3339 encoded datetime": "must be a date and time with its time zone, such as 2026-03-02T08:00:00Z",
    "Invalid RFC3339 encoded date": "must be a date, such as 2026-03-02",
    "Invalid base64 encoded string": "must be base64",
}
_COMPARED = {">=": "or more", "<=": "or less"}


def checked(kind: type[T], value: T) -> T:
    """A Struct whose fields fit their types."""
    try:
        plain = msgspec.to_builtins(value, builtin_types=(datetime,))
    except (TypeError, ValueError) as error:
        raise PayloadError(f"the arguments cannot become JSON: {error}") from error
    return read_arguments(kind, plain)


def read_arguments(kind: type[T], values: Mapping[str, Any], *, texts: bool = False) -> T:
    """Arguments from plain values; with `texts` from texts, as a query has them."""
    try:
        return msgspec.convert(values, kind, strict=not texts)
    except msgspec.ValidationError as error:
        raise explained(kind, error) from error


def read_json(kind: type[T], body: bytes) -> T:
    """Arguments from a JSON object."""
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except msgspec.ValidationError as error:
        raise explained(kind, error) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ArgumentError("", f"the body is not JSON: {error}") from error


def read_value(body: bytes) -> Any:
    """Any JSON; nothing is null."""
    try:
        return msgspec.json.decode(body) if body else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ArgumentError("", f"the body is not JSON: {error}") from error


def explained(kind: type[msgspec.Struct], error: msgspec.ValidationError) -> ArgumentError:
    """The message of msgspec in our words, with the field that it is about."""
    said = str(error)
    place = _AT.search(said)
    field, said = (place[1], said[: place.start()]) if place else ("", said)
    if match := re.fullmatch(r"Object missing required field `(.+)`", said):
        return ArgumentError(_inside(field, match[1]), "is missing")
    if match := re.fullmatch(r"Object contains unknown field `(.+)`", said):
        names = [] if field else [each.encode_name for each in msgspec.structs.fields(kind)]
        known = f"; the fields are {', '.join(names)}{did_you_mean(match[1], names)}" if names else ""
        return ArgumentError(_inside(field, match[1]), f"there is no such field{known}")
    if said.startswith("Invalid enum value") and (choices := _choices(kind, field)):
        return ArgumentError(field, f"{said.removeprefix('Invalid enum value ')} is not one of {', '.join(choices)}")
    return ArgumentError(field, _reworded(said))


def _reworded(message: str) -> str:
    for pattern, what in _PATTERNS:
        match = pattern.fullmatch(message)
        if match is None:
            continue
        if what == "number":
            sign, bound = match[1], match[2]
            return f"must be {bound} {_COMPARED[sign]}" if sign in (">=", "<=") else f"must be {_than(sign)} {bound}"
        if what == "length":
            unit = {"str": "characters", "array": "items", "object": "fields"}[match[1]]
            return f"must have {'at least' if match[2] == '>=' else 'at most'} {match[3]} {unit}"
        kinds = [each.strip() for each in match[1].split("|")]
        wanted = " or ".join(_NAMES.get(each, each) for each in kinds if each != "null" or len(kinds) == 1)
        return f"must be {wanted}, and not {_NAMES.get(match[2], match[2])}"
    return _FORMS.get(message, message)


def _than(sign: str) -> str:
    return "more than" if sign == ">" else "less than"


def _inside(field: str, name: str) -> str:
    return f"{field}.{name}" if field else name


def _choices(kind: type[msgspec.Struct], field: str) -> list[str]:
    for each in msgspec.structs.fields(kind):
        if each.encode_name == field:
            found = each.type
            while get_origin(found) is not Literal and get_args(found):
                found = get_args(found)[0]
            return [str(choice) for choice in get_args(found)]
    return []
