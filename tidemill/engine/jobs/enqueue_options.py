"""The options that a caller may give for a job besides its arguments, and the fields that they set."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from tidemill.core.duration import parse_duration
from tidemill.core.errors import ConfigError
from tidemill.engine.jobs.task import Task

WISHES_FOR_MANY = frozenset({"delay", "at", "priority", "queue", "deadline", "tags", "required_model"})
WISHES = WISHES_FOR_MANY | {"unique_key", "unique_for", "concurrency_key", "max_concurrency"}


def read_wish(wish: Mapping[str, Any], task: Task[Any, Any]) -> dict[str, Any]:
    """The fields of a new job that the caller's options set; a `ConfigError` names an invalid option."""
    fields: dict[str, Any] = {}
    for name, value in wish.items():
        if value is None:
            continue
        if name in ("delay", "unique_for"):
            fields[name] = parse_duration(value, what=name)
        elif name == "deadline" and not isinstance(value, datetime):
            fields["deadline_in"] = parse_duration(value, what=name)
        elif name in ("at", "deadline"):
            fields[name] = _moment(name, value)
        elif name == "tags":
            fields[name] = (*task.options.tags, *_words(value))
        else:
            fields[name] = value
    return fields


def _moment(what: str, value: Any) -> float:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ConfigError(f"{what}={value} has no time zone: add one, so that it means one moment")
        return value.timestamp()
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise ConfigError(f"{what}={value!r} is neither a datetime nor seconds since 1970")


def _words(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        raise ConfigError(f"tags={value!r} is one string; write a list, such as [{value!r}]")
    return tuple(str(word) for word in value)
