"""Where an entity stands: its state, how far in its events that state reaches, and its open alerts."""

from __future__ import annotations

from typing import Any

import msgspec

from tidemill.monitors.definition.event import Event, Place, place_of
from tidemill.monitors.reducer.settings_history import Steps
from tidemill.monitors.reducer.state import write_state

RECENT = 10


class Mark(msgspec.Struct, omit_defaults=True):
    """What a trigger remembers of an entity between two looks at it."""

    since: float | None = None
    """Since when its condition holds."""
    began: float | None = None
    """When that began, as was shown or will be shown."""
    clear: float | None = None
    """Since when its condition is gone, while its alert is still open."""


class Marks(msgspec.Struct, omit_defaults=True):
    """What is remembered beside the state."""

    triggers: dict[str, Mark] = {}
    recent: list[tuple[str, float]] = []
    """The newest events, for explanations."""


class AlertRecord(msgspec.Struct):
    """An alert. `id` is 0 until it has been stored."""

    monitor: str
    trigger: str
    entity: str
    kind: str
    severity: str
    started_at: float
    opened_at: float
    tick: int
    id: int = 0
    key: str | None = None
    resolved_at: float | None = None
    resolution: str | None = None
    acked_at: float | None = None
    realert: float | None = None
    realert_from: str = "ack"
    realert_at: float | None = None
    again_after: int | None = None
    owner: str | None = None
    explain: bytes | None = None

    @property
    def facts(self) -> dict[str, str]:
        """What alerts are silenced and grouped by."""
        return {"trigger": self.trigger, "entity": self.entity, "severity": self.severity}

    def acknowledge(self, at: float) -> None:
        """Somebody has seen it; sets when it comes back if nothing changes."""
        self.acked_at = at
        if self.realert is not None:
            self.realert_at = (self.started_at if self.realert_from == "start" else at) + self.realert


class Checkpoint(msgspec.Struct, frozen=True):
    """A state as it was after an event."""

    at: float
    id: str
    count: int
    state: bytes

    @property
    def place(self) -> Place:
        return place_of(self.at, self.id)


class Standing(msgspec.Struct):
    """An entity, as decisions see it."""

    entity: str
    state: Any = None
    raw: bytes | None = None
    """The state as it was stored last, or will be; `since` are the events that came on top of it."""
    since: list[Event] = []
    folded: int = 0
    at: float | None = None
    id: str = ""
    last_at: float | None = None
    count: int = 0
    due: float | None = None
    labels: dict[str, Any] = {}
    turns: Steps | None = None
    """The labels from tick to tick, where they change; `labels` are those of the last look."""
    marks: Marks = msgspec.field(default_factory=Marks)
    alerts: dict[str, AlertRecord] = {}
    checkpoints: list[Checkpoint] = []

    def write(self) -> None:
        """Take down the state as it is now."""
        self.raw, self.since = write_state(self.state), []

    @property
    def place(self) -> Place | None:
        return None if self.at is None else place_of(self.at, self.id)


class Problem(msgspec.Struct, frozen=True):
    """User code that failed: where, for whom, and how."""

    place: str
    entity: str
    error: str
