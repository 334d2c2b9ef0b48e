"""Labels in notes: `#right` and `#wrong` in the note of an alert give its trigger a precision."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

import msgspec

RIGHT, WRONG = "#right", "#wrong"
_LABEL = re.compile(r"\s*(?<!\S)#(?:right|wrong)(?!\w)", re.IGNORECASE)
Z = 1.96


class Precision(msgspec.Struct, frozen=True):
    """How often a trigger was right, by the labels of its alerts, with the bounds of 95 % confidence (Wilson's)."""

    trigger: str
    alerts: int
    right: int
    wrong: int
    share: float | None = None
    low: float | None = None
    high: float | None = None


def label_in(note: str | None) -> bool | None:
    """True for right, False for wrong, None without a label; the last label counts."""
    found = _LABEL.findall(note or "")
    return None if not found else found[-1].strip().lower() == RIGHT


def labelled(note: str | None, right: bool | None) -> str:
    """A note with this label in place of any other."""
    text = _LABEL.sub("", note or "").strip()
    if right is None:
        return text
    return f"{text} {RIGHT if right else WRONG}".strip()


def precision(alerts: Iterable[Any]) -> list[Precision]:
    """For each trigger, from its alerts and their notes."""
    found: dict[str, list[bool | None]] = {}
    for alert in alerts:
        found.setdefault(alert["trigger"], []).append(label_in(alert["note"]))
    made = []
    for trigger, labels in sorted(found.items()):
        right, wrong = labels.count(True), labels.count(False)
        bounds = wilson(right, right + wrong)
        made.append(Precision(trigger, len(labels), right, wrong, *bounds))
    return made


def wilson(right: int, of: int) -> tuple[float | None, float | None, float | None]:
    """A share with its bounds; None if nothing was counted."""
    if not of:
        return None, None, None
    share = right / of
    middle = (share + Z * Z / (2 * of)) / (1 + Z * Z / of)
    half = Z * math.sqrt(share * (1 - share) / of + Z * Z / (4 * of * of)) / (1 + Z * Z / of)
    return round(share, 4), round(max(0.0, middle - half), 4), round(min(1.0, middle + half), 4)
