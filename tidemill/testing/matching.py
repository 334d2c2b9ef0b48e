"""Whether a job, run, message or alert has the values that a test wants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.ops.runs.runs import Run


def includes(whole: Any, part: Mapping[str, Any]) -> bool:
    """Whether a mapping has these values; others are left open."""
    values = _mapping(whole)
    return all(key in values and values[key] == value for key, value in part.items())


def fields_and_state(run: Run) -> Mapping[str, Any]:
    """The fields of a run's start event, or the arguments of a dag's run, and its state."""
    given = _mapping(run.input)
    return {**(_mapping(given.get("value")) if run.shape == "flow" else given), "state": run.state}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
