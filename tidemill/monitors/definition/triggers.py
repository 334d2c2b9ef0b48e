"""Triggers: rules over the state of one entity that open alerts.

sustained("stuck", when=lambda s, now: s.mode == "stuck", since=lambda s: s.streak_start, realert="10m")
momentary("big-change", of=lambda s: s.new_runs, key="id", when=lambda r: r.change > 0.5)
absent("silent", after="5m", only_while=lambda s, now: s.logged_in, hours=Hours("Mon-Fri 08:00-16:00"))

A sustained alert is open while its condition holds. A momentary one is raised once per occurrence. An absent one is
open while an entity has sent nothing for a time; a stored timer opens it, so that no poll over all entities is needed.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, ClassVar, Literal

import msgspec

from tidemill.core.check_given import check_function
from tidemill.core.codec import storable
from tidemill.core.duration import Duration, format_duration, parse_duration
from tidemill.core.errors import ConfigError
from tidemill.core.jobs.job import check_name
from tidemill.monitors.definition.hours import Hours
from tidemill.monitors.reducer.state import pick

Severity = Literal["info", "warning", "critical"]
SEVERITIES = ("info", "warning", "critical")
MOST_KEY = 400


class Trigger(msgspec.Struct, frozen=True, kw_only=True):
    """The options of every trigger."""

    name: str
    severity: Severity | Callable[[Any], Severity] = "warning"
    owner: str | None = None
    describe: str = ""
    evidence: Callable[[Any], Any] | None = None

    takes: ClassVar[dict[str, tuple[str, ...]]] = {"severity": ("state",), "evidence": ("state",)}
    """What the functions among the options are called with."""

    def __post_init__(self) -> None:
        for option, arguments in self.takes.items():
            given = getattr(self, option)
            if given is not None and not (option in ("severity", "key", "at") and isinstance(given, str)):
                check_function(f"trigger {self.name}: {option}=", given, *arguments)

    @property
    def kind(self) -> str:
        return type(self).__name__.lower()

    def rule(self) -> dict[str, Any]:
        """The rule as text, stored with its alerts."""
        parts: dict[str, Any] = {"trigger": self.name, "kind": self.kind, "says": self.describe}
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if name not in ("name", "describe", "evidence") and value is not None:
                parts[name] = _in_words(value)
        return parts


class Sustained(Trigger, frozen=True, kw_only=True):
    """Open while its condition holds."""

    when: Callable[[Any, float], Any]
    since: Callable[[Any], float | None] | None = None
    realert: float | None = None
    realert_from: Literal["ack", "start"] = "ack"
    hold: float = 0.0
    clear: float = 0.0
    recheck: float | None = None

    takes = {**Trigger.takes, "when": ("state", "now"), "since": ("state",)}


class Absent(Trigger, frozen=True, kw_only=True):
    """Open while an entity has sent nothing for a time."""

    after: float
    from_start: bool = True
    only_while: Callable[[Any, float], Any] | None = None
    hours: Hours | None = None
    realert: float | None = None
    realert_from: Literal["ack", "start"] = "ack"
    hold: float = 0.0
    clear: float = 0.0

    takes = {**Trigger.takes, "only_while": ("state", "now")}


class Momentary(Trigger, frozen=True, kw_only=True):
    """Raised once per occurrence."""

    of: Callable[[Any], Iterable[Any]]
    key: str | Callable[[Any], Any] = "id"
    when: Callable[[Any], Any] | None = None
    at: str | Callable[[Any], float] = "at"

    takes = {
        "severity": ("occurrence",),
        "evidence": ("state",),
        "of": ("state",),
        "key": ("occurrence",),
        "when": ("occurrence",),
        "at": ("occurrence",),
    }

    def key_of(self, occurrence: Any) -> str:
        """The identity of an occurrence; a long one is cut and ends with its hash, since it is in an index."""
        key = storable(str(self.key(occurrence) if callable(self.key) else pick(occurrence, self.key)))
        if len(key) <= MOST_KEY:
            return key
        return f"{key[:MOST_KEY]}…{hashlib.blake2b(key.encode(), digest_size=16).hexdigest()}"

    def moment_of(self, occurrence: Any) -> float | None:
        """When the occurrence happened, if it says so."""
        if callable(self.at):
            return self.at(occurrence)
        try:
            return pick(occurrence, self.at)
        except (KeyError, AttributeError):
            return None


def sustained(
    name: str,
    *,
    when: Callable[[Any, float], Any],
    since: Callable[[Any], float | None] | None = None,
    realert: Duration | None = None,
    realert_from: Literal["ack", "start"] = "ack",
    hold: Duration = 0,
    clear: Duration = 0,
    recheck: Duration | None = None,
    severity: Severity | Callable[[Any], Severity] = "warning",
    owner: str | None = None,
    describe: str = "",
    evidence: Callable[[Any], Any] | None = None,
) -> Sustained:
    """An alert that is open while `when(state, now)` holds.

    since         a function of the state: when the condition began; by default the event or tick that made it true
    realert       if the condition still holds this long after an acknowledgement, the alert is closed and opened again;
                  with realert_from="start" the time counts from the start of the alert instead
    hold, clear   how long the condition must hold before the alert opens, and be gone before it is resolved
    recheck       check again this often without events: for conditions that depend on `now`
    evidence      a function of the state: what to store with the alert as its reason
    severity      info, warning or critical, or a function of the state
    """
    return Sustained(
        name=_checked(name, severity),
        when=when,
        since=since,
        realert=_seconds(realert, "realert"),
        realert_from=realert_from,
        hold=parse_duration(hold, what="hold"),
        clear=parse_duration(clear, what="clear"),
        recheck=_seconds(recheck, "recheck"),
        severity=severity,
        owner=owner,
        describe=describe,
        evidence=evidence,
    )


def momentary(
    name: str,
    *,
    of: Callable[[Any], Iterable[Any]],
    key: str | Callable[[Any], Any] = "id",
    when: Callable[[Any], Any] | None = None,
    at: str | Callable[[Any], float] = "at",
    severity: Severity | Callable[[Any], Severity] = "info",
    owner: str | None = None,
    describe: str = "",
    evidence: Callable[[Any], Any] | None = None,
) -> Momentary:
    """An alert that is raised exactly once for each occurrence in `of(state)` for which `when(occurrence)` is true.

    `of` returns a list in the state to which the fold appends; it is cleared after it has been checked. `key` is the
    identity of an occurrence forever: use the id of its event. `severity` may be a function of the occurrence.
    """
    return Momentary(
        name=_checked(name, severity),
        of=of,
        key=key,
        when=when,
        at=at,
        severity=severity,
        owner=owner,
        describe=describe,
        evidence=evidence,
    )


def absent(
    name: str,
    *,
    after: Duration,
    from_start: bool = True,
    only_while: Callable[[Any, float], Any] | None = None,
    hours: Hours | None = None,
    realert: Duration | None = None,
    realert_from: Literal["ack", "start"] = "ack",
    hold: Duration = 0,
    clear: Duration = 0,
    severity: Severity | Callable[[Any], Severity] = "warning",
    owner: str | None = None,
    describe: str = "",
    evidence: Callable[[Any], Any] | None = None,
) -> Absent:
    """An alert that is open while an entity has been silent for `after`.

    from_start    whether an entity that was added to the list and has never sent anything counts, too
    only_while    one more condition, such as being logged in; entities labelled present=false never count
    hours         only within these hours, and only for silences that began within the same interval
    """
    seconds = parse_duration(after, what="after")
    if seconds <= 0:
        raise ConfigError(f"trigger {name}: after={after!r} would always hold; give a length of time")
    return Absent(
        name=_checked(name, severity),
        after=seconds,
        from_start=from_start,
        only_while=only_while,
        hours=hours,
        realert=_seconds(realert, "realert"),
        realert_from=realert_from,
        hold=parse_duration(hold, what="hold"),
        clear=parse_duration(clear, what="clear"),
        severity=severity,
        owner=owner,
        describe=describe or f"nothing for {format_duration(seconds)}",
        evidence=evidence,
    )


def check_severity(value: Any) -> Severity:
    """A severity, or a `ConfigError`."""
    if value not in SEVERITIES:
        raise ConfigError(f"severity {value!r} is not one of {', '.join(SEVERITIES)}")
    return value


def _checked(name: str, severity: Severity | Callable[[Any], Severity]) -> str:
    if not callable(severity):
        try:
            check_severity(severity)
        except ConfigError as error:
            raise ConfigError(f"trigger {name}: {error}") from None
    return check_name("trigger", name)


def _seconds(value: Duration | None, what: str) -> float | None:
    return None if value is None else parse_duration(value, what=what)


def _in_words(value: Any) -> Any:
    if not callable(value):
        return value if isinstance(value, str | int | float | bool) else repr(value)
    return _source(value)


@cache
def _source(function: Callable[..., Any]) -> str:
    """The source code of a function, of a lambda only its own; its name if the source is not available."""
    try:
        return _lambda_source(function) or " ".join(inspect.getsource(function).split()).rstrip(",")
    except (OSError, TypeError, SyntaxError):
        return getattr(function, "__qualname__", repr(function))


def _lambda_source(function: Callable[..., Any]) -> str | None:
    """The lambda alone, without the call that it stands in and its neighbours on the line."""
    code = getattr(function, "__code__", None)
    if code is None or code.co_name != "<lambda>":
        return None
    lines, _ = inspect.findsource(function)
    source = "".join(lines)
    places = [(line, column) for line, _, column, end in code.co_positions() if line and column is not None and end]
    around = [
        each
        for each in ast.walk(ast.parse(source))
        if isinstance(each, ast.Lambda)
        and all((each.lineno, each.col_offset) <= place < (each.end_lineno, each.end_col_offset) for place in places)
    ]
    found = ast.get_source_segment(source, around[-1]) if around else None  # The innermost is the last.
    return None if found is None else " ".join(found.split())
