"""Convert the values in a run's state to plain JSON values and back: events, pydantic models and plain data.

Decoding never imports a module: the class of a model is looked up in the modules that this process has loaded.
"""

from __future__ import annotations

import sys
from typing import Any

from pydantic import BaseModel

from tidemill.core.codec import encode
from tidemill.core.errors import PayloadError
from tidemill.flows.definition.events import Event
from tidemill.flows.encoding.dict_like import DictLikeModel
from tidemill.flows.encoding.events import decode_event, defined_class, encode_event, event_document, qualified_name

_EVENT, _MODEL, _TUPLE = "$event", "$model", "$tuple"


def pack(value: Any) -> Any:
    """Convert a value to plain JSON values; a `PayloadError` names a type that has no JSON form."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Event):
        return {_EVENT: event_document(value)}
    if isinstance(value, BaseModel):
        fields = dict(value.__dict__)
        if isinstance(value, DictLikeModel):
            fields.update(value.items())
        return {_MODEL: qualified_name(type(value)), "fields": {name: pack(each) for name, each in fields.items()}}
    if isinstance(value, list):
        return [pack(each) for each in value]
    if isinstance(value, tuple):
        return {_TUPLE: [pack(each) for each in value]}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {name: pack(each) for name, each in value.items()}
    raise PayloadError(f"a {type(value).__qualname__} in the state of a run cannot be stored as JSON")


def encode_packed(value: Any) -> bytes:
    """Encode a packed value as JSON bytes."""
    if isinstance(value, Event):
        return b'{"' + _EVENT.encode() + b'":' + encode_event(value) + b"}"
    return encode(pack(value))


def plain_result(packed: Any) -> Any:
    """Return the result of a run for display: the result of a StopEvent, or the fields of a subclass."""
    event = packed.get(_EVENT) if isinstance(packed, dict) and len(packed) == 1 else None
    if not isinstance(event, dict) or not isinstance(event.get("value"), dict):
        return packed
    fields = event["value"]
    return fields["result"] if set(fields) == {"result"} else fields


def unpack(value: Any) -> Any:
    """Convert plain JSON values back to a value."""
    if isinstance(value, list):
        return [unpack(each) for each in value]
    if not isinstance(value, dict):
        return value
    if _EVENT in value:
        return decode_event(value[_EVENT])
    if _TUPLE in value:
        return tuple(unpack(each) for each in value[_TUPLE])
    if _MODEL in value:
        return _model(value[_MODEL], {name: unpack(each) for name, each in value["fields"].items()})
    return {name: unpack(each) for name, each in value.items()}


def _model(name: str, fields: dict[str, Any]) -> Any:
    cls = loaded_class(name)
    if issubclass(cls, DictLikeModel):
        return cls(**fields)
    return cls.model_construct(**fields)


def loaded_class(name: str) -> Any:
    """Return the class of this qualified name from a loaded module or from the defined event classes."""
    module, _, rest = name.rpartition(".")
    while module:
        found: Any = sys.modules.get(module)
        for part in rest.split("."):
            found = getattr(found, part, None)
        if isinstance(found, type):
            return found
        module, _, part = module.rpartition(".")
        rest = f"{part}.{rest}"
    return defined_class(name)
