"""Schedules of periodic jobs: cron expressions in a time zone, and intervals.

    parse_schedule(cron="0 9 * * 1-5", timezone="Europe/Paris")    nine o'clock on working days, in Paris
    parse_schedule(cron="*/10 * * * * *")                          six fields: the first is seconds
    parse_schedule(cron="@daily")                                  also @hourly, @weekly, @monthly, @yearly
    parse_schedule(every="15m")                                    on the clock: :00, :15, :30, :45 UTC

All times here are seconds since 1970, UTC; a schedule is plain data and these functions never read the
clock. A cron field takes `*`, numbers, names (`MON`, `JAN`), ranges, lists and steps; the day of month
also `L` (last) and `LW` (last weekday), the day of week `5L` (last Friday) and `1#2` (second Monday). If
neither day field starts with `*`, a day that matches either is a match.

**On the days when clocks change**, cron does what Debian's cron does:

- A job at fixed times (neither its minute nor its hour starts with `*`) runs on every scheduled day, and
  each of its times once. Times in the skipped hour become one run right after it: `30 2 * * *` runs at 03:00
  when 02:00 to 03:00 is skipped. Times in the repeated hour run in its first pass only.
- A job with a wildcard (`*/5 * * * *`, `0 * * * *`) runs whenever the local time matches, at even intervals
  of real time through both changes. `*/5 2 * * *` is one of these: it does not run on the day without an
  hour 2, and runs in both passes on the day with two.

Six-field expressions follow the same rules. Clock changes do not affect intervals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from cronsim import CronSim, CronSimError

from tidemill.core.check_given import check_kind
from tidemill.core.duration import Duration, jitter_fraction, parse_duration
from tidemill.core.errors import ConfigError

SHORTEST_INTERVAL = 0.01
YEAR_2000 = datetime(2000, 1, 1)
MOST_CHANGES = 200
"""How many skipped hours a search passes before it concludes that the expression never matches."""
MOST_WAITING = 1000
"""How many fires of a schedule wait for the previous one."""
GRACE = 60.0
"""A fire that is at most this many seconds late counts as on time: the scheduler was busy, not down."""

NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

Catchup = Literal["skip", "one", "all"]


class Cron(msgspec.Struct, frozen=True, tag="cron", omit_defaults=True, forbid_unknown_fields=True):
    """Due whenever the local time in `timezone` matches the expression."""

    expr: str
    timezone: str = "UTC"


class Every(msgspec.Struct, frozen=True, tag="every", omit_defaults=True, forbid_unknown_fields=True):
    """Due every `seconds` seconds; `anchor` sets the phase."""

    seconds: float
    anchor: float = 0.0


Schedule = Cron | Every


#: What a fire does while the job or run of the fire before is unfinished: it starts all the same, is skipped, waits
#: for its end, or cancels it.
Overlap = Literal["allow", "skip", "queue", "cancel"]
OVERLAPS = ("allow", "skip", "queue", "cancel")

#: Why something was started by a schedule.
FireReason = Literal["due", "catch-up", "backfill", "run now"]


class WaitingFire(msgspec.Struct, frozen=True, array_like=True):
    """A fire that is due, and why."""

    fire: float
    reason: FireReason = "due"


class OverlapDecision(msgspec.Struct, frozen=True):
    """Which fires to start now, which go on waiting, which are skipped, and whether the previous one is cancelled."""

    start: tuple[WaitingFire, ...] = ()
    waiting: tuple[WaitingFire, ...] = ()
    skipped: tuple[WaitingFire, ...] = ()
    cancels: bool = False


class FirePlan(msgspec.Struct, frozen=True):
    """Which fires of a schedule to enqueue now, and which were missed.

    Store `through` in one transaction with the jobs of `fire`, and pass it as `last_fire` next time: then
    every fire is decided exactly once.
    """

    fire: tuple[float, ...]
    """The fires to enqueue now, oldest first."""
    through: float
    """Every fire up to here has been decided."""
    next: float
    """The first fire after `through`. If it is due already, `limit` was reached: plan again."""
    missed: int = 0
    """How many fires were missed."""
    missed_is_exact: bool = True
    """False if there were too many to count: then `missed` is a lower bound."""
    missed_first: float | None = None
    missed_last: float | None = None


def parse_schedule(cron: str | None = None, every: Duration | None = None, timezone: str = "UTC") -> Schedule:
    """Create a validated schedule from either a cron expression or an interval.

    The time zone is an IANA name and applies to cron only.
    """
    if cron is not None and every is not None:
        raise ConfigError(f"a schedule has either cron or every, not both: cron={cron!r}, every={every!r}")
    if cron is not None:
        check_kind("cron", cron, str, "text, such as '0 9 * * 1-5'")
        return _checked_cron(cron, timezone)
    if every is not None:
        return _checked_every(every)
    raise ConfigError("a schedule needs cron (such as '0 9 * * 1-5') or every (such as '15m')")


def next_fire(schedule: Schedule, after: float) -> float:
    """Return the first fire strictly after a time."""
    if isinstance(schedule, Every):
        return _moment(schedule, _index_after(schedule, after))
    zone = _zone(schedule.timezone)
    # Fires are on whole seconds, so being after 12.7 is the same as being after 12.
    second = math.floor(after)
    if _is_at_fixed_times(schedule.expr):
        return float(_next_fixed(schedule.expr, zone, second))
    return float(_next_by_real_time(schedule.expr, zone, second))


def fires_between(schedule: Schedule, after: float, until: float, limit: int = 1000) -> list[float]:
    """Return the fires after `after` and up to and including `until`, at most `limit` of them."""
    fires: list[float] = []
    while len(fires) < limit and (after := next_fire(schedule, after)) <= until:
        fires.append(after)
    return fires


def preview(schedule: Schedule, after: float, n: int) -> list[float]:
    """Return the next `n` fires after a time, for display."""
    return fires_between(schedule, after, math.inf, n)


def latest_fire(schedule: Schedule, after: float, until: float) -> float | None:
    """Return the last fire after `after` and up to and including `until`, by bisection."""
    latest, high = next_fire(schedule, after), until
    if latest > until:
        return None
    if isinstance(schedule, Every):
        return _moment(schedule, _index_after(schedule, until) - 1)
    # There is no fire in (high, until]; each round halves the range between latest and high.
    while (following := next_fire(schedule, latest)) <= high:
        latest = following
        middle = latest + (high - latest) / 2
        if (beyond := next_fire(schedule, middle)) <= high:
            latest = beyond
        else:
            high = middle
    return latest


def plan_fires(
    schedule: Schedule,
    *,
    last_fire: float,
    now: float,
    catchup: Catchup = "skip",
    limit: int = 1000,
    grace: float = GRACE,
) -> FirePlan:
    """Decide which of the fires after `last_fire` and up to `now` to enqueue.

    For a new schedule `last_fire` is its creation time; later it is `through` of the previous plan.

    - `skip`: fires that are late by more than `grace` seconds are missed, the others are enqueued.
    - `one`: the latest fire is enqueued, however late it is; those before it are missed.
    - `all`: every fire is enqueued.

    At most `limit` fires are returned; the others stay due for the next call. Missed fires of a cron
    schedule are counted up to `limit` too, so that months of them cost no more than a day of them.
    """
    if limit < 1:
        raise ConfigError(f"limit: {limit!r} is not a number of fires of 1 or more")
    match catchup:
        case "skip":
            # A fire that is late by exactly the grace is still on time.
            missed_until = math.nextafter(now - grace, -math.inf)
            fire = fires_between(schedule, max(last_fire, missed_until), now, limit)
        case "one":
            latest = latest_fire(schedule, last_fire, now)
            missed_until = last_fire if latest is None else math.nextafter(latest, -math.inf)
            fire = [] if latest is None else [latest]
        case "all":
            missed_until = last_fire
            fire = fires_between(schedule, last_fire, now, limit)
        case _:
            raise ConfigError(f"catchup: {catchup!r} is not one of 'skip', 'one', 'all'")
    missed = _count_fires(schedule, last_fire, missed_until, limit)
    through = max(last_fire, now)
    if fire and (following := next_fire(schedule, fire[-1])) <= now:
        through, upcoming = fire[-1], following
    else:
        upcoming = next_fire(schedule, through)
    return FirePlan(
        fire=tuple(fire),
        through=through,
        next=upcoming,
        missed=missed.count,
        missed_is_exact=missed.is_exact,
        missed_first=missed.first,
        missed_last=missed.last,
    )


def decide_overlap(
    overlap: Overlap, waiting: Sequence[WaitingFire], fires: Sequence[WaitingFire], *, is_unfinished: bool
) -> OverlapDecision:
    """Decide which fires start work, given those that wait already and whether the previous one is unfinished.

    Fires that wait, of `queue` or of a backfill, start one after another. At most `MOST_WAITING` wait.
    """
    old, new = tuple(waiting), tuple(fires)
    match overlap:
        case "allow":
            return OverlapDecision(start=old + new)
        case "queue":
            room = max(0, MOST_WAITING + (not is_unfinished) - len(old))
            line = old + new[:room]
            start = () if is_unfinished else line[:1]
            return OverlapDecision(start, line[len(start) :], new[room:])
        case "cancel" if new:
            return OverlapDecision(new[-1:], old, new[:-1], is_unfinished)
    if is_unfinished:
        return OverlapDecision((), old, new)
    if old:
        return OverlapDecision(old[:1], old[1:], new)
    return OverlapDecision(new[:1], (), new[1:])


def jittered(fire: float, jitter: float, seed: str) -> float:
    """Return the time at which a fire is due with jitter: up to `jitter` seconds later, the same in every process.

    The seed differs per schedule (its name, for example), so that all schedules at midnight do not fire
    in the same second.
    """
    if jitter <= 0:
        return fire
    due = fire + jitter * jitter_fraction(seed, fire)
    return max(fire, min(due, math.nextafter(fire + jitter, -math.inf)))


def describe(schedule: Schedule) -> str:
    """Describe the schedule in words: "every 5 minutes", "at 09:00 on Monday through Friday (Europe/Paris)"."""
    if isinstance(schedule, Cron):
        words = CronSim(_fields(schedule.expr), YEAR_2000).explain()
        return f"{words[:1].lower()}{words[1:]} ({schedule.timezone})"
    units = (("week", 604800), ("day", 86400), ("hour", 3600), ("minute", 60))
    whole = (named for named in units if schedule.seconds % named[1] == 0)
    unit, size = next(whole, ("second", 1))
    count = schedule.seconds / size
    return f"every {unit}" if count == 1 else f"every {count:.10g} {unit}s"


class _Count(msgspec.Struct, frozen=True):
    """The number of fires in a time range, with the first and the last one."""

    count: int = 0
    is_exact: bool = True
    first: float | None = None
    last: float | None = None


def _count_fires(schedule: Schedule, after: float, until: float, limit: int) -> _Count:
    """Count the fires after `after` and up to and including `until`; for cron at most `limit`."""
    if until <= after:
        return _Count()
    if isinstance(schedule, Every):
        start, end = _index_after(schedule, after), _index_after(schedule, until)
        if start == end:
            return _Count()
        return _Count(end - start, True, _moment(schedule, start), _moment(schedule, end - 1))
    fires = fires_between(schedule, after, until, limit)
    if not fires:
        return _Count()
    last = latest_fire(schedule, fires[-1], until)
    return _Count(len(fires), last is None, fires[0], fires[-1] if last is None else last)


def _checked_cron(expr: str, timezone: str) -> Cron:
    cron = Cron(expr.strip(), timezone)
    try:
        CronSim(_fields(expr), YEAR_2000)
    except CronSimError as error:
        raise ConfigError(
            f"cron: {expr!r} is not a cron expression ({str(error).lower()}); write five fields, minute hour "
            f"day month weekday, such as '0 9 * * 1-5', or six, the first for seconds"
        ) from error
    next_fire(cron, YEAR_2000.replace(tzinfo=UTC).timestamp())  # rejects an expression that never matches
    return cron


def _checked_every(every: Duration) -> Every:
    seconds = parse_duration(every, what="every")
    if seconds < SHORTEST_INTERVAL:
        raise ConfigError(f"every: {every!r} is too short; the shortest interval is 10ms")
    return Every(seconds)


def _fields(expr: str) -> str:
    return NICKNAMES.get(expr.strip().lower(), expr)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, TypeError, ValueError, OSError) as error:
        raise ConfigError(
            f"timezone: {name!r} is not a time zone; write an IANA name such as 'Europe/Paris' or 'UTC'"
        ) from error


def _index_after(every: Every, moment: float) -> int:
    """Return the index, counted from the anchor, of the first fire after a time."""
    index = math.floor((moment - every.anchor) / every.seconds) + 1
    # The division may round to the wrong side; these loops correct it.
    while _moment(every, index - 1) > moment:
        index -= 1
    while _moment(every, index) <= moment:
        index += 1
    return index


def _moment(every: Every, index: int) -> float:
    return every.anchor + index * every.seconds


def _is_at_fixed_times(expr: str) -> bool:
    minute, hour = _fields(expr).split()[-5:-3]
    return not minute.startswith("*") and not hour.startswith("*")


# The two searches below run cronsim on naive local times and convert the results themselves, because cronsim
# treats six fields differently from five in a time zone and misses fires where clocks change by half an hour
# (Lord Howe).


def _next_fixed(expr: str, zone: ZoneInfo, second: int) -> int:
    """Return the first matching second after this one, for an expression with fixed times."""
    now = datetime.fromtimestamp(second, zone)
    wall = now.replace(tzinfo=None)
    if now.fold:
        # In the second pass of a repeated hour all its times have fired already: continue at its end.
        change = _change(zone, int(now.replace(fold=0).timestamp()), second)
        wall = datetime.fromtimestamp(change - 1, zone).replace(tzinfo=None)
    match = _next_match(expr, wall)
    first, last = _seconds_of(match, zone)
    # In a skipped hour, the local time read with the offset after the change gives the earlier second.
    return first if first <= last else _change(zone, last, first)


def _next_by_real_time(expr: str, zone: ZoneInfo, second: int) -> int:
    """Return the first second after this one at which the local time in the zone matches."""
    wall = datetime.fromtimestamp(second, zone).replace(tzinfo=None)
    passes = _seconds_of(wall, zone)
    # In the first pass of a repeated hour, its second pass comes before anything later.
    second_pass = _change(zone, *passes) if passes[0] == second < passes[1] else None
    for _ in range(MOST_CHANGES):
        first, last = _seconds_of(_next_match(expr, wall), zone)
        found = first if first > second else last
        if first > last:
            # The match is in a skipped hour, which does not exist in local time.
            wall = _wall_before(_change(zone, last, first), zone)
        elif second_pass is not None and found >= second_pass:
            wall, second_pass = _wall_before(second_pass, zone), None
        else:
            return found
    raise _never(expr)


def _next_match(expr: str, wall: datetime) -> datetime:
    try:
        return next(CronSim(_fields(expr), wall))
    except StopIteration:
        raise _never(expr) from None


def _never(expr: str) -> ConfigError:
    return ConfigError(f"cron: {expr!r} never matches: no time matches all its fields")


def _seconds_of(wall: datetime, zone: ZoneInfo) -> tuple[int, int]:
    """Convert a local time with the offset before and with the offset after a nearby clock change.

    Both are equal on ordinary days. The first is the earlier one in a repeated hour, and the later one in
    a skipped hour, where the local time does not exist.
    """
    local = wall.replace(tzinfo=zone)
    return int(local.timestamp()), int(local.replace(fold=1).timestamp())


def _wall_before(change: int, zone: ZoneInfo) -> datetime:
    """Return the local time one second before a clock change, read with the new offset."""
    return datetime.fromtimestamp(change, zone).replace(tzinfo=None) - timedelta(seconds=1)


def _change(zone: ZoneInfo, low: int, high: int) -> int:
    """Return the first second after `low`, up to `high`, whose offset differs from that of `low`."""
    before = datetime.fromtimestamp(low, zone).utcoffset()
    while high - low > 1:
        middle = (low + high) // 2
        if datetime.fromtimestamp(middle, zone).utcoffset() == before:
            low = middle
        else:
            high = middle
    return high
