"""Encode and decode events as JSON, for the journal, the stream and other processes.

    data = encode_event(event)                 b'{"type":"shop.Paid","value":{"amount":3}}'
    event = decode_event(data)                 an instance of shop.Paid again
    event = decode_event(data, registry)       only if the registry lists shop.Paid

Decoding never imports a module: a class is found by its qualified name among the event classes that this process has
already defined, or among those of a registry. Dynamic values are stored beside the declared fields. Values that JSON
would change (a tuple or a date without a declared type, a secret) are stored a second time, with their types, under
`exact`. A value without a stored form raises a `PayloadError` before anything is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, Protocol, get_args, get_origin
from weakref import WeakValueDictionary

import msgspec
from pydantic import BaseModel, Secret, SecretBytes, SecretStr, ValidationError
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from tidemill.core.codec import find_no_number
from tidemill.core.did_you_mean import did_you_mean
from tidemill.core.errors import PayloadError, UnknownClassError
from tidemill.flows.encoding.classes import (
    STANDS_IN,
    loaded_class,
    older_classes,
    qualified_name,
    remember_class,
    renamed_class,
)
from tidemill.flows.encoding.dict_like import DictLikeModel, _set_private
from tidemill.flows.encoding.models import wrong_fields

ModelClass = type[DictLikeModel]

_defined: WeakValueDictionary[str, ModelClass] = WeakValueDictionary()


class Document(msgspec.Struct, frozen=True):
    """An encoded event: the qualified name of its class, and its values.

    `exact` has the stored forms of those values that JSON would change, `reply_to` what a reply to the event is for.
    """

    type: str
    value: dict[str, Any]
    exact: dict[str, Any] = {}
    reply_to: str | None = None


class _Envelope(msgspec.Struct, frozen=True):
    type: str
    value: msgspec.Raw
    exact: dict[str, Any] = {}
    reply_to: str | None = None


_TEXT = (bytes, str)
_REPLY_TO = "_reply_to"
_read_envelope = msgspec.json.Decoder(_Envelope).decode
_read_plain = msgspec.json.Decoder().decode
_write_plain = msgspec.json.Encoder().encode

#: Types that always have a JSON form; a float may be NaN, and a list may contain anything.
_PLAIN = {"str": str, "int": int, "bool": bool}
_ALWAYS_PLAIN = frozenset({type(None), *_PLAIN.values()})


class EventRegistry:
    """The event classes that may be decoded, by qualified name, or by bare name if it is unique."""

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
        """Return the class of this qualified name."""
        if (cls := self._classes.get(name)) is None:
            raise PayloadError(
                f"event class {name} is not in the registry of classes that may be decoded; add it to the registry"
            )
        return cls

    def find(self, name: str) -> ModelClass:
        """Return the class of a qualified or bare name."""
        if name in self._classes:
            return self._classes[name]
        found = [cls for cls in self._classes.values() if cls.__name__ == name]
        if len(found) == 1:
            return found[0]
        known = ", ".join(sorted(self._classes)) or "none"
        problem = "is the name of several event classes" if found else "is not an event class of this workflow"
        meant = "" if found else did_you_mean(name, [cls.__name__ for cls in self._classes.values()])
        raise PayloadError(f"{name} {problem}{meant or f'; the classes are: {known}'}")


class EventClasses(Protocol):
    """Finds the event class of a stored name."""

    def resolve(self, name: str) -> ModelClass: ...


allowed_events: ContextVar[EventClasses | None] = ContextVar("allowed_events", default=None)


def remember(cls: ModelClass) -> None:
    """Register a class so that its instances can be decoded. A redefined class replaces the earlier one."""
    name = qualified_name(cls)
    cls._wire_prefix = b'{"type":' + to_json(name) + b',"value":'
    cls._wire_kinds = _plain_kinds(cls)
    if STANDS_IN in cls.__dict__:
        return
    _defined[name] = cls
    remember_class(cls)


def _plain_kinds(cls: ModelClass) -> tuple[type, ...] | None:
    """Return the types of an event's fields if all of them are plain JSON types; else None.

    pydantic encodes all other events.
    """
    schema: Any = cls.__dict__.get("__pydantic_core_schema__")
    if not isinstance(schema, dict):
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
    is_customized = "serialization" in value or "serialization" in field["schema"]
    return None if is_customized or field.keys() - {"type", "schema", "metadata"} else _PLAIN.get(value["type"])


def defined_elsewhere() -> list[ModelClass]:
    """Return the event classes of the application: those that Tidemill itself does not define."""
    return [cls for cls in _defined.values() if not cls.__module__.startswith("tidemill.")]


def defined_class(name: str) -> ModelClass:
    """Return the event class of this qualified name that this process has defined."""
    if (cls := _defined.get(name)) is not None:
        return cls
    renamed = renamed_class(name)
    if renamed is not None and issubclass(renamed, DictLikeModel):
        return renamed
    # A program's module has another name (`__main__`) when it is run than when it is imported.
    bare = name.rpartition(".")[2]
    namesakes = [cls for cls in dict.fromkeys(_defined.values()) if cls.__qualname__ == bare]
    if len(namesakes) > 1:
        place = name.rpartition(".")[0].rpartition(".")[2]
        namesakes = [cls for cls in namesakes if cls.__module__.rpartition(".")[2] == place]
    if len(namesakes) == 1:
        return namesakes[0]
    raise UnknownClassError(f"event class {name} is not defined in this process; import the module that defines it")


def loaded_event_class(name: str) -> Any:
    """Return the event class of this qualified name, that of the version whose stored values are read."""
    if (older := older_classes.get()) is not None:
        return older.resolve(name)
    try:
        return defined_class(name)
    except UnknownClassError:
        return loaded_class(name)


def present_name(name: str) -> str:
    """Return the name that a class of this stored name has in this process; the stored name if it has no such class."""
    try:
        return qualified_name(loaded_event_class(name))
    except UnknownClassError:
        return name


def reply_token(event: DictLikeModel) -> str | None:
    """Return what a reply to an event is for, if the event was sent with `ask`."""
    private = event.__pydantic_private__
    return private.get(_REPLY_TO) if private else None


def set_reply_token(event: DictLikeModel, token: str) -> None:
    """Say what a reply to an event is for. It is no value of the event: its class may have a field of any name."""
    _set_private(event, {**(event.__pydantic_private__ or {}), _REPLY_TO: token})


def encode_event(event: DictLikeModel) -> bytes:
    """Encode an event as JSON bytes."""
    try:
        data = _encode(event)
    except UnicodeEncodeError as error:
        raise PayloadError(f"{type(event).__name__} cannot be stored as JSON: {error}") from error
    if not event.__pydantic_private__ or (token := reply_token(event)) is None:
        return data
    return data[:-1] + b',"reply_to":' + to_json(token) + b"}"


def _encode(event: DictLikeModel) -> bytes:
    cls = type(event)
    values, kinds = event.__dict__, cls._wire_kinds
    if kinds is not None and tuple(map(type, values.values())) == kinds:
        more = _values_beside(event)
        if not more or _ALWAYS_PLAIN.issuperset(map(type, more.values())):
            try:
                return cls._wire_prefix + _write_plain({**values, **more} if more else values) + b"}"
            except (ValueError, OverflowError):
                pass  # For example a number that is too long or invalid text: pydantic encodes it or reports the error.
    exact = _exact_values(event)
    if exact:
        return _write_plain(_exact_document(event, exact))
    try:
        value = cls.__pydantic_serializer__.to_json(event, warnings="error")
        for name, hidden in event._hidden().items():
            comma = b"" if value == b"{}" else b","
            value = value[:-1] + comma + to_json(name) + b":" + to_json(hidden) + b"}"
    except (PydanticSerializationError, RecursionError, ValueError):
        return _write_plain(_whole_document(event))
    if b"NaN" in value or b"Infinity" in value or b"null" in value:
        _refuse_no_number(event)
    return cls._wire_prefix + value + b"}"


def _values_beside(event: DictLikeModel) -> dict[str, Any]:
    """Return the values of an event that are no declared fields."""
    extra = event.__pydantic_extra__
    hidden = event._hidden() if event.__pydantic_private__ else None
    return {**(extra or {}), **hidden} if hidden else extra or {}


def _refuse_no_number(event: DictLikeModel) -> None:
    """Raise for NaN and infinities, which would be encoded as null or as invalid JSON."""
    name = qualified_name(type(event))
    plain = type(event).__pydantic_serializer__.to_python(event, warnings="none")
    place = find_no_number(plain, "$") or find_no_number(_document(event)["value"], "$")
    if place is not None:
        raise PayloadError(f"event {name} cannot be stored as JSON: NaN or an infinity - at `{place}`")


def event_document(event: DictLikeModel) -> dict[str, Any]:
    """Return an event as plain JSON values, in the form of `Document`."""
    document, token = _document(event), reply_token(event)
    return document if token is None else {**document, "reply_to": token}


def _document(event: DictLikeModel) -> dict[str, Any]:
    exact = _exact_values(event)
    if exact:
        return _exact_document(event, exact)
    cls = type(event)
    try:
        value = cls.__pydantic_serializer__.to_python(event, mode="json", warnings="error")
        value.update(to_jsonable_python(event._hidden()))
    except (PydanticSerializationError, RecursionError, ValueError):
        return _whole_document(event)
    return {"type": qualified_name(cls), "value": value}


# -- values that JSON would change ----------------------------------------------------------------


def _exact_values(event: DictLikeModel) -> dict[str, Any]:
    """Return the values whose JSON form would be read as another value, because no annotation says what they are."""
    cls = type(event)
    declared = event.__dict__
    found = {name: value for name, value in event._data.items() if not _is_plain(value)}
    found |= {name: value for name, value in event._hidden().items() if not _is_plain(value)}
    found |= {name: declared[name] for name in _open_fields(cls) if name in declared and not _is_plain(declared[name])}
    for name, classes in _model_fields(cls):
        if name in declared and not _has_only(declared[name], classes):
            found[name] = declared[name]
    return found


def _exact_document(event: DictLikeModel, exact: dict[str, Any]) -> dict[str, Any]:
    """Return the document of an event with these values in their stored form, and in a readable one beside it."""
    from tidemill.flows.encoding.values import pack_part, readable

    cls, name = type(event), qualified_name(type(event))
    packed = {each: pack_part(value, f"event {name}", each) for each, value in exact.items()}
    models = {each for each, _ in _model_fields(cls)}
    excluded = {each for each in exact if each not in event._hidden() and each not in models}
    try:
        value = cls.__pydantic_serializer__.to_python(event, mode="json", warnings="error", exclude=excluded)
        value.update(to_jsonable_python({each: v for each, v in event._hidden().items() if each not in exact}))
    except (PydanticSerializationError, RecursionError, ValueError):
        return _whole_document(event)
    shown = {each: readable(data) for each, data in packed.items() if each not in models}
    return _with_numbers({"type": name, "value": value | shown, "exact": packed})


def _whole_document(event: DictLikeModel) -> dict[str, Any]:
    """Return the document of an event that pydantic cannot encode: with its values in their stored form."""
    from tidemill.flows.encoding.values import pack_part, readable

    name, fields = qualified_name(type(event)), type(event).__pydantic_fields__
    declared = {each: v for each, v in event.__dict__.items() if each not in fields or fields[each].exclude is not True}
    values = {**declared, **event._data, **event._hidden()}
    try:
        type(event).model_validate(values)
    except (ValidationError, TypeError) as error:
        raise PayloadError(f"event {name} cannot be stored as JSON: it could not be read again: {error}") from error
    packed = {each: pack_part(value, f"event {name}", each) for each, value in values.items()}
    return _with_numbers({"type": name, "value": readable(packed), "exact": packed})


def _with_numbers(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document that has no NaN and no infinity in it."""
    if (place := find_no_number(document["value"], "$")) is not None:
        raise PayloadError(f"event {document['type']} cannot be stored as JSON: NaN or an infinity - at `{place}`")
    return document


