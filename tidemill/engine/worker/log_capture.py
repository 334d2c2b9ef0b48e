"""Captures the log lines of an attempt at a job or step for display: the last ones that fit the limit.

Lines come from structlog and from Python's logging, in processes whose logs Tidemill configures
(`engine.telemetry.logs`); printed output is not captured. Each line takes a lock, because a task may
log from several threads.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Protocol

from tidemill.core.codec import encode, storable

MOST_LINES = 200
MOST_BYTES = 64 * 1024
MOST_WORDS = 4_000
MOST_OF_A_FIELD = 1_000

#: Fields that every line has, or that the page shows elsewhere.
_KNOWN = frozenset({"event", "level", "job", "task", "attempt", "exc_info", "timestamp", "exception"})


class LineSink(Protocol):
    """An attempt that captures log lines; thread-safe."""

    def keep_line(self, line: bytes) -> None: ...


_listener: ContextVar[LineSink] = ContextVar("tidemill_lines")


#: Captures what the calling context logs from now on for an attempt.
listen = _listener.set


def find_listener() -> LineSink | None:
    """The attempt that the calling code runs in, if any."""
    return _listener.get(None)


class CapturedLines:
    """The last lines of one attempt."""

    __slots__ = ("_began_at", "_dropped", "_lines", "_lock", "_size", "fresh")

    def __init__(self) -> None:
        self.fresh = False
        """Whether lines were added since they were last taken."""
        self._began_at = time.time()
        self._lines: deque[bytes] = deque()
        self._size = 0
        self._dropped = 0
        self._lock = threading.Lock()

    def add(self, line: bytes) -> None:
        """Add a line, which is a JSON object; the oldest lines are dropped when the limit is reached."""
        with self._lock:
            self._lines.append(line)
            self._size += len(line)
            self.fresh = True
            while len(self._lines) > MOST_LINES or (self._size > MOST_BYTES and len(self._lines) > 1):
                self._size -= len(self._lines.popleft())
                self._dropped += 1

    def take(self) -> tuple[float, int, bytes]:
        """The time of the first line, the number of dropped lines, and all lines as one JSON array."""
        with self._lock:
            self.fresh = False
            return self._began_at, self._dropped, b"[" + b",".join(self._lines) + b"]"


def write_line(event: Mapping[str, Any], trace: str) -> bytes:
    """A logged event as a JSON object: time, level, message, and the other fields."""
    line: dict[str, Any] = {
        "at": round(time.time(), 3),
        "level": str(event.get("level", "info")),
        "event": storable(str(event.get("event", ""))[:MOST_WORDS]),
    }
    fields = {storable(str(name)): _shown(value) for name, value in event.items() if _is_ours(name)}
    if fields:
        line["fields"] = fields
    if trace:
        line["trace"] = storable(trace[-MOST_WORDS:])
    return encode(line)


def _is_ours(name: str) -> bool:
    return name not in _KNOWN and not name.startswith("_")


def _shown(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float) and abs(value) < 2**53:
        return value
    try:
        text = value if isinstance(value, str) else repr(value)
    except Exception as broken:  # noqa: BLE001 - the value's own code is the user's
        text = f"(cannot be shown: {type(broken).__name__})"
    return storable(text[:MOST_OF_A_FIELD])
