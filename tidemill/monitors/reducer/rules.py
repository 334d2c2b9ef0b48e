"""What is evaluated, and what follows from it: the rules of a monitor, and the outcome for one entity."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tidemill.monitors.definition.monitor import BeginCall, Fold, no_note
from tidemill.monitors.definition.triggers import Trigger
from tidemill.monitors.reducer.entity_state import AlertRecord, EntityProblem, EntityState
from tidemill.monitors.reducer.fold import describe
from tidemill.monitors.reducer.settings_history import SettingHistory


class MonitorRules(msgspec.Struct, frozen=True):
    """The fold and the triggers of a monitor."""

    monitor: str
    fold: Fold
    triggers: tuple[Trigger, ...]
    acks: Mapping[tuple[str, str, int], float] = {}
    """For a replay: when the alert of an entity and trigger that a tick opened was acknowledged."""
    off: SettingHistory = SettingHistory(())
    """Which triggers are switched off at each tick."""
    begin: BeginCall = no_note
    """Is called before each call of the monitor's own code."""


class EntityOutcome(msgspec.Struct):
    """What must be stored for one entity."""

    opened: list[AlertRecord] = []
    resolved: list[AlertRecord] = []
    problems: list[EntityProblem] = []
    late: int = 0

    def note(self, trigger: Trigger, entity_state: EntityState, error: BaseException, where: str = "") -> None:
        """Add the error of a trigger's code."""
        why = f"{where}{describe(error)}"
        self.problems.append(EntityProblem(f"trigger {trigger.name}", entity_state.entity, why))
