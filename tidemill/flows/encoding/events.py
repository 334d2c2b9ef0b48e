"""Events as JSON and back, for the journal, the stream and other processes.

    data = encode_event(event)                 b'{"type":"shop.Paid","value":{"amount":3}}'
    event = decode_event(data)                 an instance of shop.Paid again
    event = decode_event(data, registry)       only if the registry lists shop.Paid

Reading never imports anything: a class is found by its qualified name among the event classes that this process has
already defined, or among those of a registry. A dynamic value travels beside the declared fields. What has no JSON form
raises a `PayloadError` before anything is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Any
from weakref import WeakValueDictionary

import msgspec
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from tidemill.core.codec import find_no_number
from tidemill.core.errors import PayloadError
from tidemill.flows.encoding.dict_like import DictLikeModel

ModelClass = type[DictLikeModel]

_defined: WeakValueDictionary[str, ModelClass] = WeakValueDictionary()


class Document(msgspec.Struct, frozen=True):
    """An event as it is written: the qualified name of its class, and its values."""

    type: str
    value: dict[str, Any]


class _Envelope(msgspec.Struct, frozen=True):
    type: str
    value: msgspec.Raw


_read_envelope = msgspec.json.Decoder(_Envelope).decode
_write_plain = msgspec.json.Encoder().encode

#: What JSON has a form for that cannot be another: a float may be no number, a list may hold anything.
_PLAIN = {"str": str, "int": int, "bool": bool}


class EventRegistry:
    """The event classes that may be read, by qualified name; also found by their bare name if only one has it."""

    def __init__(self, classes: Iterable[ModelClass] = ()) -> None:
        self._classes: dict[str, ModelClass] = {}
        self.add(*classes)

    def add(self, *classes: ModelClass) -> None:
        for cls in classes:
            self._classes[qualified_name(cls)] = cls

    def __contains__(self, cls: object) -> bool:
        return isinstance(cls, type) and self._classes.get(qualified_name(cls)) is cls

    def __iter__(self) -> Iterator[ModelClass]:
        return iter(self._classes.values())

    def resolve(self, name: str) -> ModelClass:
        """The class of this qualified name."""
        if (cls := self._classes.get(name)) is None:
            raise PayloadError(f"event class {name} is not among those that may be read here; add it to the registry")
        return cls

    def find(self, name: str) -> ModelClass:
        """The class that a person means by a qualified or bare name."""
        if name in self._classes:
            return self._classes[name]
        found = [cls for cls in self._classes.values() if cls.__name__ == name]
        if len(found) == 1:
            return found[0]
        known = ", ".join(sorted(self._classes)) or "none"
        trouble = "is the name of several event classes" if found else "is not an event class of this workflow"
        raise PayloadError(f"{name} {trouble}; the classes are: {known}")


_allowed: ContextVar[EventRegistry | None] = ContextVar("allowed_events", default=None)


def qualified_name(cls: type) -> str:
    """The name that a class is written and found by."""
    return f"{cls.__module__}.{cls.__qualname__}"


def remember(cls: ModelClass) -> None:
    """Let instances of this class be read in this process. A class defined again takes the place of the earlier one."""
    name = qualified_name(cls)
    cls._wire_prefix = b'{"type":' + to_json(name) + b',"value":'
    cls._wire_kinds = _plain_kinds(cls)
    _defined[name] = cls


def _plain_kinds(cls: ModelClass) -> tuple[type, ...] | None:
    """The types of an event's fields, if values of these types are all of it and are written as they are.

    Of any other event, pydantic knows how it is written.
    """
    schema: Any = cls.__dict__.get("__pydantic_core_schema__")
    if not isinstance(schema, dict) or cls._hidden is not DictLikeModel._hidden:
        return None
    fields = schema.get("schema", {})
    if schema.get("type") != "model" or fields.get("type") != "model-fields" or fields.get("computed_fields"):
        return None
    kinds = [_plain_kind(field) for field in fields["fields"].values()]
    return None if "serialization" in schema or None in kinds else tuple(kinds)


def _plain_kind(field: Any) -> Any:
    value = field["schema"]
    if value["type"] == "default":
        value = value["schema"]
    told_how = "serialization" in value or "serialization" in field["schema"]
    return None if told_how or field.keys() - {"type", "schema", "metadata"} else _PLAIN.get(value["type"])


def defined_elsewhere() -> list[ModelClass]:
    """The event classes that this process has defined and Tidemill has not: those of the application."""
    return [cls for cls in _defined.values() if not cls.__module__.startswith("tidemill.")]


def defined_class(name: str) -> ModelClass:
    """The event class of this qualified name that this process has defined."""
    if (cls := _defined.get(name)) is not None:
        return cls
    # A program's module goes by another name where it is run than where it is imported.
    bare = name.rpartition(".")[2]
    namesakes = [cls for cls in dict.fromkeys(_defined.values()) if cls.__qualname__ == bare]
    if len(namesakes) > 1:
        place = name.rpartition(".")[0].rpartition(".")[2]
        namesakes = [cls for cls in namesakes if cls.__module__.rpartition(".")[2] == place]
    if len(namesakes) == 1:
        return namesakes[0]
    raise PayloadError(f"event class {name} is not defined in this process; import the module that defines it")


def encode_event(event: DictLikeModel) -> bytes:
    """The JSON bytes of an event, from which `decode_event` makes an equal one."""
    cls = type(event)
    values = event.__dict__
    if cls._wire_kinds is not None and not event._data and tuple(map(type, values.values())) == cls._wire_kinds:
        try:
            return cls._wire_prefix + _write_plain(values) + b"}"
        except (ValueError, OverflowError):
            pass  # A number that is too long, or text that is none: pydantic tells, or knows better.
    try:
        value = cls.__pydantic_serializer__.to_json(event, warnings="error")
        for name, hidden in event._hidden().items():
            comma = b"" if value == b"{}" else b","
            value = value[:-1] + comma + to_json(name) + b":" + to_json(hidden) + b"}"
    except (PydanticSerializationError, RecursionError, ValueError) as error:
        raise PayloadError(f"event {qualified_name(cls)} cannot be stored as JSON: {error}") from error
    if b"NaN" in value or b"Infinity" in value or b"null" in value:
        _refuse_no_number(event)
    return cls._wire_prefix + value + b"}"


def _refuse_no_number(event: DictLikeModel) -> None:
    """NaN would be written as null, or as something that is no JSON."""
    name = qualified_name(type(event))
    plain = type(event).__pydantic_serializer__.to_python(event, warnings="none")
    place = find_no_number(plain, "$") or find_no_number(event_document(event)["value"], "$")
    if place is not None:
        raise PayloadError(f"event {name} cannot be stored as JSON: NaN or an infinity - at `{place}`")


def event_document(event: DictLikeModel) -> dict[str, Any]:
    """An event as plain JSON values, in the form of `Document`."""
    cls = type(event)
    try:
        value = cls.__pydantic_serializer__.to_python(event, mode="json", warnings="error")
        value.update(to_jsonable_python(event._hidden()))
    except (PydanticSerializationError, RecursionError, ValueError) as error:
        raise PayloadError(f"event {qualified_name(cls)} cannot be stored as JSON: {error}") from error
    return {"type": qualified_name(cls), "value": value}


def decode_event(data: bytes | str | dict[str, Any] | Document, allowed: EventRegistry | None = None) -> Any:
    """The event that was encoded; a `PayloadError` if its class may not be read or its values do not fit."""
    token = _allowed.set(allowed) if allowed is not None else None
    try:
        if isinstance(data, dict | Document):
            document = msgspec.convert(data, Document) if isinstance(data, dict) else data
            cls = _class_named(document.type)
            return cls.model_validate(document.value)
        envelope = _read_envelope(data)
        cls = _class_named(envelope.type)
        return cls.__pydantic_validator__.validate_json(bytes(envelope.value))
    except msgspec.MsgspecError as error:
        raise PayloadError(f"this is not an encoded event: {error}") from error
    except (ValidationError, TypeError) as error:
        raise PayloadError(f"the stored values do not fit the event class: {error}") from error
    finally:
        if token is not None:
            _allowed.reset(token)


def _class_named(name: str) -> ModelClass:
    allowed = _allowed.get()
    return defined_class(name) if allowed is None else allowed.resolve(name)
