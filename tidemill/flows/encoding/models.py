"""The stored form of a pydantic model: its fields with their types, by the model's own serializers where it has any.

A field is stored as the value that it has. A field with a serializer of its own (`field_serializer`, `PlainSerializer`)
is stored as the serializer gives it, and validated when it is read; if it fails, all fields are stored as they are.
A field with `exclude=True` is not stored: it has its default when the run is read again. Nor are private attributes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Any, NamedTuple, get_args, get_origin

from pydantic import BaseModel, PlainSerializer, ValidationError, WrapSerializer

from tidemill.core.errors import PayloadError
from tidemill.flows.encoding.dict_like import DictLikeModel

Convert = Callable[[Any], Any]


class _Fields(NamedTuple):
    """Which fields of a model are not stored as they are."""

    whole: bool
    """The model has a serializer for all of it."""
    excluded: frozenset[str]
    serialized: frozenset[str]
    lost: tuple[str, ...]
    """Excluded fields without a default: a model without them cannot be read."""


def pack_model(model: BaseModel, pack: Convert, unpack: Convert) -> dict[str, Any]:
    """Return the stored form of a model: `fields` as they are, and `json` as its serializers give them."""
    cls = type(model)
    known = _fields_of(cls)
    if known.lost:
        raise PayloadError(
            f"{cls.__qualname__}.{known.lost[0]} is excluded and has no default, so a stored {cls.__qualname__} could "
            "not be read: give the field a default"
        )
    try:
        return _by_serializers(model, known, pack, unpack)
    except _SerializerFailed:
        try:
            return {"fields": {name: pack(value) for name, value in stored_fields(model).items()}}
        except PayloadError:
            pass
        raise


class _SerializerFailed(PayloadError):
    """The serializers of a model cannot serialise it; its fields may be stored as they are."""


def stored_fields(model: BaseModel) -> dict[str, Any]:
    """Return the values of a model that are stored: all but excluded fields and private attributes."""
    excluded = _fields_of(type(model)).excluded
    values = {**model.__dict__, **(model.__pydantic_extra__ or {})}
    return {name: value for name, value in values.items() if name not in excluded}


def _by_serializers(model: BaseModel, known: _Fields, pack: Convert, unpack: Convert) -> dict[str, Any]:
    cls = type(model)
    if known.whole:
        data = {"fields": {}, "json": _dump(model, None)}
        try:
            return _checked(cls, data, unpack)
        except PayloadError as error:  # For example a field of an abstract class, whose class is not in the dump.
            raise _SerializerFailed(str(error)) from error
    fields: dict[str, Any] = {}
    by_pydantic = set(known.serialized)
    for name, value in stored_fields(model).items():
        if name in by_pydantic:
            continue
        try:
            fields[name] = pack(value)
        except PayloadError:
            if name not in cls.__pydantic_fields__:
                raise
            by_pydantic.add(name)  # A type that only the model's annotation says how to serialise.
            _dump(model, {name})
    if not by_pydantic:
        return {"fields": fields}
    return _checked(cls, {"fields": fields, "json": _dump(model, by_pydantic)}, unpack)


def unpack_model(cls: type[BaseModel], data: dict[str, Any], unpack: Convert) -> Any:
    """Create a model from its stored form."""
    fields = {name: unpack(each) for name, each in data["fields"].items()}
    if "json" not in data:
        return cls(**fields) if issubclass(cls, DictLikeModel) else cls.model_construct(**fields)
    json = data["json"]
    if not isinstance(json, dict):
        return cls.model_validate(json)
    return cls.__pydantic_validator__.validate_python({**fields, **json}, by_name=True, by_alias=True)


def _checked(cls: type[BaseModel], data: dict[str, Any], unpack: Convert) -> dict[str, Any]:
    """Return the stored form if it can be read: a serializer may give what the model does not accept."""
    try:
        unpack_model(cls, data, unpack)
    except Exception as error:
        raise PayloadError(f"a {cls.__qualname__} cannot be read from what its serializers give: {error}") from error
    return data


def _dump(model: BaseModel, names: set[str] | None) -> Any:
    try:
        return type(model).__pydantic_serializer__.to_python(
            model, mode="json", include=names, round_trip=True, warnings="error"
        )
    except Exception as error:  # a user's serializer may raise any exception
        what = type(model).__qualname__ + ("" if names is None else f".{', '.join(sorted(names))}")
        raise _SerializerFailed(f"{what} cannot be serialised: {error}") from error


def is_stored_with_model(model: BaseModel, name: str) -> bool:
    """Return whether a field can be stored only together with its model, which says how to serialise it."""
    known = _fields_of(type(model))
    return known.whole or name in known.excluded or name in known.serialized


@lru_cache(maxsize=1024)
def _fields_of(cls: type[BaseModel]) -> _Fields:
    decorators = cls.__pydantic_decorators__
    named = {name for each in decorators.field_serializers.values() for name in each.info.fields}
    fields = cls.__pydantic_fields__
    excluded = {name for name, field in fields.items() if field.exclude is True}
    serialized = {
        name
        for name, field in fields.items()
        if name in named or "*" in named or _has_serializer(field.annotation, field.metadata)
    }
    return _Fields(
        whole=bool(decorators.model_serializers),
        excluded=frozenset(excluded),
        serialized=frozenset(serialized - excluded),
        lost=tuple(sorted(name for name in excluded if fields[name].is_required())),
    )


def _has_serializer(annotation: Any, metadata: Any = ()) -> bool:
    if any(isinstance(each, PlainSerializer | WrapSerializer) for each in metadata):
        return True
    if get_origin(annotation) is Annotated:
        annotation, *metadata = get_args(annotation)
        return _has_serializer(annotation, metadata)
    return any(_has_serializer(each) for each in get_args(annotation))


def wrong_fields(error: Exception) -> str:
    """Say which fields do not fit and why, in a line; other errors than those of pydantic say it themselves."""
    if not isinstance(error, ValidationError):
        return str(error)
    return "; ".join(_wrong_field(each) for each in error.errors(include_url=False))


def _wrong_field(line: Any) -> str:
    name = ".".join(map(str, line["loc"]))
    if line["type"] == "missing":
        return f"{name} is missing"
    if line["type"] == "extra_forbidden":
        return f"there is no field {name}"
    message = line["msg"].partition(", unable to ")[0]
    if message.startswith("Input should "):
        return f"{name} must {message.removeprefix('Input should ')}, and not {line['input']!r:.60}".strip()
    return f"{name}: {message}" if name else message
