"""Suggest the known name that a misspelt one was probably meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TypeVar

from tidemill.core.errors import ConfigError

_MOST_NAMES = 2000


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return `; did you mean 'delay'?` for the closest known name, or nothing if none is close."""
    close = difflib.get_close_matches(str(name), list(islice(known, _MOST_NAMES)), 1)
    return f"; did you mean {close[0]!r}?" if close else ""


T = TypeVar("T")


def find_declared(what: str, declared: Mapping[str, T], name: str | None) -> T:
    """The monitor, pipeline, ... of this name, or the only one; else an error that lists the names."""
    if name is None and len(declared) == 1:
        return next(iter(declared.values()))
    if name is None or name not in declared:
        problem = f"say which {what}" if name is None else f"there is no {what} {name!r}"
        hint = did_you_mean(name, declared)
        raise ConfigError(f"{problem}; this application declares: {', '.join(declared) or 'none'}{hint}")
    return declared[name]


def refuse_unknown(call: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise a `ConfigError` for an option that a call does not have."""
    known = sorted(known)
    if unknown := set(given).difference(known):
        name = min(unknown)
        hint = did_you_mean(name, known) or f"; its options are {', '.join(known)}"
        raise ConfigError(f"{call} has no option {name!r}{hint}")
