"""The state of an entity between ticks: plain data that is stored as JSON.

A fold that declares a class `State` (a dataclass or msgspec Struct) gets it back typed. Other folds get an
`AttributeDict`, whose values are attributes and items.
"""

from __future__ import annotations

from typing import Any

from tidemill.core.codec import decode, encode
from tidemill.core.limits.size_limits import check_state


class AttributeDict(dict[str, Any]):
    """A dict whose items are also attributes; a missing attribute is None."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.get(name)

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        self.pop(name, None)


def read_state(kind: type | None, data: bytes) -> Any:
    """A state from its JSON."""
    return _with_attributes(decode(data)) if kind is None else decode(data, kind)


def write_state(state: Any) -> bytes:
    """A state as JSON; a `PayloadError` says what in it has no JSON form."""
    return check_state(encode(state), "the state")


def _with_attributes(value: Any) -> Any:
    if isinstance(value, dict):
        return AttributeDict({name: _with_attributes(part) for name, part in value.items()})
    if isinstance(value, list):
        return [_with_attributes(part) for part in value]
    return value


def pick(thing: Any, name: str) -> Any:
    """A named part of a mapping or an object."""
    return thing[name] if isinstance(thing, dict) else getattr(thing, name)
