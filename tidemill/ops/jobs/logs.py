"""Lines that jobs and steps logged, as operations return them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from tidemill.core.codec import decode


class LogLine(msgspec.Struct, frozen=True):
    """One line that was logged: its time, level and text, its fields, and the traceback if there is one."""

    at: datetime
    level: str
    event: str
    fields: dict[str, Any] = {}
    trace: str = ""


def read_lines(stored: bytes) -> list[LogLine]:
    """The lines of a row."""
    return [
        LogLine(
            datetime.fromtimestamp(line["at"], UTC),
            line["level"],
            line["event"],
            line.get("fields", {}),
            line.get("trace", ""),
        )
        for line in decode(stored)
    ]
