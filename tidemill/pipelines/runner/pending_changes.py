"""Changes that a pipeline has been notified of and has not processed yet."""

from __future__ import annotations

import asyncio

import msgspec


class ChangeNotice(msgspec.Struct):
    """The changes so far."""

    paths: set[str] = set()  # files changed by others
    entities: dict[str, set[str]] = {}  # states, by stage, built by others
    folders: bool = False  # a folder was added, removed or moved
    everything: bool = False
    reload: bool = False  # the database's state has changed


class PendingChanges:
    """Collects changes: `event` is set while there are any."""

    def __init__(self) -> None:
        self.is_notified = False  # whether the system sends notifications; if not, only scans find changes
        self.notice = ChangeNotice()
        self.event = asyncio.Event()

    def take(self) -> ChangeNotice:
        """Take the changes since the last call."""
        taken, self.notice = self.notice, ChangeNotice()
        self.event.clear()
        return taken
