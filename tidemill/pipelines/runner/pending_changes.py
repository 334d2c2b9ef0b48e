"""What a pipeline is to be looked at for: what was heard and has not yet been acted upon."""

from __future__ import annotations

import asyncio

import msgspec


class ChangeNotice(msgspec.Struct):
    """What has been heard."""

    paths: set[str] = set()  # files that others have changed
    entities: dict[str, set[str]] = {}  # states, by stage, that somebody has built
    folders: bool = False  # a folder came, went or was moved
    everything: bool = False
    reload: bool = False  # what the database knows is not what it was


class PendingChanges:
    """An ear: `event` is set while there is something to be taken."""

    def __init__(self) -> None:
        self.is_told = False  # whether the system tells of changes: if not, scans are all there is
        self.heard = ChangeNotice()
        self.event = asyncio.Event()

    def take(self) -> ChangeNotice:
        """What has been heard since the last time."""
        taken, self.heard = self.heard, ChangeNotice()
        self.event.clear()
        return taken
