"""Ready rules for the engine's own events, in one line: `app.monitor(engine_alerts(channels=[Slack(url=...)]))`.

An alert is about a task, a queue, a workflow, a stream, a stage, a host or a schedule, and is resolved when all is well
again. Its evidence says how many and which is the first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tidemill.core.duration import Duration, parse_duration
from tidemill.monitors.definition.channels import Channel
from tidemill.monitors.definition.monitor import Monitor
from tidemill.monitors.definition.triggers import Severity, Sustained, sustained
from tidemill.sources.engine import EngineSource

#: What fails, and is over when nothing has failed for a while.
FAILURES: dict[str, tuple[Severity, str]] = {
    "failed_jobs": ("warning", "jobs of the task fail"),
    "failed_runs": ("warning", "runs of the workflow fail"),
    "lost_workers": ("critical", "processes on the host were lost"),
}
#: What is not as it should be, until it is.
CONDITIONS: dict[str, tuple[Severity, str]] = {
    "late_jobs": ("critical", "jobs of the queue are due and not started"),
    "runs_need_attention": ("warning", "runs of the workflow need attention"),
    "dead_letters": ("warning", "the stream has dead letters"),
    "stale_states": ("warning", "states of the stage cannot be built"),
    "silent_workers": ("critical", "processes on the host are silent"),
    "missed_schedules": ("critical", "the schedule did not fire"),
}


class EngineHealth:
    """What is wrong with one part of the engine: for each kind, since when, how many, and the newest."""

    version = "1"

    def __init__(self, quiet: float) -> None:
        self._quiet = quiet

    def on_event(self, state: Any, event: Any) -> None:
        kind = event["kind"]
        if kind in FAILURES:
            known = state.get(kind)
            if known is None or event.at - known["at"] >= self._quiet:
                known = {"since": event.at, "count": 0}
            state[kind] = {**known, "at": event.at, "count": known["count"] + 1, "detail": event["detail"]}
        elif event["active"]:
            state[kind] = {name: event[name] for name in ("since", "count", "detail")}
        else:
            state.pop(kind, None)


def engine_alerts(
    channels: Sequence[Channel] = (),
    *,
    name: str = "engine",
    quiet_after: Duration = "15m",
    realert: Duration | None = "4h",
    source: EngineSource | None = None,
    **options: Any,
) -> Monitor:
    """A monitor of the engine itself, with an alert for everything that needs a person.

    quiet_after   failures of a task, a workflow or a host are over when none has come for this long
    realert       when an acknowledged alert that still holds is opened again
    source        an `EngineSource` with other limits
    options       other options of the monitor
    """
    quiet = parse_duration(quiet_after, what="quiet_after")
    rules = [
        *(_trigger(kind, *about, _failing(kind, quiet), realert, "1m") for kind, about in FAILURES.items()),
        *(_trigger(kind, *about, _holding(kind), realert, None) for kind, about in CONDITIONS.items()),
    ]
    return Monitor(
        name,
        source=source or EngineSource(),
        entity=lambda event: event["entity"],
        fold=EngineHealth(quiet),
        triggers=rules,
        notify=channels,
        **{"idle": 5, "idle_max": 15, **options},
    )


def _trigger(
    kind: str,
    severity: Severity,
    says: str,
    when: Callable[[Any, float], Any],
    realert: Duration | None,
    recheck: Duration | None,
) -> Sustained:
    return sustained(
        kind.replace("_", "-"),
        when=when,
        since=lambda state: state[kind]["since"],
        evidence=lambda state: state.get(kind),
        severity=severity,
        describe=says,
        realert=realert,
        recheck=recheck,
    )


def _failing(kind: str, quiet: float) -> Callable[[Any, float], bool]:
    return lambda state, now: kind in state and now - state[kind]["at"] < quiet


def _holding(kind: str) -> Callable[[Any, float], bool]:
    return lambda state, now: kind in state
