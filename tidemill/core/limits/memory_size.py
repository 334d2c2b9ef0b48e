"""Parse and format amounts of memory: 2_000_000_000, "2GB", "1.5 GiB", "500 MB"."""

from __future__ import annotations

import math
import re

from tidemill.core.errors import ConfigError

Memory = int | float | str

UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
ACCEPTED = "a number of bytes, or text such as '500 MB', '2GB' or '1.5 GiB'"

_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.ASCII)


def parse_memory(value: Memory, *, what: str = "memory") -> int:
    """Parse an amount of memory in any accepted form into bytes; `what` names the setting in the error."""
    amount = math.nan
    if isinstance(value, str):
        found = _AMOUNT.fullmatch(value.strip().lower())
        if found and found[2] in UNITS:
            amount = float(found[1]) * UNITS[found[2]]
    elif not isinstance(value, bool) and isinstance(value, int | float):
        amount = value
    if not math.isfinite(amount) or amount < 0:
        raise ConfigError(f"{what}: {value!r} is not an amount of memory; write {ACCEPTED}")
    return round(amount)


def format_memory(size: int) -> str:
    """Format an amount of memory: "90.9 MB", "2 GB"."""
    for unit in ("TB", "GB", "MB", "kB"):
        if size >= UNITS[unit.lower()]:
            return f"{round(size / UNITS[unit.lower()], 1):g} {unit}"
    return f"{size} B"
