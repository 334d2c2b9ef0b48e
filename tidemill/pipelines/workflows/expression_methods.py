"""Methods of texts, lists and numbers in expressions, and the global names."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from tidemill.core.errors import ConfigError

#: Limits: characters or items that one method creates, that one method joins, that one expression creates in all; and
#: the digits of a number.
MOST_MADE, MOST_JOINED, MOST_IN_ALL, MOST_BITS = 1_000_000, 10_000_000, 50_000_000, 1024

_made: ContextVar[list[int] | None] = ContextVar("made", default=None)


class ExpressionError(ConfigError):
    """An expression that cannot be parsed or evaluated."""


@contextmanager
def counted() -> Iterator[None]:
    """Limit what an expression creates: its text may come from an untrusted source."""
    token = _made.set([0])
    try:
        yield
    finally:
        _made.reset(token)


def bounded(size: int, most: int = MOST_JOINED) -> int:
    """The size of a value about to be created, if it is within the limit."""
    made = _made.get()
    if made is not None:
        made[0] += max(size, 0)
    if size > most or (made is not None and made[0] > MOST_IN_ALL):
        raise ExpressionError(f"the result would be too large: the limit is {most:,} characters or items")
    return size


def small(number: Any) -> Any:
    """A number, if it is within the range that JSON supports."""
    if isinstance(number, int) and number.bit_length() > MOST_BITS:
        raise ExpressionError("the number is too large")
    return number


def writable(value: Any) -> Any:
    """A value, if its serialised size is limited: a list may contain another many times."""
    items, characters, stack = 0, 0, [value]
    while stack:
        each = stack.pop()
        items += 1
        if isinstance(each, str):
            characters += len(each)
        elif isinstance(each, Mapping):
            stack += each.values()
        elif isinstance(each, list):
            stack += each
        if items > MOST_MADE or characters > MOST_IN_ALL:
            raise ExpressionError(f"it is too large: the limit is {MOST_MADE:,} items and {MOST_IN_ALL:,} characters")
    return value


def to_number(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int | float):
        return value
    if isinstance(value, str) and re.fullmatch(r"\s*-?\d+(\.\d+)?\s*", value):
        return float(value) if "." in value else int(value)
    raise ExpressionError(f"{kind_of(value)} is not a number")


def is_true(value: Any) -> bool:
    return bool(value) if not isinstance(value, list | dict) else True


def shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    try:
        return value if isinstance(value, str) else json.dumps(writable(value), ensure_ascii=False)
    except (ValueError, RecursionError) as error:
        raise ExpressionError(f"{kind_of(value)} is too large to be written as text") from error


def kind_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    return {str: "a text", list: "a list", dict: "an object", int: "a number", float: "a number"}.get(
        type(value), "this"
    )


def _slice(value: Any, start: int = 0, end: int | None = None) -> Any:
    return value[int(start) : None if end is None else int(end)]


def _repeat(text: str, times: Any) -> str:
    bounded(len(text) * int(times), MOST_MADE)
    return text * int(times)


def _pad(text: str, size: Any, fill: str, how: Callable[[str, int, str], str]) -> str:
    if not isinstance(fill, str) or len(fill) != 1:
        raise ExpressionError("a text is padded with one character")
    bounded(int(size), MOST_MADE)
    return how(text, int(size), fill)


def _replace(text: str, old: str, new: str, most: int = -1) -> str:
    found = text.count(old) if most < 0 else min(text.count(old), most)
    bounded(len(text) + found * (len(new) - len(old)))
    return text.replace(old, new, most)


def _joined(parts: Sequence[str], by: str = "") -> str:
    bounded(sum(map(len, parts)) + len(by) * max(len(parts) - 1, 0))
    return by.join(parts)


def _spread(lists: Sequence[Any]) -> list[Any]:
    """Flatten lists and single values into one list."""
    bounded(sum(len(each) if isinstance(each, list) else 1 for each in lists))
    return [item for each in lists for item in (each if isinstance(each, list) else [each])]


def _fixed(number: Any, digits: Any = 0) -> str:
    if not 0 <= int(digits) <= 100:
        raise ExpressionError(f"toFixed takes 0 to 100 digits, and not {int(digits)}")
    return f"{to_number(number):.{int(digits)}f}"


def _reduce(value: list[Any], function: Callable[..., Any], *start: Any) -> Any:
    items = list(value)
    result = start[0] if start else items.pop(0)
    for item in items:
        result = function(result, item)
    return result


TEXT_METHODS: dict[str, Callable[..., Any]] = {
    "toUpperCase": str.upper,
    "toLowerCase": str.lower,
    "trim": str.strip,
    "split": lambda s, by: s.split(by) if by and bounded(s.count(by)) >= 0 else list(s[: bounded(len(s))]),
    "replace": lambda s, old, new: _replace(s, old, new, 1),
    "replaceAll": lambda s, old, new: _replace(s, old, new),
    "slice": _slice,
    "substring": _slice,
    "includes": lambda s, part: part in s,
    "startsWith": lambda s, p: s.startswith(p),
    "endsWith": lambda s, p: s.endswith(p),
    "indexOf": lambda s, p: s.find(p),
    "concat": lambda s, *more: _joined([s, *map(shown, more)]),
    "padStart": lambda s, n, fill=" ": _pad(s, n, fill, str.rjust),
    "padEnd": lambda s, n, fill=" ": _pad(s, n, fill, str.ljust),
    "repeat": _repeat,
    "toString": lambda s: s,
    "charAt": lambda s, at: s[int(at) : int(at) + 1],
}
LIST_METHODS: dict[str, Callable[..., Any]] = {
    "map": lambda v, f: [f(each) for each in v],
    "filter": lambda v, f: [each for each in v if is_true(f(each))],
    "find": lambda v, f: next((each for each in v if is_true(f(each))), None),
    "some": lambda v, f: any(is_true(f(each)) for each in v),
    "every": lambda v, f: all(is_true(f(each)) for each in v),
    "join": lambda v, by=",": _joined([shown(each) for each in v], by),
    "slice": _slice,
    "includes": lambda v, each: each in v,
    "indexOf": lambda v, each: v.index(each) if each in v else -1,
    "concat": lambda v, *more: _spread([v, *more]),
    "reverse": lambda v: v[::-1],
    "sort": lambda v: sorted(v),
    "flat": _spread,
    "reduce": _reduce,
    "at": lambda v, at: v[int(at)],
}
NUMBER_METHODS: dict[str, Callable[..., Any]] = {
    "toFixed": _fixed,
    "toString": lambda n: shown(n),
}
GLOBALS: dict[str, Any] = {
    "JSON": {"stringify": lambda value, *_: json.dumps(writable(value), ensure_ascii=False), "parse": json.loads},
    "Math": {
        "round": round,
        "floor": math.floor,
        "ceil": math.ceil,
        "abs": abs,
        "min": lambda *v: min(v),
        "max": lambda *v: max(v),
    },
    "Object": {
        "keys": lambda v: list(v),
        "values": lambda v: list(v.values()),
        "entries": lambda v: [[k, i] for k, i in v.items()],
    },
    "String": shown,
    "Number": to_number,
    "Boolean": is_true,
    "parseInt": lambda v, *_: int(to_number(v)),
    "parseFloat": to_number,
}
