"""What the names in a test mean: a misspelt one is an error, also where the test expects that nothing is there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tidemill.app import App
from tidemill.core.did_you_mean import find_declared
from tidemill.dags import Dag
from tidemill.engine.jobs.task import Task
from tidemill.monitors.definition.monitor import Monitor
from tidemill.streams.definition.stream import Stream


def task_name(app: App, task: Task[Any, Any, Any] | str, arguments: Iterable[str]) -> str:
    """The name of a task that has these arguments."""
    found = app.declarations.task(task)
    for name in arguments:
        if name not in found.signature.names:
            raise found.signature.unknown(name)
    return found.name


def run_name(app: App, what: Any) -> str:
    """The name of a workflow or a dag."""
    if isinstance(what, Dag):
        return what.name
    if isinstance(what, str) and what in app.runs.dags:
        return what
    return app.runs.flow(what).name


def trigger_name(app: App, name: str) -> str:
    """The name of a trigger; any, in an application without monitors."""
    known = {each.name: each.name for monitor in app.monitors.values() for each in monitor.triggers}
    return find_declared("trigger", known, name) if known else name


def find_fed(app: App, name: str) -> Monitor | Stream:
    """The monitor or the stream of this name."""
    declared: dict[str, Monitor | Stream] = {**app.monitors, **app.streams.declared}
    return find_declared("monitor or stream", declared, name)
