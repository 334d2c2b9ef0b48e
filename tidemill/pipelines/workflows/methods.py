"""What values in expressions can do: methods of texts, lists and numbers, and the names that are always there."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

from tidemill.core.errors import ConfigError


class ExpressionError(ConfigError):
    """An expression that cannot be read, or that leads nowhere."""


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
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
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
    "split": lambda s, by: s.split(by) if by else list(s),
    "replace": lambda s, old, new: s.replace(old, new, 1),
    "replaceAll": lambda s, old, new: s.replace(old, new),
    "slice": _slice,
    "substring": _slice,
    "includes": lambda s, part: part in s,
    "startsWith": lambda s, p: s.startswith(p),
    "endsWith": lambda s, p: s.endswith(p),
    "indexOf": lambda s, p: s.find(p),
    "concat": lambda s, *more: s + "".join(map(shown, more)),
    "padStart": lambda s, n, fill=" ": s.rjust(int(n), fill[0]),
    "padEnd": lambda s, n, fill=" ": s.ljust(int(n), fill[0]),
    "repeat": lambda s, n: s * min(int(n), 10_000),
    "toString": lambda s: s,
    "charAt": lambda s, at: s[int(at) : int(at) + 1],
}
LIST_METHODS: dict[str, Callable[..., Any]] = {
    "map": lambda v, f: [f(each) for each in v],
    "filter": lambda v, f: [each for each in v if is_true(f(each))],
    "find": lambda v, f: next((each for each in v if is_true(f(each))), None),
    "some": lambda v, f: any(is_true(f(each)) for each in v),
    "every": lambda v, f: all(is_true(f(each)) for each in v),
    "join": lambda v, by=",": by.join(map(shown, v)),
    "slice": _slice,
    "includes": lambda v, each: each in v,
    "indexOf": lambda v, each: v.index(each) if each in v else -1,
    "concat": lambda v, *more: [*v, *(i for m in more for i in (m if isinstance(m, list) else [m]))],
    "reverse": lambda v: v[::-1],
    "sort": lambda v: sorted(v),
    "flat": lambda v: [i for m in v for i in (m if isinstance(m, list) else [m])],
    "reduce": _reduce,
    "at": lambda v, at: v[int(at)],
}
NUMBER_METHODS: dict[str, Callable[..., Any]] = {
    "toFixed": lambda n, digits=0: f"{to_number(n):.{int(digits)}f}",
    "toString": lambda n: shown(n),
}
GLOBALS: dict[str, Any] = {
    "JSON": {"stringify": lambda value, *_: json.dumps(value, ensure_ascii=False), "parse": json.loads},
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
