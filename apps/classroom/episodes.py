"""Episodes of a session: coding, running, resetting and pausing, one event at a time. No dependencies but msgspec."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

CODE_EVENTS = frozenset({"blockMoved", "blockChanged", "blockCreated", "blockDeleted"})
RESET_EVENTS = frozenset({"loadProject", "newProject"})
PLAYGROUND_EVENTS = frozenset(
    {"playgroundOpen", "playgroundClosed", "playgroundHidden", "playgroundShow", "playgroundReset", "playgroundData"}
)
SOFT_EVENTS = PLAYGROUND_EVENTS | {"menuOpen", "menuSelect", "menuClose"}
RUN_START, RUN_END = "runProject", "projectEnd"

INACTIVE_AFTER, SESSION_AFTER = 300.0, 86_400.0
PAUSE_OVER = 5.0
KEPT = 200


class Episode(msgspec.Struct):
    """A stretch of a session: `code`, `run`, `reset`, `inactive` or `pause`."""

    kind: str
    start: float
    end: float


class Episodes(msgspec.Struct, omit_defaults=True):
    """The episodes so far; the newest `KEPT` of them, and the one that is open."""

    done: list[Episode] = []
    open: Episode | None = None
    last_at: float | None = None
    run_ended: float | None = None
    """When the last run ended by itself, as long as nothing but the playground has happened since."""

    def step(self, kind: str, at: float) -> None:
        """One more event of the time-sorted session."""
        self._gap(at)
        self.last_at = at
        if self.run_ended is not None and kind not in PLAYGROUND_EVENTS:
            if PAUSE_OVER < at - self.run_ended < INACTIVE_AFTER:
                self._finish(Episode("pause", self.run_ended, at))
            self.run_ended = None
        if kind in CODE_EVENTS:
            if self.open is None or self.open.kind != "code":
                self._close(at)
                self.open = Episode("code", at, at)
            self.open.end = at
        elif kind == RUN_START:
            self._close(at)
            self.open = Episode("run", at, at)
        elif kind == RUN_END:
            if self.open is not None and self.open.kind == "run":
                self.open.end = self.run_ended = at
                self._finish(self.open)
                self.open = None
        elif kind in RESET_EVENTS:
            self._close(at)
            self._finish(Episode("reset", at, at))
        elif kind in SOFT_EVENTS and self.open is not None:
            self.open.end = at

    def _gap(self, at: float) -> None:
        """A long silence is a pause, which ends the open episode."""
        if self.last_at is None or at - self.last_at < INACTIVE_AFTER:
            return
        if self.open is not None:
            self._finish(self.open)
        self.open = self.run_ended = None
        if at - self.last_at <= SESSION_AFTER:
            self._finish(Episode("inactive", self.last_at, at))

    def _close(self, at: float) -> None:
        """End the open episode; a run lasts until the event that ends it."""
        if self.open is not None:
            if self.open.kind == "run":
                self.open.end = at
            self._finish(self.open)
        self.open = None

    def _finish(self, episode: Episode) -> None:
        self.done.append(episode)
        del self.done[:-KEPT]

    @property
    def current(self) -> Episode | None:
        return self.open or (self.done[-1] if self.done else None)


def segment(events: Iterable[tuple[str, float]]) -> list[Episode]:
    """The episodes of a whole session, from the types and times of its events."""
    made = Episodes()
    found: list[Episode] = []
    for kind, at in sorted(events, key=lambda event: event[1]):
        made.step(kind, at)
        if len(made.done) > KEPT // 2:
            found += made.done
            made.done.clear()
    found += made.done
    return found + ([made.open] if made.open is not None else [])
