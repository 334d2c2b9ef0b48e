"""The same names from two implementations: those of `llama-index-workflows`, and Tidemill's."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

from pydantic import BaseModel, Field

#: So many event classes may one program need.
MOST_EVENTS = 60


class Dialect:
    """What a program needs of an implementation, and the event classes that it uses."""

    def __init__(self, package: ModuleType, events: ModuleType, retry: ModuleType, collect: ModuleType) -> None:
        self.Workflow: Any = package.Workflow  # type: ignore[attr-defined]
        self.Context: Any = package.Context  # type: ignore[attr-defined]
        self.step: Any = package.step  # type: ignore[attr-defined]
        self.catch_error: Any = package.catch_error  # type: ignore[attr-defined]
        self.events: Any = events
        self.retry: Any = retry
        self.collect: Any = collect
        self.numbered = [_define(f"E{at}", events.Event, n=0, id="") for at in range(MOST_EVENTS)]
        self.Stray = _define("Stray", events.Event, n=0)  # No step takes it.
        self.Note = _define("Note", events.Event, where="", n=0)
        self.Ask = _define("Ask", events.InputRequiredEvent, where="", id="", turn=0)
        self.Answer = _define("Answer", events.HumanResponseEvent, where="", id="", turn=0, v=0)
        self.questions = [_define(f"Question{at}", events.InputRequiredEvent, n=0, id="") for at in range(8)]
        self.replies = [_define(f"Reply{at}", events.HumanResponseEvent, n=0, id="") for at in range(8)]
        self.families = [_family(at, events.Event) for at in range(8)]


class State(BaseModel):
    """The declared state of a program."""

    total: int = 0
    slots: dict[str, Any] = Field(default_factory=dict)


def _define(name: str, base: type, /, **fields: Any) -> Any:
    """Create an event class that can be found by its name."""
    home = base.__module__.partition(".")[0]
    members = {"__annotations__": {each: type(value) for each, value in fields.items()}, **fields}
    module = sys.modules[__name__]
    cls = type(f"{home.title()}{name}", (base,), {**members, "__module__": __name__})
    setattr(module, cls.__name__, cls)
    return cls


def _family(at: int, base: type) -> tuple[Any, ...]:
    parent = _define(f"Parent{at}", base, n=0, id="")
    return parent, _define(f"Left{at}", parent), _define(f"Right{at}", parent)


def theirs() -> Dialect:
    """`llama-index-workflows`, as it is installed."""
    return Dialect(
        *(importlib.import_module(f"workflows{each}") for each in ("", ".events", ".retry_policy", ".collect"))
    )


def ours() -> Dialect:
    """Tidemill's flows."""
    root = "tidemill.flows"
    names = (root, f"{root}.definition.events", f"{root}.definition.retry_policy", f"{root}.definition.collect")
    return Dialect(*map(importlib.import_module, names))
