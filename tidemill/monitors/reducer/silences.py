"""Finds the silence that suppresses the notices of an alert. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from tidemill.store.monitors.alerts import Silence


def find_silence(silences: Sequence[Silence], alert: Mapping[str, str], at: float) -> Silence | None:
    """The last-ending silence that matches the trigger, entity and severity of an alert at a time, if any."""
    fitting = [
        silence
        for silence in silences
        if silence.starts_at <= at < silence.ends_at
        and all(fnmatchcase(alert[name], pattern) for name, pattern in silence.matchers.items())
    ]
    return max(fitting, key=lambda silence: silence.ends_at, default=None)
