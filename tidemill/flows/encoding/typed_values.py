"""The stored forms of values that are neither plain JSON nor pydantic models: dates, enums, sets, dataclasses and more.

A form converts a value to simpler values, and creates a value of the same class from them. Types that have no form of
their own are converted by pydantic, if it knows them and gives back a value of the same class.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime as dates
import re
import zoneinfo
from base64 import b64decode, b64encode
from collections.abc import Callable
from decimal import Decimal
from enum import Enum, Flag
from pathlib import PurePath
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from pydantic import (
    PydanticSchemaGenerationError,
    PydanticUndefinedAnnotation,
    PydanticUserError,
    Secret,
    SecretBytes,
    SecretStr,
    TypeAdapter,
)

from tidemill.core.errors import PayloadError
from tidemill.flows.encoding.classes import loaded_class, qualified_name
from tidemill.flows.encoding.copies import attributes_of


class Form(NamedTuple):
    """How values of a class are stored: `dump` gives simpler values, `load` creates the value from them again."""

    dump: Callable[[Any], Any]
    load: Callable[[type, Any], Any]


_SECRETS = (SecretStr, SecretBytes, Secret)
_PLAIN = (str, int, float, list, dict, tuple)


def is_secret(kind: type) -> bool:
    """Return whether values of this class must not be shown."""
    return issubclass(kind, _SECRETS)


def find_form(kind: type) -> Form | None:
    """Return the form of a class; None if its values cannot be stored."""
    if kind in _OWN:
        return _OWN[kind]
    if kind is object:
        return None
    if issubclass(kind, Enum):
        return Form(_dump_enum, _load_enum)
    if issubclass(kind, _SECRETS):
        return Form(lambda value: value.get_secret_value(), lambda cls, data: cls(data))
    if issubclass(kind, PurePath):
        return Form(str, lambda cls, data: cls(data))
    if issubclass(kind, msgspec.Struct):
        return Form(
            lambda value: {name: getattr(value, name) for name in value.__struct_fields__},
            lambda cls, data: cls(**data),
        )
    if dataclasses.is_dataclass(kind):
        return Form(attributes_of, _load_attributes)
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return Form(list, lambda cls, data: cls(*data))
    if (base := next((each for each in _OWN if issubclass(kind, each)), None)) is not None:
        return _subclass(base, _OWN[base])
    known = _by_pydantic(kind)
    if known is None and (base := next((each for each in _PLAIN if issubclass(kind, each)), None)) is not None:
        known = _subclass(base, Form(base, lambda cls, data: cls(data)))
    return known


# -- dates, bytes and numbers ---------------------------------------------------------------------


def _dump_datetime(value: dates.datetime) -> Any:
    if isinstance(value.tzinfo, zoneinfo.ZoneInfo) and value.tzinfo.key:
        return [value.isoformat(), value.tzinfo.key]
    return value.isoformat()


def _load_datetime(cls: Any, data: Any) -> Any:
    if isinstance(data, list):  # The offset says which of two equal clock times it was.
        return cls.fromisoformat(data[0]).astimezone(zoneinfo.ZoneInfo(data[1]))
    return cls.fromisoformat(data)


def _load_iso(cls: Any, data: str) -> Any:
    return cls.fromisoformat(data)


def _dump_bytes(value: bytes | bytearray) -> str:
    return b64encode(value).decode()


def _load_bytes(cls: Any, data: str) -> Any:
    return cls(b64decode(data))


# -- enums, dataclasses, containers ---------------------------------------------------------------


def _dump_enum(value: Enum) -> Any:
    return [value.value] if isinstance(value, Flag) else value.name


def _load_enum(cls: Any, data: Any) -> Any:
    return cls(data[0]) if isinstance(data, list) else cls[data]


def _load_attributes(cls: type, data: dict[str, Any]) -> Any:
    made = object.__new__(cls)
    for field in dataclasses.fields(cls):  # A field that was added since has its default.
        if field.name not in data and field.default is not dataclasses.MISSING:
            object.__setattr__(made, field.name, field.default)
        elif field.name not in data and field.default_factory is not dataclasses.MISSING:
            object.__setattr__(made, field.name, field.default_factory())
    for name, value in data.items():
        object.__setattr__(made, name, value)
    return made


def _dump_defaultdict(value: collections.defaultdict[Any, Any]) -> Any:
    factory = value.default_factory
    if factory is not None and not isinstance(factory, type):
        raise PayloadError("a defaultdict whose default_factory is not a class has no stored form")
    return [None if factory is None else qualified_name(factory), dict(value)]


def _load_defaultdict(cls: Any, data: Any) -> Any:
    return cls(None if data[0] is None else loaded_class(data[0]), data[1])


def _dump_pairs(value: dict[Any, Any]) -> list[Any]:
    return [[key, each] for key, each in value.items()]


def _load_pairs(cls: Any, data: list[Any]) -> Any:
    return cls(dict(data))


def _subclass(base: type, form: Form) -> Form:
    """Return the form of a subclass: that of its base, if a value of the subclass can be created from it."""

    def dump(value: Any) -> Any:
        cls = type(value)
        try:
            data = form.dump(value)
            made = form.load(cls, data)
        except Exception as error:
            raise PayloadError(f"a {cls.__qualname__} cannot be stored as a {base.__name__}: {error}") from error
        if type(made) is not cls or made != value:
            raise PayloadError(f"a {cls.__qualname__} cannot be created again from a {base.__name__}")
        return data

    return Form(dump, form.load)


_CALLED = Form(str, lambda cls, data: cls(data))
_LISTED = Form(lambda each: sorted(each, key=repr), lambda cls, data: cls(data))  # Equal sets have one stored form.
_OWN: dict[type, Form] = {
    dates.datetime: Form(_dump_datetime, _load_datetime),
    dates.date: Form(dates.date.isoformat, _load_iso),
    dates.time: Form(dates.time.isoformat, _load_iso),
    dates.timedelta: Form(lambda each: [each.days, each.seconds, each.microseconds], lambda cls, data: cls(*data)),
    zoneinfo.ZoneInfo: _CALLED,
    UUID: _CALLED,
    Decimal: _CALLED,
    complex: _CALLED,
    bytes: Form(_dump_bytes, _load_bytes),
    bytearray: Form(_dump_bytes, _load_bytes),
    set: _LISTED,
    frozenset: _LISTED,
    collections.deque: Form(lambda each: [list(each), each.maxlen], lambda cls, data: cls(*data)),
    collections.OrderedDict: Form(_dump_pairs, _load_pairs),
    collections.Counter: Form(_dump_pairs, _load_pairs),
    collections.defaultdict: Form(_dump_defaultdict, _load_defaultdict),
    re.Pattern: Form(lambda each: [each.pattern, each.flags], lambda _, data: re.compile(*data)),
    range: Form(lambda each: [each.start, each.stop, each.step], lambda cls, data: cls(*data)),
}


# -- all other types ------------------------------------------------------------------------------


def _by_pydantic(kind: type) -> Form | None:
    """Return pydantic's form of a class; None if pydantic does not know the class."""
    try:
        adapter = TypeAdapter(kind)
    except (PydanticSchemaGenerationError, PydanticUserError, PydanticUndefinedAnnotation):
        return None

    def dump(value: Any) -> Any:
        try:
            data = adapter.dump_python(value, mode="json", round_trip=True, warnings="error")
            made = load(kind, data)
        except PayloadError:
            raise
        except Exception as error:
            raise PayloadError(f"class {qualified_name(kind)} has no stored form: {error}") from error
        if type(made) is not kind:
            raise PayloadError(f"a {kind.__qualname__} is read back as a {type(made).__qualname__}")
        return data

    def load(cls: type, data: Any) -> Any:
        return adapter.validate_python(data)

    return Form(dump, load)
