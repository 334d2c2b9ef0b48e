"""Notes each call of a monitor's own code, so that one that ends or blocks its process is known and not made again.

The callbacks of monitors are plain functions on the event loop: at most one of them runs at a time. One that is refused
raises, and what follows is what follows from every exception: the event is skipped, the trigger is not checked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tidemill.engine.containment.crash_record import CrashRecord, call_key
from tidemill.engine.containment.watchdog import Culprit

SOURCE = "source"


class Callbacks:
    """The calls of one monitor's code in one process."""

    def __init__(self, monitor: str, record: CrashRecord) -> None:
        self.monitor = monitor
        self.entity = ""
        self.current: tuple[str, str] | None = None
        """The place and the event of the call that runs now."""
        self._record = record
        self._slot = record.hold()
        self._probed = ""

    def begin(self, place: str, event: str = "") -> None:
        """A call of user code begins; the previous one has ended. Raises `RefusedCallError`."""
        record = self._record
        if self._probed:
            record.clear(self._probed)
            self._probed = ""
        key = call_key("monitor", self.monitor, place, self.entity, event)
        self.current = (place, event)
        record.next(self._slot, key)
        if record.is_counted(key):
            self._probed = key

    @contextmanager
    def about(self, entity: str) -> Iterator[None]:
        """Calls about an entity, none of which waits for anything."""
        self.entity = entity
        try:
            yield
        finally:
            self.end()

    def end(self) -> None:
        """No call runs now."""
        self.current, self.entity = None, ""
        self._record.erase(self._slot)
        if self._probed:
            self._record.clear(self._probed)
            self._probed = ""

    @contextmanager
    def reading_source(self) -> Iterator[None]:
        """The source is being read, which waits for others. Raises `RefusedCallError`."""
        key = call_key("monitor", self.monitor, SOURCE)
        slot = self._record.begin(key)
        try:
            yield
        except BaseException as error:
            self._record.end_by(slot, error)
            raise
        self._record.end(slot)
        self._record.clear(key)

    def culprit(self) -> Culprit | None:
        """The call that runs now, as a watchdog names it."""
        if (current := self.current) is None:
            return None
        place, event = current
        about = f" of entity {self.entity}" if self.entity else ""
        what = f" at event {event}" if event else ""
        key = call_key("monitor", self.monitor, place, self.entity, event)
        return Culprit(f"{place}{about}{what} (monitor {self.monitor})", key)

    def source_culprit(self) -> Culprit:
        """The source, for code that blocks and is none of the callbacks."""
        return Culprit(f"the source of monitor {self.monitor}", call_key("monitor", self.monitor, SOURCE))


def guilty_calls(held: list[str]) -> Sequence[str]:
    """Which of the calls that a process died in may have ended it: a callback never waits, a source does."""
    return [key for key in held if key.split("\0")[2:3] != [SOURCE]] or held


def find_culprit(
    callbacks: Sequence[Callbacks], drivers: dict[asyncio.Task[Any], Callbacks], task: asyncio.Task[Any] | None
) -> Culprit | None:
    """The callback that keeps the event loop from turning, or the source that does."""
    for each in callbacks:
        if (culprit := each.culprit()) is not None:
            return culprit
    return drivers[task].source_culprit() if task in drivers else None
