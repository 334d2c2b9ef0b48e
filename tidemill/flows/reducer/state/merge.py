"""Apply the difference between two values to a third one that was made from the first. Pure.

A write of an attempt is undone after other steps have changed what it wrote: what they did stays. Numbers are changed
by their difference, collections by element, and models by field. Any other value that the others have changed stays.
"""

from __future__ import annotations

from collections import deque
from copy import copy
from dataclasses import is_dataclass
from decimal import Decimal
from typing import Any

import msgspec
from pydantic import BaseModel

from tidemill.flows.encoding.copies import attributes_of
from tidemill.flows.reducer.state.diff import same
from tidemill.flows.reducer.state.paths import MISSING

_NUMBERS = (int, float, Decimal)
_SEQUENCES = (list, tuple, deque)
_SETS = (set, frozenset)


def merged(old: Any, new: Any, built: Any) -> Any:
    """Return `built`, which was made from `old`, as if it had been made from `new`."""
    if same(old, new) or built is MISSING or old is MISSING:
        return built
    if same(old, built):
        return new
    if _is_number(old) and _is_number(built):
        return _add(built, new, old)
    if new is MISSING:
        new = _empty(old)
    if isinstance(old, dict) and isinstance(new, dict) and isinstance(built, dict):
        made = copy(built)
        _merge_names(old, new, made)
        return made
    if type(old) is not type(new) or type(old) is not type(built):
        return built
    if isinstance(built, _SEQUENCES):
        items = _merge_items(list(old), list(new), list(built))
        return deque(items, built.maxlen) if isinstance(built, deque) else type(built)(items)
    return _merge_object(old, new, built)


def _is_number(value: Any) -> bool:
    return isinstance(value, _NUMBERS) and not isinstance(value, bool)


def _add(built: Any, new: Any, old: Any) -> Any:
    """Return a number with the difference of two others; a value that did not exist counts as 0."""
    if new is not MISSING and not _is_number(new):
        return built
    try:
        return type(built)(built + ((0 if new is MISSING else new) - old))
    except (TypeError, ValueError, ArithmeticError):
        return built


def _empty(value: Any) -> Any:
    """Return a collection like this one without elements; `MISSING` for what is no collection."""
    if isinstance(value, dict):
        return {}
    return type(value)() if type(value) in (*_SEQUENCES, *_SETS) else MISSING


def _merge_names(old: dict[Any, Any], new: dict[Any, Any], built: dict[Any, Any]) -> None:
    """Change the values of a dict in place."""
    for name, value in old.items():
        if name in built:
            put = merged(value, new.get(name, MISSING), built[name])
            if put is MISSING:
                del built[name]
            else:
                dict.__setitem__(built, name, put)
    for name, value in new.items():
        if name not in old and name not in built:
            dict.__setitem__(built, name, value)


def _merge_items(old: list[Any], new: list[Any], built: list[Any]) -> list[Any]:
    if len(old) == len(new) == len(built):
        return [merged(*each) for each in zip(old, new, built, strict=True)]
    first = 0
    while first < min(len(old), len(new)) and same(old[first], new[first]):
        first += 1
    last = 0
    while last < min(len(old), len(new)) - first and same(old[-1 - last], new[-1 - last]):
        last += 1
    added, removed = new[first : len(new) - last], old[first : len(old) - last]
    at = min(first, len(built))
    for item in removed:
        # It is searched for where it was, and then before: equal items of other steps come after it.
        places = [*range(at, len(built)), *range(at - 1, -1, -1)]
        place = next((each for each in places if same(built[each], item)), None)
        if place is not None:
            del built[place]
            at = min(at, place)
    built[at:at] = added
    return built


def _merge_object(old: Any, new: Any, built: Any) -> Any:
    if isinstance(built, _SETS):
        return built.difference(old.difference(new)).union(new.difference(old))
    if isinstance(built, BaseModel):
        made = built.model_copy()
        for part in ("__dict__", "__pydantic_extra__", "__pydantic_private__"):
            values = getattr(made, part)
            if values is not None:
                _merge_names(getattr(old, part) or {}, getattr(new, part) or {}, values)
        return made
    if isinstance(built, msgspec.Struct):
        made = copy(built)
        for name in built.__struct_fields__:
            value = merged(getattr(old, name), getattr(new, name), getattr(built, name))
            msgspec.structs.force_setattr(made, name, value)
        return made
    if is_dataclass(built):
        made, values = copy(built), attributes_of(built)
        _merge_names(attributes_of(old), attributes_of(new), values)
        for name, value in values.items():
            object.__setattr__(made, name, value)
        return made
    return built
