"""Finds what an application declares by name, such as a monitor or a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from tidemill.core.did_you_mean import did_you_mean
from tidemill.core.errors import ConfigError

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
