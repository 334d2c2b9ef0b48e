"""Copy data, and nothing else: containers, models, dataclasses and Structs are copied, live objects are shared.

`copy.deepcopy` would copy clients and pools, and fails on locks.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import deque
from typing import Any

import msgspec
from pydantic import BaseModel

#: Types whose values nothing can change.
SHARED = frozenset({type(None), bool, int, float, str, bytes})


def copy_data(value: Any) -> Any:
    """Return a copy of a value whose changes do not reach the original; live objects in it are the same objects."""
    return value if type(value) in SHARED else _copy(value, {})


def copy_mutable(given: Any) -> Any:
    """Return the input of a step, with copies of events that hold more than plain values: a step may change them."""
    if isinstance(given, dict):
        return {name: copy_mutable(each) for name, each in given.items()}
    if isinstance(given, list):
        return [copy_mutable(each) for each in given]
    return given if _holds_plain_values(given) else copy_data(given)


def _holds_plain_values(event: BaseModel) -> bool:
    if not SHARED.issuperset(map(type, event.__dict__.values())):
        return False
    extra, private = event.__pydantic_extra__, event.__pydantic_private__
    return (not extra or SHARED.issuperset(map(type, extra.values()))) and (
        not private or SHARED.issuperset(map(type, private.values()))
    )


def _copy(value: Any, made: dict[int, Any]) -> Any:
    kind = type(value)
    if kind in SHARED:
        return value
    if (known := made.get(id(value))) is not None:
        return known
    if kind is list:
        copied = made[id(value)] = []
        copied.extend([_copy(each, made) for each in value])
        return copied
    if kind is dict:
        entries = made[id(value)] = {}
        entries.update({key: _copy(each, made) for key, each in value.items()})
        return entries
    if kind is tuple:
        parts = tuple([_copy(each, made) for each in value])
        return value if all(map(_is, parts, value)) else parts
    return _copy_object(value, made)


def _copy_object(value: Any, made: dict[int, Any]) -> Any:
    copied: Any
    if isinstance(value, BaseModel):
        copied = made[id(value)] = value.model_copy()
        for part in (copied.__dict__, copied.__pydantic_extra__, copied.__pydantic_private__):
            if part:
                part.update({name: _copy(each, made) for name, each in part.items()})
    elif isinstance(value, dict):
        copied = made[id(value)] = copy.copy(value)
        for key, each in value.items():
            dict.__setitem__(copied, key, _copy(each, made))
    elif isinstance(value, list | deque):
        copied = made[id(value)] = copy.copy(value)
        for index, each in enumerate(value):
            copied[index] = _copy(each, made)
    elif isinstance(value, set | bytearray):
        copied = copy.copy(value)
    elif isinstance(value, msgspec.Struct):
        copied = made[id(value)] = copy.copy(value)
        for name in value.__struct_fields__:
            msgspec.structs.force_setattr(copied, name, _copy(getattr(value, name), made))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        copied = made[id(value)] = object.__new__(type(value))
        for name, each in attributes_of(value).items():
            object.__setattr__(copied, name, _copy(each, made))
    else:
        return value
    return copied


def attributes_of(value: Any) -> dict[str, Any]:
    """Return the attributes of a dataclass instance: its fields, and what else was set on it."""
    names = [field.name for field in dataclasses.fields(value)]
    return {name: getattr(value, name) for name in names if hasattr(value, name)} | getattr(value, "__dict__", {})


def _is(one: Any, other: Any) -> bool:
    return one is other
