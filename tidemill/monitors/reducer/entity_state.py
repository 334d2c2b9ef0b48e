"""The state of an entity, the last event that it includes, and its open alerts."""

from __future__ import annotations

from typing import Any

import msgspec

from tidemill.monitors.definition.channels import AlertFacts
from tidemill.monitors.definition.event import Event, Place, place_of
from tidemill.monitors.reducer.settings_history import SettingHistory
from tidemill.monitors.reducer.state import write_state

RECENT = 10
HISTORY = "history"
"""The resolution of a momentary alert from before its entity was followed."""


class EventMark(msgspec.Struct, omit_defaults=True):
    """What a trigger remembers of an entity between two checks."""

    since: float | None = None
    """Since when its condition holds."""
    began: float | None = None
    """When the condition began, as it is shown to people."""
    clear: float | None = None
    """Since when its condition no longer holds, while its alert is still open."""
    failures: int = 0
    """How often in a row its code has failed."""
    tries: dict[str, tuple[int, float]] = {}
    """Occurrences whose check has failed: how often, and when each is checked again."""


class EventMarks(msgspec.Struct, omit_defaults=True):
    """What is stored beside the state."""

    triggers: dict[str, EventMark] = {}
    recent: list[tuple[str, float]] = []
    """The newest events, for explanations."""
    expected_from: float | None = None
    """When it was added to the list: from then on its events are expected."""


class AlertRecord(AlertFacts, kw_only=True):
    """An alert. `id` is 0 until it has been stored."""

    tick: int
    id: int = 0
    resolution: str | None = None
    acked_at: float | None = None
    realert: float | None = None
    realert_from: str = "ack"
    realert_at: float | None = None
    again_after: int | None = None
    explain: bytes | None = None

    @property
    def facts(self) -> dict[str, str]:
        """The fields by which alerts are silenced and grouped."""
        return {"trigger": self.trigger, "entity": self.entity, "severity": self.severity}

    def acknowledge(self, at: float) -> None:
        """Acknowledge the alert; sets when it is opened again if nothing changes."""
        self.acked_at = at
        if self.realert is not None:
            self.realert_at = (self.started_at if self.realert_from == "start" else at) + self.realert


class Checkpoint(msgspec.Struct, frozen=True):
    """A copy of the state after an event."""

    at: float
    id: str
    count: int
    state: bytes

    @property
    def place(self) -> Place:
        return place_of(self.at, self.id)


class EntityState(msgspec.Struct):
    """One entity during evaluation."""

    entity: str
    state: Any = None
    raw: bytes | None = None
    """The state as last encoded; `since` are the events folded after that."""
    since: list[Event] = []
    folded: int = 0
    at: float | None = None
    id: str = ""
    last_at: float | None = None
    count: int = 0
    due: float | None = None
    labels: dict[str, Any] = {}
    label_history: SettingHistory | None = None
    """The labels at each tick, where they change; `labels` are those of the last evaluation."""
    added: frozenset[int] = frozenset()
    """The ticks at which it was added to the list."""
    marks: EventMarks = msgspec.field(default_factory=EventMarks)
    alerts: dict[str, AlertRecord] = {}
    checkpoints: list[Checkpoint] = []
    check_each: bool = False
    """Encode the state after each event, to find the one after which it cannot be stored."""

    def write(self) -> None:
        """Encode the state as it is now."""
        self.raw, self.since = write_state(self.state), []

    @property
    def place(self) -> Place | None:
        return None if self.at is None else place_of(self.at, self.id)


class EntityProblem(msgspec.Struct, frozen=True):
    """A failure of user code: where, for which entity, and the error."""

    place: str
    entity: str
    error: str
