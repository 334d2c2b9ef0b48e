"""Dotted paths into a run's state: `user.address.0.street` through dicts, lists and attributes."""

from __future__ import annotations

from copy import copy
from dataclasses import is_dataclass
from typing import Any

import msgspec
from pydantic import BaseModel

from tidemill.flows.encoding.dict_like import DictLikeModel

MISSING: Any = object()

#: Values with inner paths; a dataclass is one, too.
CONTAINERS = (dict, list, BaseModel, msgspec.Struct)

#: A tuple, because a union would be built for each value that is read.
_SEQUENCES = (list, tuple)

#: Paths with the values to write there.
Changes = tuple[tuple[str, Any], ...]


def read_path(value: Any, path: str) -> Any:
    """Return the value at a path; `MISSING` if there is none. An empty path is the whole state."""
    for part in path.split(".") if path else ():
        value = _step(value, part)
        if value is MISSING:
            return MISSING
    return value


def write_path(holder: Any, path: str, value: Any) -> Any:
    """Write a value at a path of `holder.store`, creating missing dicts; returns the previous value.

    Writing `MISSING` removes the value, which undoes a write. If `holder.copies`, the containers on the path are
    replaced by copies: whatever was read from the state before stays as it was.
    """
    if not path:
        before, holder.store = holder.store, value
        return before
    *way, last = path.split(".")
    place = holder.store
    for part in way:
        inner = _step(place, part)
        if inner is MISSING:
            inner = {}
            _put(place, part, inner)
        elif holder.copies and (isinstance(inner, CONTAINERS) or is_dataclass(inner)):
            inner = copy(inner)
            _put(place, part, inner)
        place = inner
    before = _step(place, last)
    if value is MISSING:
        _remove(place, last)
    else:
        _put(place, last, value)
    return before


def write_paths(holder: Any, changes: Changes) -> None:
    """Write several values at their paths."""
    for path, value in changes:
        write_path(holder, path, value)


def missing_part(value: Any, path: str) -> str | None:
    """Return the shortest prefix of a path that has no value; None if the whole path exists."""
    if not path:
        return None
    parts = path.split(".")
    for index, part in enumerate(parts):
        value = _step(value, part)
        if value is MISSING:
            return ".".join(parts[: index + 1])
    return None


def inner_path(outer: str, path: str) -> str | None:
    """Return a path relative to an outer path; None if it is not inside it."""
    if not outer:
        return path or None
    return path[len(outer) + 1 :] if path.startswith(f"{outer}.") else None


def _step(value: Any, part: str) -> Any:
    if isinstance(value, dict):
        return value.get(part, MISSING)
    if isinstance(value, _SEQUENCES):
        try:
            return value[int(part)]
        except (ValueError, IndexError):
            return MISSING
    if isinstance(value, DictLikeModel) and part not in type(value).__pydantic_fields__:
        # A dynamic value may have the same name as a method, such as `items`.
        if part in (data := value._data):
            return data[part]
        return MISSING if hasattr(DictLikeModel, part) else getattr(value, part, MISSING)
    return getattr(value, part, MISSING)


def _put(place: Any, part: str, value: Any) -> None:
    if isinstance(place, dict):
        place[part] = value
    elif isinstance(place, list):
        try:
            place[int(part)] = value
        except (ValueError, IndexError) as error:
            raise AttributeError(f"{part!r} is not an index of a list of length {len(place)}") from error
    elif isinstance(place, DictLikeModel) and hasattr(DictLikeModel, part):
        place[part] = value
    else:
        setattr(place, part, value)


def _remove(place: Any, part: str) -> None:
    if isinstance(place, dict):
        place.pop(part, None)
    elif not isinstance(place, list):
        data = getattr(place, "_data", None)
        if isinstance(data, dict) and part in data:
            del data[part]
