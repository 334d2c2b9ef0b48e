"""What steps put into a run's state, as plain JSON values and back: events, pydantic models and plain data.

Reading imports nothing: a model's class is looked up among the modules that this process has loaded.
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
    """A value as plain JSON values; a `PayloadError` names what has no such form."""
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
    """The JSON of a packed value."""
    if isinstance(value, Event):
        return b'{"' + _EVENT.encode() + b'":' + encode_event(value) + b"}"
    return encode(pack(value))


def plain_result(packed: Any) -> Any:
    """What a run ended with, as its author wrote it: the result of a StopEvent, or the fields of another."""
    event = packed.get(_EVENT) if isinstance(packed, dict) and len(packed) == 1 else None
    if not isinstance(event, dict) or not isinstance(event.get("value"), dict):
        return packed
    fields = event["value"]
    return fields["result"] if set(fields) == {"result"} else fields


def unpack(value: Any) -> Any:
    """The value that `pack` made this from."""
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
    """A class of this qualified name in a module that is loaded, or an event class wherever it was defined."""
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
