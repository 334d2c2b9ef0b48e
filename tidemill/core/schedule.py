"""When a periodic job is due: cron expressions in a time zone, and intervals.

    parse_schedule(cron="0 9 * * 1-5", timezone="Europe/Paris")    nine o'clock on working days, in Paris
    parse_schedule(cron="*/10 * * * * *")                          six fields: the first is seconds
    parse_schedule(cron="@daily")                                  also @hourly, @weekly, @monthly, @yearly
    parse_schedule(every="15m")                                    on the clock: :00, :15, :30, :45 UTC

All times here are seconds since 1970, UTC; a schedule is plain data and these functions never look at
the clock. A cron field takes `*`, numbers, names (`MON`, `JAN`), ranges, lists and steps; the day of month
also `L` (last) and `LW` (last weekday), the day of week `5L` (last Friday) and `1#2` (second Monday). If
neither day field starts with `*`, a day that matches either is a match.

**On the days when clocks change**, cron does what Debian's cron does:

- A job at fixed times (neither its minute nor its hour starts with `*`) runs on every day it is meant to
  run, and each of its times counts once. Times that fall into the skipped hour become one run right after
  it: `30 2 * * *` runs at 03:00 when 02:00 to 03:00 is skipped. Times in the repeated hour run in the first
  pass only.
- A job with a wildcard (`*/5 * * * *`, `0 * * * *`) runs by real time: whenever the clock on the wall
  matches, which goes on evenly through both changes. `*/5 2 * * *` is one of these: it does not run on the
  day without an hour 2, and runs through both on the day with two.

Six-field expressions follow the same rules. Intervals do not know about clock changes at all.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from cronsim import CronSim, CronSimError

from tidemill.core.duration import Duration, jitter_fraction, parse_duration
from tidemill.core.errors import ConfigError

SHORTEST_INTERVAL = 0.01
YEAR_2000 = datetime(2000, 1, 1)
MOST_CHANGES = 200
"""How many skipped hours a search passes over before it concludes that nothing is between them."""
GRACE = 60.0
"""A fire this many seconds late is still on time: the scheduler was busy, not down."""

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
    """Due whenever the clock on the wall in `timezone` matches the expression."""

    expr: str
    timezone: str = "UTC"


class Every(msgspec.Struct, frozen=True, tag="every", omit_defaults=True, forbid_unknown_fields=True):
    """Due every so many seconds, counted from `anchor` both ways; the anchor only sets the phase."""

    seconds: float
    anchor: float = 0.0


Schedule = Cron | Every


class FirePlan(msgspec.Struct, frozen=True):
    """What to do about a schedule now.

    Store `through` with the jobs of `fire`, in one transaction, and give it as `last_fire` next time: then
    every fire is decided exactly once, whenever the calls come.
    """

    fire: tuple[float, ...]
    """The fires to enqueue now, oldest first."""
    through: float
    """Every fire up to here has been decided."""
    next: float
    """The first fire after `through`. If it is due already, `limit` was reached: plan again."""
    missed: int = 0
    """How many fires were passed over."""
    missed_is_exact: bool = True
    """False if there were too many to count: then `missed` is "at least"."""
    missed_first: float | None = None
    missed_last: float | None = None


def parse_schedule(cron: str | None = None, every: Duration | None = None, timezone: str = "UTC") -> Schedule:
    """A checked schedule from exactly one of a cron expression and an interval.

    The time zone is an IANA name and matters to cron only: an interval is equally long everywhere.
    """
    if cron is not None and every is not None:
        raise ConfigError(f"a schedule has either cron or every, not both: cron={cron!r}, every={every!r}")
    if cron is not None:
        return _checked_cron(cron, timezone)
    if every is not None:
        return _checked_every(every)
    raise ConfigError("a schedule needs cron (such as '0 9 * * 1-5') or every (such as '15m')")


def next_fire(schedule: Schedule, after: float) -> float:
    """The first fire strictly after a moment."""
    if isinstance(schedule, Every):
        return _moment(schedule, _index_after(schedule, after))
    zone = _zone(schedule.timezone)
    # Fires are on whole seconds, so being after 12.7 is the same as being after 12.
    second = math.floor(after)
    if _is_at_fixed_times(schedule.expr):
        return float(_next_fixed(schedule.expr, zone, second))
    return float(_next_by_real_time(schedule.expr, zone, second))


def fires_between(schedule: Schedule, after: float, until: float, limit: int = 1000) -> list[float]:
    """The fires after `after` and up to and including `until`, the first `limit` of them."""
    fires: list[float] = []
    while len(fires) < limit and (after := next_fire(schedule, after)) <= until:
        fires.append(after)
    return fires


def preview(schedule: Schedule, after: float, n: int) -> list[float]:
    """The next `n` fires after a moment, to show to people."""
    return fires_between(schedule, after, math.inf, n)


def latest_fire(schedule: Schedule, after: float, until: float) -> float | None:
    """The last fire after `after` and up to and including `until`, without visiting those between."""
    latest, high = next_fire(schedule, after), until
    if latest > until:
        return None
    if isinstance(schedule, Every):
        return _moment(schedule, _index_after(schedule, until) - 1)
    # No fire is in (high, until]; each round halves what is left between latest and high.
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
    """Which of the fires after `last_fire` and up to `now` to enqueue.

    For a new schedule `last_fire` is the moment it was made; later it is `through` of the plan before.

    - `skip`: what is late by more than `grace` seconds is missed, the rest is fired.
    - `one`: the latest is fired, however late; those before it are missed.
    - `all`: every one is fired.

    At most `limit` fires come back at a time; the others stay due for the next call. Missed fires of
    a cron schedule are counted up to `limit` too: months of them cost no more than a day of them.
    """
    if limit < 1:
        raise ConfigError(f"limit: {limit!r} is not a number of fires of 1 or more")
    match catchup:
        case "skip":
            # Late by exactly the grace is still on time.
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


def jittered(fire: float, jitter: float, seed: str) -> float:
    """The moment at which a fire is really due: up to `jitter` seconds later, the same for everyone.

    The seed is what tells schedules apart, such as their name, so that all those at midnight do not
    start in the same second.
    """
    if jitter <= 0:
        return fire
    due = fire + jitter * jitter_fraction(seed, fire)
    return max(fire, min(due, math.nextafter(fire + jitter, -math.inf)))


def describe(schedule: Schedule) -> str:
    """The schedule in words: "every 5 minutes", "at 09:00 on Monday through Friday (Europe/Paris)"."""
    if isinstance(schedule, Cron):
        words = CronSim(_fields(schedule.expr), YEAR_2000).explain()
        return f"{words[:1].lower()}{words[1:]} ({schedule.timezone})"
    units = (("week", 604800), ("day", 86400), ("hour", 3600), ("minute", 60))
    whole = (named for named in units if schedule.seconds % named[1] == 0)
    unit, size = next(whole, ("second", 1))
    count = schedule.seconds / size
    return f"every {unit}" if count == 1 else f"every {count:.10g} {unit}s"


class _Count(msgspec.Struct, frozen=True):
    """How many fires are in a stretch of time, and its first and last one."""

    count: int = 0
    is_exact: bool = True
    first: float | None = None
    last: float | None = None


def _count_fires(schedule: Schedule, after: float, until: float, limit: int) -> _Count:
    """Count the fires after `after` and up to and including `until`: intervals all, cron up to `limit`."""
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
    next_fire(cron, YEAR_2000.replace(tzinfo=UTC).timestamp())  # refuses what never comes true
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
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ConfigError(
            f"timezone: {name!r} is not a time zone; write an IANA name such as 'Europe/Paris' or 'UTC'"
        ) from error


def _index_after(every: Every, moment: float) -> int:
    """The number, counted from the anchor, of the first fire after a moment."""
    index = math.floor((moment - every.anchor) / every.seconds) + 1
    # The division rounds; these put right what it may have rounded to the wrong side.
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


# The two searches below run cronsim on the bare clock on the wall, without a time zone, and translate its
# answers themselves. Its own handling of zones treats six fields differently from five and passes over
# fires where clocks change by half an hour (Lord Howe).


def _next_fixed(expr: str, zone: ZoneInfo, second: int) -> int:
    """The first second after this one that a fixed wall time stands for."""
    now = datetime.fromtimestamp(second, zone)
    wall = now.replace(tzinfo=None)
    if now.fold:
        # The second pass of a repeated hour: all its times have had their turn, go on at its end.
        change = _change(zone, int(now.replace(fold=0).timestamp()), second)
        wall = datetime.fromtimestamp(change - 1, zone).replace(tzinfo=None)
    match = _next_match(expr, wall)
    first, last = _seconds_of(match, zone)
    # In a skipped hour, reading the wall with the offset after the change gives the earlier second.
    return first if first <= last else _change(zone, last, first)


def _next_by_real_time(expr: str, zone: ZoneInfo, second: int) -> int:
    """The first second after this one at which the wall in the zone matches."""
    wall = datetime.fromtimestamp(second, zone).replace(tzinfo=None)
    passes = _seconds_of(wall, zone)
    # In the first pass of a repeated hour, its second pass comes before anything later.
    second_pass = _change(zone, *passes) if passes[0] == second < passes[1] else None
    for _ in range(MOST_CHANGES):
        first, last = _seconds_of(_next_match(expr, wall), zone)
        found = first if first > second else last
        if first > last:
            # The match falls into a skipped hour and never shows on the wall.
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
    return ConfigError(f"cron: {expr!r} never comes true: no moment matches all its fields")


def _seconds_of(wall: datetime, zone: ZoneInfo) -> tuple[int, int]:
    """A wall time read with the offset before and the one after a nearby change of clocks.

    Both are the same on ordinary days. The first is the earlier in a repeated hour, and the later in
    a skipped one, where neither is on the wall.
    """
    local = wall.replace(tzinfo=zone)
    return int(local.timestamp()), int(local.replace(fold=1).timestamp())


def _wall_before(change: int, zone: ZoneInfo) -> datetime:
    """The wall one second before a change of clocks, had the new offset been in force already."""
    return datetime.fromtimestamp(change, zone).replace(tzinfo=None) - timedelta(seconds=1)


def _change(zone: ZoneInfo, low: int, high: int) -> int:
    """The first second after `low`, and not after `high`, whose offset is no longer that of `low`."""
    before = datetime.fromtimestamp(low, zone).utcoffset()
    while high - low > 1:
        middle = (low + high) // 2
        if datetime.fromtimestamp(middle, zone).utcoffset() == before:
            low = middle
        else:
            high = middle
    return high
