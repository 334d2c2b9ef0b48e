"""Dotted paths into a run's state: `user.address.0.street` through dicts, lists and attributes."""

from __future__ import annotations

from typing import Any

from tidemill.flows.encoding.dict_like import DictLikeModel

MISSING: Any = object()

#: Values and the paths to put them at.
Changes = tuple[tuple[str, Any], ...]


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


def write_paths(holder: Any, changes: Changes) -> None:
    """Put several values at their paths."""
    for path, value in changes:
        write_path(holder, path, value)


def missing_part(value: Any, path: str) -> str | None:
    """The first part of a path at which nothing stands; None if something stands at each."""
    if not path:
        return None
    parts = path.split(".")
    for index, part in enumerate(parts):
        value = _step(value, part)
        if value is MISSING:
            return ".".join(parts[: index + 1])
    return None


def inner_path(outer: str, path: str) -> str | None:
    """Where a path lies within another one; None if it does not lie inside it."""
    if not outer:
        return path or None
    return path[len(outer) + 1 :] if path.startswith(f"{outer}.") else None


def _step(value: Any, part: str) -> Any:
    if isinstance(value, dict):
        return value.get(part, MISSING)
    if isinstance(value, list | tuple):
        try:
            return value[int(part)]
        except (ValueError, IndexError):
            return MISSING
    if isinstance(value, DictLikeModel) and part not in type(value).__pydantic_fields__:
        # A dynamic value may have the name of a method, such as `items`.
        if part in value:
            return value[part]
        return MISSING if hasattr(DictLikeModel, part) else getattr(value, part, MISSING)
    return getattr(value, part, MISSING)


def _put(place: Any, part: str, value: Any) -> None:
    if isinstance(place, dict):
        place[part] = value
    elif isinstance(place, list):
        try:
            place[int(part)] = value
        except (ValueError, IndexError) as error:
            raise AttributeError(f"there is no place {part!r} in a list of {len(place)}") from error
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
