"""Whether a job, run, message or alert has the values that a test wants."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tidemill.core.errors import ConfigError
from tidemill.ops.runs.runs import Run

T = TypeVar("T")


def includes(whole: Any, part: Mapping[str, Any]) -> bool:
    """Whether a mapping has these values; others are left open."""
    values = _mapping(whole)
    return all(key in values and values[key] == value for key, value in part.items())


def value_of(condition: Callable[[], T]) -> T:
    """Ask a test's condition once, and refuse an async one: a coroutine is true whatever it returns."""
    value = condition()
    if inspect.iscoroutine(value):
        value.close()
        raise ConfigError(
            "a condition is plain code, and this one is async: it would always be true; ask with plain calls, such as "
            "tidemill.started(...) or a `_sync` function"
        )
    return value


def fields_and_state(run: Run) -> Mapping[str, Any]:
    """The fields of a run's start event, or the arguments of a dag's run, and its state."""
    given = _mapping(run.input)
    return {**(_mapping(given.get("value")) if run.shape == "flow" else given), "state": run.state}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
