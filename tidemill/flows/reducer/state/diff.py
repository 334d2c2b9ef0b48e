"""The difference between a state and a changed copy of it, by name: the values that an edit of a run's state writes."""

from __future__ import annotations

from collections import deque
from dataclasses import is_dataclass
from typing import Any

import msgspec
from pydantic import BaseModel

from tidemill.flows.encoding.copies import attributes_of
from tidemill.flows.encoding.dict_like import DictLikeModel
from tidemill.flows.reducer.state.paths import MISSING

_PLAIN = (str, int, float, bool, bytes, type(None))


def changes(before: Any, after: Any) -> tuple[tuple[str, Any], ...]:
    """Return the changed names with their new values (`MISSING` if removed), or the whole state as one value."""
    whole = (("", after),)
    if type(before) is not type(after) or not isinstance(after, BaseModel):
        return whole
    config = type(after).model_config
    if config.get("frozen") or config.get("validate_assignment"):
        return whole
    if not same(before.__pydantic_private__, after.__pydantic_private__):
        return whole
    dynamic_before, dynamic = before.__pydantic_extra__ or {}, after.__pydantic_extra__ or {}
    if dynamic and not isinstance(after, DictLikeModel):
        return whole
    found = [(name, value) for name, value in after.__dict__.items() if _differ(before.__dict__, name, value)]
    found += [(name, value) for name, value in dynamic.items() if _differ(dynamic_before, name, value)]
    found += [(name, MISSING) for name in dynamic_before if name not in dynamic]
    if any(not name or "." in name for name, _ in found):
        return whole
    return tuple(found)


def same(one: Any, other: Any) -> bool:
    """Return whether a value and its copy are certainly equal, including their types; if in doubt, False."""
    if one is other:
        return True
    kind = type(one)
    if kind is not type(other):
        return False
    if kind in _PLAIN:
        return one == other
    if kind in (list, tuple, deque):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(map(same, one.values(), other.values()))
    if kind in (set, frozenset, bytearray):
        return one == other
    if isinstance(one, BaseModel):
        return (
            same(one.__dict__, other.__dict__)
            and same(one.__pydantic_extra__, other.__pydantic_extra__)
            and same(one.__pydantic_private__, other.__pydantic_private__)
        )
    if isinstance(one, msgspec.Struct):
        return all(same(getattr(one, name), getattr(other, name)) for name in one.__struct_fields__)
    if is_dataclass(one):
        return same(attributes_of(one), attributes_of(other))
    return _same_value(one, other)


def _same_value(one: Any, other: Any) -> bool:
    """Compare dates, numbers, paths and the like by value, as a run restored from its journal has other objects."""
    try:
        # Equal dates may be in different time zones, equal decimals have different digits.
        return bool(one == other) and repr(one) == repr(other)
    except Exception:  # noqa: BLE001 - the code of a class may raise any exception
        return False


def _differ(before: dict[str, Any], name: str, value: Any) -> bool:
    return name not in before or not same(before[name], value)
