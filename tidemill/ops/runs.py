"""Runs of workflows and dags."""

from __future__ import annotations

from datetime import datetime

import msgspec


class RunLine(msgspec.Struct, frozen=True):
    """A run in a list. `asks` is how many human inputs it waits for."""

    id: int
    workflow: str
    shape: str
    state: str
    key: str | None
    ticks: int
    owned: bool
    awake: bool
    note: str | None
    created_at: datetime
    ended_at: datetime | None
    forked_from: int | None
    parent: int | None
    asks: int


class RunPage(msgspec.Struct, frozen=True):
    """Runs, newest first; `next` is the cursor of the next page, or null on the last one."""

    items: list[RunLine]
    next: str | None
