"""Dotted paths into a run's state: `user.address.0.street` through dicts, lists and attributes."""

from __future__ import annotations

from typing import Any

MISSING: Any = object()


def read_path(value: Any, path: str) -> Any:
    """What stands at a path; `MISSING` if nothing does. An empty path is the whole."""
    for part in path.split(".") if path else ():
        value = _step(value, part)
        if value is MISSING:
            return MISSING
    return value


def write_path(holder: Any, path: str, value: Any) -> Any:
    """Put a value at a path of `holder.store`, making dicts on the way; returns what was there before.

    Writing `MISSING` takes away what was there, which is how a write is undone.
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
        place = inner
    before = _step(place, last)
    if value is MISSING:
        _remove(place, last)
    else:
        _put(place, last, value)
    return before


def _step(value: Any, part: str) -> Any:
    if isinstance(value, dict):
        return value.get(part, MISSING)
    if isinstance(value, list | tuple):
        try:
            return value[int(part)]
        except (ValueError, IndexError):
            return MISSING
    return getattr(value, part, MISSING)


def _put(place: Any, part: str, value: Any) -> None:
    if isinstance(place, dict):
        place[part] = value
    elif isinstance(place, list):
        place[int(part)] = value
    else:
        setattr(place, part, value)


def _remove(place: Any, part: str) -> None:
    if isinstance(place, dict):
        place.pop(part, None)
    elif not isinstance(place, list):
        data = getattr(place, "_data", None)
        if isinstance(data, dict) and part in data:
            del data[part]
