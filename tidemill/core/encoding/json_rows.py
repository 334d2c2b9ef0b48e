"""Rows of the database with their JSON columns as values."""

from __future__ import annotations

from datetime import datetime
from typing import Any, overload

from tidemill.core.codec import SECRET, decode, mask_secrets
from tidemill.core.errors import ConfigError

JOB_JSON = ("args", "options", "origin", "errors", "result")
RUN_JSON = ("input", "result", "error", "origin", "buffered")


def readable(row: Any, columns: tuple[str, ...] = JOB_JSON) -> dict[str, Any]:
    """A row with its JSON columns as Python values."""
    return {name: value_of(value) if name in columns else value for name, value in row.items()}


def value_of(stored: bytes | None) -> Any:
    """A JSON column as a Python value, with secrets masked."""
    return None if stored is None else mask_secrets(decode(stored)) if SECRET.encode() in stored else decode(stored)


@overload
def zoned(moment: datetime) -> datetime: ...
@overload
def zoned(moment: None) -> None: ...
def zoned(moment: datetime | None) -> datetime | None:
    """A date and time with its time zone, if one is given; an error if it has none."""
    if moment is not None and moment.tzinfo is None:
        raise ConfigError("a date and time needs its time zone, as in 2026-03-02T08:00:00Z")
    return moment
