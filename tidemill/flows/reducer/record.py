"""The record of a step's attempt: what it did with its context, for the step to get the same when it runs again. Pure.

A step that waits is run again from its beginning when its run comes back. Each operation that is in the record gives
its recorded result and has no effect; behind the end of the record the step goes on. Operations are compared by lane,
kind and key, never by value: a time stamp may differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

ROOT = ""
"""The lane of the step itself; tasks and threads inside of it have lanes of their own."""


class RecordedOperation(msgspec.Struct, frozen=True, gc=False):
    """One operation of a step on its context."""

    lane: str
    kind: str
    """get, state, edit, set, send, show, collect, wait, sleep, child, once, now, random, retry_info, or a mark."""
    key: str
    """A path; the class and target of an event; a buffer; a question; a name."""
    result: Any = None
    error: tuple[Any, ...] | None = None
    """The class and message of the exception that the operation has raised, and the detail of it if it has one."""
    leaves: bool = False
    """Whether the event of a `send` leaves with the tick that this operation is recorded with."""


BEGIN, END_OF_LANE, ANSWERED, GAVE_UP, EDITING, RESULTS = "begin", "end", "answered", "gave up", "editing", "results"
MARKS = frozenset((BEGIN, END_OF_LANE, ANSWERED, GAVE_UP, EDITING, RESULTS))
"""Marks in the order of the operations: a task begins with its first operation, and ends; it receives what it has
waited for, or gives it up; it begins an edit; it has the results of its jobs."""
NEW_MARKS = MARKS - {BEGIN}
"""The marks that the version before does not know."""


def key_with_names(kind: str, key: str, class_name: Callable[[str], str], step_name: Callable[[str], str]) -> str:
    """Return the key of a recorded operation with other names of its class and of the step that it is for."""
    if kind == BEGIN:
        first, _, rest = key.partition(" ")
        return f"{first} {key_with_names(first, rest, class_name, step_name)}"
    name, space, rest = key.partition(" ")
    if kind not in ("send", "show") and not (kind == "wait" and rest.startswith("[")):  # A wait may have its own name.
        return key
    return f"{class_name(name)}{space}{step_name(rest) if kind == 'send' and rest else rest}"


READS = frozenset(("get", "state", "edit"))
"""The kinds whose results are values of the run's state."""
