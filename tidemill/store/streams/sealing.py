"""What is stored of a message, with its payloads sealed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidemill.store.database import Database


def seal_message(
    database: Database, errors: Sequence[str | None], payloads: Sequence[bytes], histories: Sequence[str | None]
) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
    """The errors, payloads and earlier attempts of messages as they are stored."""
    if database.codec is None:
        return errors, payloads, histories
    return (
        [database.seal_text(error) for error in errors],
        [database.seal_bytes(payload) for payload in payloads],
        [None if each is None else database.seal(each.encode()).decode() for each in histories],
    )
