"""The step that the calling code runs in."""

from __future__ import annotations

import asyncio
import weakref
from contextvars import Context, ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemill.flows.runner.in_memory import FlowRun

#: The run, and the number of the work. Weak, because tasks that a step leaves behind keep its variables.
StepKey = tuple["weakref.ref[FlowRun]", int]

_step: ContextVar[StepKey | None] = ContextVar("tidemill_step", default=None)


def enter_step(run: FlowRun, number: int) -> None:
    """Set the piece of work that the calling code runs in."""
    _step.set((run.weak, number))


def find_step() -> tuple[FlowRun, int] | None:
    """Return the run and the number of the work that the calling code runs in; None if there is none."""
    held = _step.get()
    run = None if held is None else held[0]()
    return None if held is None or run is None else (run, held[1])


def step_of(variables: Context) -> StepKey | None:
    """Return the step that these context variables belong to."""
    return variables.get(_step)


def is_task_of_step(run: FlowRun, work: int, task: asyncio.Task[Any]) -> bool:
    """Return whether a step has started this asyncio task; False where Python cannot tell."""
    variables = getattr(task, "get_context", lambda: None)()  # since Python 3.12
    held = None if variables is None else variables.get(_step)
    return held is not None and held[0]() is run and held[1] == work