def _is_plain(value: Any) -> bool:
    """Return whether a value is read from JSON as it was."""
    kind = type(value)
    if kind in _JSON_TYPES:
        return True
    if kind is list:
        return all(map(_is_plain, value))
    return kind is dict and all(type(key) is str for key in value) and all(map(_is_plain, value.values()))


_JSON_TYPES = frozenset({type(None), bool, int, float, str})
_OPEN = (Any, object, list, dict)


@lru_cache(maxsize=1024)
def _open_fields(cls: ModelClass) -> tuple[str, ...]:
    """Return the fields whose annotation does not say what is in them, and those that are secret."""
    return tuple(
        name
        for name, field in cls.__pydantic_fields__.items()
        if field.exclude is not True and (_is_open(field.annotation) or _is_secret(field.annotation))
    )


@lru_cache(maxsize=1024)
def _model_fields(cls: ModelClass) -> tuple[tuple[str, frozenset[type]], ...]:
    """Return the fields that hold pydantic models, with the classes that their annotations name."""
    fields = ((name, field) for name, field in cls.__pydantic_fields__.items() if field.exclude is not True)
    found = ((name, frozenset(_models_in(field.annotation))) for name, field in fields)
    return tuple((name, classes) for name, classes in found if classes)


def _models_in(annotation: Any) -> Iterator[type]:
    if isinstance(annotation, type) and get_origin(annotation) is None:
        if issubclass(annotation, BaseModel):
            yield annotation
        return
    for each in get_args(annotation):
        yield from _models_in(each)


