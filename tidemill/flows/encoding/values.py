"""Convert values of any run (its state, events and results) to plain JSON values and back, with their types.

    packed = pack({"at": datetime.now(UTC), "items": {1, 2}})
    value = unpack(packed)                       equal, with the same types

Plain JSON values are stored as they are. Every other value is stored with the name of its class: pydantic models,
dataclasses, msgspec Structs, enums, tuples, sets, dates, and whatever else pydantic can serialise. An object that has
no such form (a lock, a client, a function) raises a `PayloadError`. Decoding never imports a module: classes are looked
up among those that this process has loaded.
"""

from __future__ import annotations

from math import isfinite
from typing import Any

import msgspec
from pydantic import BaseModel

from tidemill.core.codec import MASK, SECRET, encode
from tidemill.core.errors import PayloadError
from tidemill.flows.definition.events import Event
from tidemill.flows.encoding.classes import (
    STANDS_IN,
    find_class,
    loaded_class,
    older_classes,
    qualified_name,
    remember_class,
)
from tidemill.flows.encoding.copies import SHARED
from tidemill.flows.encoding.events import decode_event, encode_event, event_document
from tidemill.flows.encoding.models import pack_model, stored_fields, unpack_model
from tidemill.flows.encoding.typed_values import Form, find_form, is_secret

_EVENT, _MODEL, _TUPLE, _DICT = "$event", "$model", "$tuple", "$dict"
_CLASS, _VALUE = "$class", "value"
_PLAIN = frozenset({type(None), bool, str})
_BUILT_IN = _PLAIN | {int, float, list, dict, tuple}
_LEAST, _MOST = -(2**63), 2**64 - 1  # the integers that the encoder accepts

_forms: dict[type, Form | None] = {}


class OlderValue(msgspec.Struct, frozen=True):
    """A value of another version of the application in its stored form, while a run of that version is read."""

    stored: Any


def pack(value: Any) -> Any:
    """Convert a value to plain JSON values; a `PayloadError` names a type that has no JSON form."""
    try:
        return _pack(value)
    except RecursionError as error:
        raise PayloadError("the value contains itself, or is nested too deeply, and cannot be stored") from error


def pack_state(value: Any, path: str) -> Any:
    """Convert a value of a run's state; the error names the path of the part that cannot be stored."""
    try:
        return pack(value)
    except PayloadError as error:
        place, reason = _find_refused(value, path, error)
        where = f"the value at {place!r} in the state" if place else "the state"
        raise PayloadError(
            f"{where} cannot be stored: {reason}; keep live objects in a Resource, in a field with exclude=True, or "
            "with store.set(..., durable=False)"
        ) from error


def pack_part(value: Any, whole: str, name: str = "") -> Any:
    """Convert a part of something; the error names the whole and the path of the part that cannot be stored."""
    try:
        return pack(value)
    except PayloadError as error:
        place, reason = _find_refused(value, name, error)
        raise PayloadError(f"{whole} cannot be stored as JSON: {f'{place}: ' if place else ''}{reason}") from error


def _pack(value: Any) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is int:
        return value if _LEAST <= value <= _MOST else {_CLASS: "builtins.int", _VALUE: str(value)}
    if kind is float:  # JSON has no infinity, which is where the search for a least value begins.
        return value if isfinite(value) else {_CLASS: "builtins.float", _VALUE: str(value)}
    if kind is list:
        return [_pack(each) for each in value]
    if kind is dict:
        for key in value:
            if type(key) is not str or key[:1] == "$":
                return {_DICT: [[_pack(key), _pack(each)] for key, each in value.items()]}
        return {key: _pack(each) for key, each in value.items()}
    if kind is tuple:
        return {_TUPLE: [_pack(each) for each in value]}
    if isinstance(value, Event):
        return {_EVENT: event_document(value)}
    if isinstance(value, BaseModel):
        remember_class(kind)
        packed = {_MODEL: qualified_name(kind), **pack_model(value, _pack, _unpack)}
        # With `json` it is validated when it is read, by a class that may differ from the one that wrote it.
        return {**packed, "json": packed.get("json", {})} if STANDS_IN in kind.__dict__ else packed
    if kind is OlderValue:
        return value.stored
    form = _form_of(kind)
    if form is None:
        raise PayloadError(f"class {qualified_name(kind)} has no stored form")
    remember_class(kind)
    return {SECRET if is_secret(kind) else _CLASS: qualified_name(kind), _VALUE: _pack(form.dump(value))}


def encode_packed(value: Any) -> bytes:
    """Encode a packed value as JSON bytes."""
    if isinstance(value, Event):
        return encode_packed_event(encode_event(value))
    return encode(pack(value))


