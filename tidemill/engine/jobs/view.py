"""A snapshot of a job for its caller: one struct, whether it waits, runs or has ended."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from tidemill.core.codec import decode
from tidemill.core.jobs.job import FINAL_STATES


class JobFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is shown of a job wherever it is shown. `note` says why it is in its state, or what it last reported."""

    id: int
    state: str
    queue: str
    task: str
    attempt: int
    failures: int
    losses: int
    created_at: datetime
    due_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    progress: float | None
    note: str | None


class JobView(JobFacts, frozen=True, kw_only=True):
    """A job as of the time when it was read."""

    args: Any
    result: Any
    errors: list[dict[str, Any]]

    @property
    def ended(self) -> bool:
        return self.state in FINAL_STATES

    @property
    def succeeded(self) -> bool:
        return self.state == "succeeded"

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> JobView:
        """From a row of the live table or the history."""
        known: dict[str, Any] = {name: value for name, value in row.items() if name in cls.__struct_fields__}
        errors, result = known.get("errors"), known.get("result")
        known["args"] = decode(known["args"])
        known["errors"] = [] if errors is None else decode(errors)
        known["result"] = None if result is None else decode(result)
        return cls(**{"progress": None, "finished_at": None, **known})
