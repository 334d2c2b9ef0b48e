"""Whether a source can be read: what a dispatcher reports of each of its sources."""

from __future__ import annotations

import asyncio
import time
from typing import Literal

import msgspec

State = Literal["connecting", "ok", "failing"]


class SourceHealth(msgspec.Struct, eq=False):
    """The state of one source, and its last error."""

    state: State = "connecting"
    error: str | None = None
    """The last error, also after the source has recovered."""
    error_at: float | None = None
    failures: int = 0
    """How many attempts have failed since the last success."""
    tried: asyncio.Event = msgspec.field(default_factory=asyncio.Event)

    def succeeded(self) -> None:
        self.state, self.failures = "ok", 0
        self.tried.set()

    def failed(self, error: BaseException) -> None:
        self.state = "failing"
        self.error = str(error) or type(error).__name__
        self.error_at = time.time()
        self.failures += 1
        self.tried.set()
