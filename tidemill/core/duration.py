"""Parse and format durations and rates.

Every setting that takes a duration accepts any of these:

    90          seconds, also 0.5
    "90"        the same, as text (from an environment variable or a file)
    "2m"        units: ms, s, m, h, d, w
    "1h30m"     several units, largest first; spaces are allowed: "1h 30m"
    "1.5h"      fractions too
    timedelta(minutes=2)

A rate is a number per unit of time: `"100/s"`, `"30/m"`, `"5/h"`, `"1000/d"`, or a plain number, which is
per second.
"""

from __future__ import annotations

import hashlib
import math
import re
from datetime import timedelta

from tidemill.core.errors import ConfigError

UNITS = {"w": 604800.0, "d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
ACCEPTED_DURATIONS = "seconds (90, 0.5), text such as '500ms', '90s', '2m', '1h30m', '1d', or a timedelta"
ACCEPTED_RATES = "a number per second (10, 0.5) or text such as '100/s', '30/m', '5/h', '1000/d'"

Duration = str | int | float | timedelta

_NUMBER = r"\d+(?:\.\d+)?"
_PLAIN = re.compile(_NUMBER, re.ASCII)
# Each unit at most once and largest first, so that "1m1m" or "30m1h" is an error and not a guess.
_WITH_UNITS = re.compile(r"\s*".join(rf"(?:({_NUMBER})\s*{unit})?" for unit in UNITS), re.ASCII)
_RATE = re.compile(rf"({_NUMBER})\s*(?:/\s*([smhd]))?", re.ASCII)


LONGEST = 100 * 366 * 86400.0
MOST_BURST = 1e9


def parse_duration(value: Duration, *, what: str = "duration") -> float:
    """Parse a duration in any accepted form into seconds; `what` names the setting in the error."""
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, str):
        seconds = _seconds_in(value.strip().lower())
    else:
        seconds = _number(value)
    if not math.isfinite(seconds) or seconds < 0:
        raise ConfigError(f"{what}: {value!r} is not a length of time; write {ACCEPTED_DURATIONS}")
    if seconds > LONGEST:
        raise ConfigError(f"{what}: {value!r} is longer than a century, which is the limit")
    return seconds


def parse_timeout(value: Duration | None) -> float | None:
    """Parse how long a handle waits into seconds; None, as infinity, waits as long as it takes.

    Below zero is what is left of a time that is over: such a wait ends at once.
    """
    if value is None or value == math.inf:
        return None
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, int | float) and -math.inf < seconds < 0:
        return 0.0
    return parse_duration(value, what="timeout")


def parse_rate(value: str | int | float, *, what: str = "rate") -> float:
    """Parse a rate into a number per second, always above zero; `what` names the setting in the error."""
    if isinstance(value, str):
        found = _RATE.fullmatch(value.strip().lower())
        rate = float(found[1]) / UNITS[found[2] or "s"] if found else math.nan
    else:
        rate = _number(value)
    if math.isfinite(rate) and rate > 0:
        return rate
    raise ConfigError(f"{what}: {value!r} is not a rate above zero; write {ACCEPTED_RATES}")


def parse_limit(rate: str | float | None, burst: float | None, *, what: str) -> tuple[float | None, float | None]:
    """A rate per second and how many may start at once after a quiet time; the latter is a tenth of a second's worth
    by default. Both are None without a rate, except a burst that is given."""
    per_second = None if rate is None else parse_rate(rate, what=f"rate of {what}")
    if burst is None:
        return per_second, per_second and min(max(1.0, per_second / 10), MOST_BURST)
    if not burst >= 1:
        raise ConfigError(f"{what}: a burst of {burst} would never let a job start: use 1 or more")
    if burst > MOST_BURST:
        raise ConfigError(f"{what}: a burst of {burst} is too large: use at most {MOST_BURST:.0f}")
    return per_second, burst


def format_duration(seconds: float) -> str:
    """Format a duration, rounded to at most two units: "340ms", "4.2s", "1h 30m", "3d 4h"."""
    if seconds < 0:
        return "-" + format_duration(-seconds)
    if math.isinf(seconds):
        return "forever"
    if seconds == 0:
        return "0s"
    if seconds < 0.0005:
        return "<1ms"
    if (milliseconds := round(seconds * 1000)) < 1000:
        return f"{milliseconds}ms"
    if (tenths := round(seconds, 1)) < 60:
        return f"{tenths:g}s"
    for coarse, fine, below in (("m", "s", "h"), ("h", "m", "d")):
        if (rounded := _round_to(seconds, fine)) < UNITS[below]:
            return _two_units(rounded, coarse, fine)
    return _two_units(_round_to(seconds, "h"), "d", "h")


def jitter_fraction(*seed: str | int | float) -> float:
    """Return a pseudorandom number in [0, 1) that depends only on the seed.

    Retries and schedules use it for jitter, so that replaying a decision gives the same decision.
    """
    digest = hashlib.blake2b(repr(seed).encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2**53


def _seconds_in(text: str) -> float:
    if _PLAIN.fullmatch(text):
        return float(text)
    found = _WITH_UNITS.fullmatch(text)
    if not text or found is None:
        return math.nan
    counts = zip(found.groups(), UNITS.values(), strict=True)
    return sum(float(count) * size for count, size in counts if count is not None)


def _number(value: object) -> float:
    """Return the value as a float, or NaN if it is not a number (a bool is not a number)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _round_to(seconds: float, unit: str) -> float:
    return round(seconds / UNITS[unit]) * UNITS[unit]


def _two_units(seconds: float, coarse: str, fine: str) -> str:
    many, rest = divmod(seconds, UNITS[coarse])
    few = round(rest / UNITS[fine])
    return f"{many:.0f}{coarse} {few}{fine}" if few else f"{many:.0f}{coarse}"
