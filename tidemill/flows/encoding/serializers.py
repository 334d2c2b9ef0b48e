"""Serializers for `ctx.to_dict()`: values as JSON text.

    JsonSerializer()                             any class that this process has loaded
    JsonSerializer(allowed_types=[Draft])        only these classes
    serializer.with_types(Review)                the same, and this class

Deserializing never imports a module and never runs code from its input: pickle is not supported.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any, Protocol

from pydantic import BaseModel

from tidemill.flows.encoding.events import qualified_name
from tidemill.flows.errors import ContextSerdeError

_MARK, _VALUE, _NAME = "__is_pydantic", "value", "qualified_name"


class BaseSerializer(Protocol):
    """The interface of a serializer for the state of a context."""

    def serialize(self, value: Any) -> str: ...

    def deserialize(self, value: str) -> Any: ...


class JsonSerializer:
    """Serializes plain JSON values and pydantic models (events included) with the names of their classes."""

    def __init__(self, *, allowed_types: Iterable[type | str] | None = None) -> None:
        self._allowed: dict[str, type | None] | None = None
        if allowed_types is not None:
            self._allowed = dict(map(_named, allowed_types))

    def with_types(self, *types: type | str) -> JsonSerializer:
        """Return a serializer that also accepts these classes."""
        made = JsonSerializer()
        made._allowed = None if self._allowed is None else self._allowed | dict(map(_named, types))
        return made

    def serialize(self, value: Any) -> str:
        """Return a value as JSON text; a ValueError if a part of it has no JSON form."""
        return json.dumps(self.serialize_value(value))

    def deserialize(self, value: str) -> Any:
        """Return the value of a JSON text."""
        return self.deserialize_value(json.loads(value))

    def serialize_value(self, value: Any) -> Any:
        """Convert a value to plain JSON values."""
        if isinstance(value, BaseModel):
            return {_MARK: True, _VALUE: value.model_dump(mode="json"), _NAME: qualified_name(type(value))}
        if isinstance(value, dict):
            return {str(key): self.serialize_value(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.serialize_value(each) for each in value]
        if value is None or isinstance(value, str | bool | int | float):
            return value
        raise ValueError(f"a {type(value).__qualname__} cannot be written as JSON: {value!r:.100}")

    def deserialize_value(self, value: Any) -> Any:
        """Convert plain JSON values back to a value."""
        if isinstance(value, list):
            return [self.deserialize_value(each) for each in value]
        if not isinstance(value, dict):
            return value
        if value.get(_MARK) and _NAME in value:
            return self.resolve_class(value[_NAME]).model_validate(value[_VALUE])
        return {key: self.deserialize_value(each) for key, each in value.items()}

    def resolve_class(self, name: str) -> Any:
        """Return the model class of this qualified name if it is allowed."""
        if self._allowed is not None:
            if name not in self._allowed:
                raise ValueError(f"class {name} is not in the allowed_types of this JsonSerializer; add it")
            if (given := self._allowed[name]) is not None:
                return given
        return _loaded_model(name)


class _Refused:
    """A serializer that Tidemill does not support; creating it raises."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise ContextSerdeError(
            "PickleSerializer is not supported: loading a pickle can run any code. "
            "Use JsonSerializer, and keep in the state only what JSON or a pydantic model can hold."
        )


PickleSerializer = JsonPickleSerializer = _Refused


def _named(one: type | str) -> tuple[str, type | None]:
    return (one, None) if isinstance(one, str) else (qualified_name(one), one)


def _loaded_model(name: str) -> Any:
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        found: Any = sys.modules.get(".".join(parts[:cut]))
        if found is None:
            continue
        for part in parts[cut:]:
            found = getattr(found, part, None)
        if isinstance(found, type) and issubclass(found, BaseModel):
            return found
        raise ValueError(f"{name} is not the name of a pydantic model")
    raise ImportError(f"no loaded module has a class {name}; import the module that defines it first")