def encode_packed_event(data: bytes) -> bytes:
    """Return the packed form of an event from its JSON bytes."""
    return b'{"' + _EVENT.encode() + b'":' + data + b"}"


def unpack(value: Any) -> Any:
    """Convert plain JSON values back to a value; a `PayloadError` if it no longer fits its class."""
    if type(value) in SHARED:
        return value
    try:
        return _unpack(value)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise PayloadError(f"a stored value no longer fits its class: {error}") from error


def _unpack(value: Any) -> Any:
    if isinstance(value, dict):
        for key in value:
            if key[:1] == "$":
                return _unpack_tagged(key, value)
            break
        return {name: each if type(each) in SHARED else _unpack(each) for name, each in value.items()}
    if isinstance(value, list):
        return [each if type(each) in SHARED else _unpack(each) for each in value]
    return value


def _unpack_tagged(tag: str, value: dict[str, Any]) -> Any:
    content = value[tag]
    if tag == _EVENT:
        return decode_event(content)
    if tag == _TUPLE:
        return tuple([_unpack(each) for each in content])
    if tag == _MODEL:
        older = older_classes.get()
        if older is not None and not isinstance(value.get("json", {}), dict):
            return OlderValue(value)
        return unpack_model(loaded_class(content) if older is None else older.model_class(content), value, _unpack)
    if tag == _DICT:
        return {_unpack(key): _unpack(each) for key, each in content}
    if tag not in (_CLASS, SECRET):
        raise PayloadError(f"unknown stored form {tag!r}: it may have been written by a newer version of Tidemill")
    if older_classes.get() is not None:
        return _unpack_older(value, find_class(content), value[_VALUE])
    return _unpack_form(content, loaded_class(content), value[_VALUE])


def _unpack_older(value: dict[str, Any], kind: type | None, content: Any) -> Any:
    """Read a value of an older version by its class, or keep its stored form if that no longer fits."""
    if kind is None:
        return OlderValue(value)
    try:
        return _unpack_form(qualified_name(kind), kind, content)
    except Exception:  # noqa: BLE001 - the code of the class may raise any exception
        return OlderValue(value)


def _unpack_form(name: str, kind: type, content: Any) -> Any:
    if kind is int:
        return int(content)
    form = _form_of(kind)
    if form is None:
        raise PayloadError(f"class {name} can no longer be read from its stored form")
    return form.load(kind, _unpack(content))


def has_stored_form(value: Any) -> bool:
    """Return whether values of this class can be stored; what they contain may be refused nevertheless."""
    kind = type(value)
    return kind in _BUILT_IN or isinstance(value, BaseModel) or _form_of(kind) is not None


def _form_of(kind: type) -> Form | None:
    if kind not in _forms:
        _forms[kind] = find_form(kind)
    return _forms[kind]


# -- for display ----------------------------------------------------------------------------------


def readable(packed: Any) -> Any:
    """Return a packed value for display: without the names of classes, and with secrets masked."""
    if isinstance(packed, list):
        return [readable(each) for each in packed]
    if not isinstance(packed, dict):
        return packed
    if SECRET in packed:
        return MASK
    if _CLASS in packed:
        return readable(packed[_VALUE])
    if _TUPLE in packed:
        return readable(packed[_TUPLE])
    if _DICT in packed:
        return {str(readable(key)): readable(each) for key, each in packed[_DICT]}
    if _MODEL in packed:
        fields = packed.get("json")
        return readable(packed["fields"]) | fields if isinstance(fields, dict) else fields or readable(packed["fields"])
    if isinstance(event := packed.get(_EVENT), dict):
        return {name: each for name, each in event.items() if name in ("type", _VALUE)}
    return {name: readable(each) for name, each in packed.items()}


def plain_result(packed: Any) -> Any:
    """Return the result of a run for display: the result of a StopEvent, or the fields of a subclass."""
    event = packed.get(_EVENT) if isinstance(packed, dict) and len(packed) == 1 else None
    if not isinstance(event, dict) or not isinstance(event.get(_VALUE), dict):
        return readable(packed)
    fields = event[_VALUE]
    return fields["result"] if set(fields) == {"result"} else fields


def _find_refused(value: Any, path: str, error: PayloadError) -> tuple[str, PayloadError]:
    """Return the path of the innermost part that cannot be stored, with the reason."""
    parts: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        parts = list(value.items())
    elif isinstance(value, list | tuple):
        parts = list(enumerate(value))
    elif isinstance(value, BaseModel):
        parts = list(stored_fields(value).items())
    for name, part in parts:
        try:
            pack(part)
        except PayloadError as inner:
            if type(part) is not type(value) or part is not value:
                return _find_refused(part, f"{path}.{name}" if path else str(name), inner)
    return path, error
