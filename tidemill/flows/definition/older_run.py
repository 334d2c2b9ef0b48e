"""What a `@migrate` method gets and returns: the state and the events of a run that an older version has begun.

class Order(Workflow):
    @migrate
    def cents(self, run: OlderRun) -> OlderRun:
        run.state["cents"] = round(run.state.pop("euros") * 100)
        for event in run.events:
            if event.type.endswith(".Paid"):
                event.fields["cents"] = round(event.fields.pop("euros") * 100)
        return run
"""

from __future__ import annotations

from typing import Any

import msgspec


class OlderEvent(msgspec.Struct):
    """An event that the run holds: the name of its class, its fields as JSON values, and the step that it is for."""

    type: str
    fields: dict[str, Any]
    step: str | None = None
    """The step that runs, waits or is queued with it; None if the run only keeps it. Another name moves the work."""


class OlderRun(msgspec.Struct):
    """A run of an older version. Steps and classes that were declared as renamed have their new names already."""

    version: str
    """The version that has driven the run until now."""
    state: dict[str, Any]
    """The fields of the run's state; values of classes that are gone have their stored form."""
    events: list[OlderEvent]
    """Every event that the run holds. The list keeps its length: an event can be changed but not removed."""
