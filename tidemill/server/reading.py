"""Rows of the database as the API tells them: JSON columns as values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

import asyncpg
import msgspec

from tidemill.core.codec import decode

T = TypeVar("T")

JOB_JSON = ("args", "options", "origin", "errors", "result")
RUN_JSON = ("input", "result", "error", "origin")


def readable(row: Mapping[str, Any] | asyncpg.Record, columns: tuple[str, ...] = JOB_JSON) -> dict[str, Any]:
    """A row with its JSON columns as Python values."""
    return {name: value_of(value) if name in columns else value for name, value in row.items()}


def value_of(stored: bytes | None) -> Any:
    """A JSON column as a Python value."""
    return None if stored is None else decode(stored)


def as_it_is(written: bytes, kind: type[T]) -> T:
    """JSON that is of this kind, for a handler that is declared to give it: it is passed on untouched."""
    return cast(T, msgspec.Raw(written))
