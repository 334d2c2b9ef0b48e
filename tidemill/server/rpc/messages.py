"""Converts between protobuf messages and the Structs of operations, field by field under the same names.

A type that protobuf does not have, such as a value of the application's own, is JSON as text.
"""

from __future__ import annotations

import types
from datetime import UTC, date, datetime
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import msgspec
from msgspec import Struct

from tidemill.core.codec import decode
from tidemill.core.errors import ArgumentError, PayloadError
from tidemill.ops.operator.operation import ListOf, PageOf

TIMESTAMP = "google.protobuf.Timestamp"

_SCALARS = {int: "int64", float: "double", str: "string", bool: "bool", date: "string", datetime: TIMESTAMP}
_GENERIC = {ListOf: "List", PageOf: "Page"}


class FieldType(NamedTuple):
    """How the values of one type travel in a message."""

    proto: str
    """The type in the .proto file."""
    nullable: bool = False
    repeated: bool = False
    is_map: bool = False
    is_json: bool = False
    struct: Any = None
    """The Struct that a nested message stands for."""

    @property
    def is_message(self) -> bool:
        return self.struct is not None or self.proto == TIMESTAMP

    @property
    def is_plain(self) -> bool:
        """Whether a list or a map can hold it as it is."""
        return not (self.nullable or self.repeated or self.is_map or self.is_json)


class MessageField(NamedTuple):
    """One field of a Struct."""

    name: str
    type: FieldType
    required: bool
    help: str


_JSON = FieldType("string", is_json=True, nullable=True)


@cache
def fields_of(kind: Any) -> tuple[MessageField, ...]:
    """The fields of a Struct with their types in a message."""
    return tuple(
        MessageField(each.encode_name, field_type(each.type), each.required, _help(each.type))
        for each in msgspec.structs.fields(kind)
    )


def field_type(kind: Any) -> FieldType:
    """How the values of a type travel in a message."""
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) in (Union, types.UnionType):
        return _union_type(get_args(kind))
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Literal:
        return FieldType("string")
    if origin is list or (origin is tuple and inside[-1] is Ellipsis):
        one = field_type(inside[0])
        return one._replace(repeated=True) if one.is_plain else _JSON
    if origin is dict:
        one = field_type(inside[1])
        has_map = inside[0] is str and one.is_plain and one.struct is None
        return FieldType(f"map<string, {one.proto}>", is_map=True) if has_map else _JSON
    if is_struct(kind):
        return FieldType(message_name(kind), struct=kind)
    return FieldType(_SCALARS[kind]) if kind in _SCALARS else _JSON


def _union_type(kinds: tuple[Any, ...]) -> FieldType:
    rest = {each for each in kinds if each is not type(None)}
    if rest == {str, float}:  # Durations and rates: "10m", "30".
        rest = {str}
    found = field_type(rest.pop()) if len(rest) == 1 else _JSON
    return found._replace(nullable=found.nullable or type(None) in kinds)


def is_struct(kind: Any) -> bool:
    return isinstance(origin := get_origin(kind) or kind, type) and issubclass(origin, Struct)


def message_name(kind: Any) -> str:
    """The name of the message for a Struct: its own, or `JobLinePage` for `PageOf[JobLine]`."""
    origin = get_origin(kind)
    return kind.__name__ if origin is None else f"{get_args(kind)[0].__name__}{_GENERIC[origin]}"


def _help(kind: Any) -> str:
    notes = getattr(kind, "__metadata__", ())
    return next((each.description for each in notes if getattr(each, "description", None)), "")


def read_message(message: Any, kind: Any) -> dict[str, Any]:
    """The fields of a message that are set, as plain values for a Struct of this kind."""
    found: dict[str, Any] = {}
    known = message.DESCRIPTOR.fields_by_name
    for field in fields_of(kind):
        value, type = getattr(message, field.name), field.type
        if type.repeated:
            if value or field.required:
                found[field.name] = [_read(each, field) for each in value]
        elif type.is_map:
            if value or field.required:
                found[field.name] = dict(value)
        elif not known[field.name].has_presence or message.HasField(field.name):
            found[field.name] = _read(value, field)
    return found


def read_request(message: Any, kind: Any) -> dict[str, Any]:
    """The arguments in a request. Null for a required text is the empty text, so that a missing one is an error."""
    found = read_message(message, kind)
    for name in null_texts(kind) & found.keys():
        found[name] = found[name] or None
    return found


def null_texts(kind: Any) -> frozenset[str]:
    """The required texts of a request that may be null."""
    return frozenset(
        field.name
        for field in fields_of(kind)
        if field.required and field.type.nullable and field.type.proto == "string" and not field.type.is_json
    )


def _read(value: Any, field: MessageField) -> Any:
    type = field.type
    if type.struct is not None:
        return read_message(value, type.struct)
    if type.proto == TIMESTAMP:
        return value.ToDatetime(UTC)
    if type.is_json:
        try:
            return decode(value.encode())
        except PayloadError as error:
            raise ArgumentError(field.name, f"is not JSON: {error}") from error
    return value


def fill_message(message: Any, value: Any, kind: Any) -> Any:
    """Put the fields of a Struct into a message; a field that is None stays unset."""
    for field in fields_of(kind):
        given, type = getattr(value, field.name), field.type
        if given is None or given is msgspec.UNSET:
            continue
        part = getattr(message, field.name)
        if type.is_json:
            setattr(message, field.name, msgspec.json.encode(given).decode())
        elif type.is_map:
            part.update(given)
        elif type.is_message and type.repeated:
            for each in given:
                _fill(part.add(), each, type)
        elif type.is_message:
            part.SetInParent()
            _fill(part, given, type)
        elif type.repeated:
            part.extend(given)
        else:
            setattr(message, field.name, str(given) if type.proto == "string" else given)
    return message


def _fill(part: Any, given: Any, type: FieldType) -> None:
    if type.struct is not None:
        fill_message(part, given, type.struct)
    elif given.tzinfo is None:
        raise ValueError("a Timestamp needs a time zone")
    else:
        part.FromDatetime(given)
