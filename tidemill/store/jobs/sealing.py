"""The ends of attempts with their payloads sealed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from tidemill.core.jobs.job import Finish, Requeue
from tidemill.store.database import Database

T = TypeVar("T", Finish, Requeue)


def sealed_ends(database: Database, ends: Sequence[T]) -> Sequence[T]:
    """Ends of attempts as they are stored: what is said about errors may hold payloads."""
    if database.codec is None:
        return ends
    return [
        msgspec.structs.replace(
            end,
            error=database.seal_members(end.error, "message", "traceback"),
            note=database.seal_text(end.note) if end.error is not None or end.state == "succeeded" else end.note,
        )
        for end in ends
    ]
