"""Which silence keeps an alert from being told: pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from tidemill.store.monitors.alerts import Silence


def find_silence(silences: Sequence[Silence], alert: Mapping[str, str], at: float) -> Silence | None:
    """The silence that ends last among those that fit an alert's trigger, entity and severity at a moment, if any."""
    fitting = [
        silence
        for silence in silences
        if silence.starts_at <= at < silence.ends_at
        and all(fnmatchcase(alert[name], pattern) for name, pattern in silence.matchers.items())
    ]
    return max(fitting, key=lambda silence: silence.ends_at, default=None)