def _has_only(value: Any, classes: frozenset[type]) -> bool:
    """Return whether all models in a value are exactly of these classes: JSON does not say which subclass one was."""
    if isinstance(value, BaseModel):
        return type(value) in classes
    if isinstance(value, dict):
        return all(_has_only(each, classes) for each in value.values())
    return not isinstance(value, list | tuple | set) or all(_has_only(each, classes) for each in value)


def _is_open(annotation: Any) -> bool:
    if annotation in _OPEN:
        return True
    return any(map(_is_open, get_args(annotation)))


def _is_secret(annotation: Any) -> bool:
    if isinstance(annotation, type) and issubclass(annotation, SecretStr | SecretBytes | Secret):
        return True
    return any(map(_is_secret, get_args(annotation)))


def decode_event(data: bytes | str | dict[str, Any] | Document, allowed: EventRegistry | None = None) -> Any:
    """Decode an event; a `PayloadError` if its class is not allowed or its values do not fit."""
    token = allowed_events.set(allowed) if allowed is not None else None
    try:
        if not isinstance(data, _TEXT):
            document = msgspec.convert(data, Document) if isinstance(data, dict) else data
            cls = _class_named(document.type)
            if not document.exact and cls._wire_kinds is not None:
                event = cls(**document.value)
            else:
                event = _created(cls, document.value, _unpacked(document.exact))
        else:
            document = _read_envelope(data)
            cls = _class_named(document.type)
            if document.exact:
                event = _created(cls, _read_plain(document.value), _unpacked(document.exact))
            elif cls._wire_kinds is not None:
                event = cls(**_read_plain(document.value))
            else:
                event = cls.__pydantic_validator__.validate_json(bytes(document.value))
        if document.reply_to is not None:
            set_reply_token(event, document.reply_to)
        return event
    except msgspec.MsgspecError as error:
        raise PayloadError(f"this is not an encoded event: {error}") from error
    except (ValidationError, TypeError) as error:
        what = document.type.rpartition(".")[2]
        raise PayloadError(f"these values do not fit the event class {what}: {wrong_fields(error)}") from error
    finally:
        if token is not None:
            allowed_events.reset(token)


def _created(cls: ModelClass, value: dict[str, Any], exact: dict[str, Any]) -> Any:
    """Create an event from its readable values and the exact ones among them."""
    try:
        return cls.model_validate(value | exact)
    except ValidationError:
        # A step has put something else into a field than its annotation says, which nothing has checked there.
        event = cls.model_validate(value)
        known: dict[str, Any] = vars(event)
        known.update({name: each for name, each in exact.items() if name in known})
        return event


def _unpacked(exact: dict[str, Any]) -> dict[str, Any]:
    if not exact:
        return {}
    from tidemill.flows.encoding.values import unpack

    return {name: unpack(value) for name, value in exact.items()}


def _class_named(name: str) -> ModelClass:
    allowed = allowed_events.get()
    return defined_class(name) if allowed is None else allowed.resolve(name)
