"""Why an alert opened, as sentences: its rule, the values at that time, and when."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import msgspec

from tidemill.core.duration import format_duration

_ASSIGNED_LAMBDA = re.compile(r"^\w+=(lambda[^:]*:\s*)?")


def why_opened(alert: Any, record: dict[str, Any]) -> list[str]:
    """Explain an alert from the record that was stored when it opened."""
    rule = record.get("rule") or {}
    after, hold = rule.get("after"), rule.get("hold")
    says = rule.get("says")
    if not says and alert.kind == "absent" and isinstance(after, int | float):
        says = f"no event for {format_duration(after)}"
    if not says:
        says = "it occurred" if alert.kind == "momentary" else "its condition became true"
    why = [f"{alert.trigger} of {alert.entity} ({alert.severity}): {says}."]
    if isinstance(code := rule.get("when"), str):
        held = f", true for {format_duration(hold)}" if isinstance(hold, int | float) and hold > 0 else ""
        why.append(f"Condition: `{_ASSIGNED_LAMBDA.sub('', code)}`{held}.")
    seen = record.get("evidence", record.get("features"))
    if seen is not None:
        why.append(f"Values at that time: {_text(seen)}.")
    if "occurrence" in record:
        why.append(f"Occurrence: {_text(record['occurrence'])}.")
    started = alert.started_at or alert.opened_at
    later = format_duration((alert.opened_at - started).total_seconds())
    why.append(f"Started at {_moment(started)}, opened {later} later.")
    if record.get("events"):
        last = datetime.fromtimestamp(record["events"][-1]["at"], UTC)
        why.append(f"Last event before that: {_moment(last)}.")
    return why


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
