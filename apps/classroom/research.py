"""Questions of researchers: how often thresholds would have fired, how profiles differ, the replay of a day.

The answers come from backtests on the stored log. Recent answers are cached, and one is computed at a time, so that
the page stays responsive.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from apps.classroom.blocks import Profile
from apps.classroom.export import Pseudonyms
from apps.classroom.labels import Precision, precision
from apps.classroom.span import Lived, live_through
from apps.classroom.student import STATES, GlassBox, Student
from tidemill.core.errors import ConfigError
from tidemill.monitors import Monitor
from tidemill.monitors.runner.backtest import BacktestReport, backtest, compare
from tidemill.store.database import Database
from tidemill.store.monitors.alerts import list_alerts

LONGEST = 31 * 86_400.0
REMEMBERED = 6
EXAMPLES = 8
MOST_ALERTS = 100_000


class Version(msgspec.Struct, frozen=True):
    """One version of the monitor, and the alerts that it would have opened."""

    name: str
    says: str
    counts: dict[str, int]


class Example(msgspec.Struct, frozen=True):
    """An alert that one version opens and the other does not."""

    student: str
    trigger: str
    at: float


class Compared(msgspec.Struct, frozen=True):
    """Two versions beside each other."""

    first: str
    second: str
    both: int
    only_first: int
    only_second: int
    examples_first: list[Example]
    examples_second: list[Example]


class Profiles(msgspec.Struct, frozen=True):
    """The document's figures, the corrected ones, and the glass box, over the same span."""

    students: int
    events: int
    versions: list[Version]
    compared: list[Compared]


class Day(msgspec.Struct, frozen=True):
    """A span for replay: students by pseudonym, their runs, and the alerts that were sent."""

    since: float
    until: float
    students: list[str]
    states: tuple[str, ...]
    runs: list[tuple[float, int, float, int]]
    """When, who (an index), how much had changed, and the state."""
    alerts: list[tuple[float, int, str, float, float | None, float | None]]
    """When it opened, who, which trigger, since when, and when it was resolved and acknowledged."""


VERSIONS: tuple[tuple[str, str, Callable[[], Any]], ...] = (
    ("document", "the original's figures, decoded by the model", lambda: Student(profile="document")),
    ("corrected", "numbers and rewrites count, decoded by the model", lambda: Student(profile="corrected")),
    ("glass box", "numbers count; stuck is five runs in a row without a change", lambda: GlassBox()),
)


class Study:
    """Runs backtests, one at a time."""

    def __init__(self, watch: Monitor, profile: Profile = "document") -> None:
        self.watch = watch
        self.profile: Profile = profile
        self._one = asyncio.Lock()
        self._known: OrderedDict[tuple[Any, ...], Any] = OrderedDict()

    async def lives(self, database: Database, since: float, until: float, profile: Profile) -> list[Lived]:
        """The events of all students in a span, folded."""
        return await self._once(
            ("lives", since, until, profile),
            lambda: live_through(database, since, until, profile=profile, monitor=self.watch.name),
        )

    async def profiles(self, database: Database, since: float, until: float, names: Pseudonyms) -> Profiles:
        """The alerts that each version would have opened, and where they differ."""

        async def work() -> list[BacktestReport]:
            found = [await backtest(database, self._with(fold()), since, until) for _, _, fold in VERSIONS]
            for alert in (alert for report in found for alert in report.alerts):
                alert.explain = None  # Reasons are long, and not needed here.
            return found

        reports = await self._once(("profiles", since, until), work)
        return Profiles(
            students=reports[0].entities,
            events=reports[0].events,
            versions=[
                Version(name, says, report.counts()) for (name, says, _), report in zip(VERSIONS, reports, strict=True)
            ],
            compared=[
                _compared(VERSIONS[one][0], reports[one], VERSIONS[other][0], reports[other], names)
                for one, other in ((0, 1), (1, 2))
            ],
        )

    async def day(self, database: Database, since: float, until: float, names: Pseudonyms) -> Day:
        """A span for replay."""
        lives = await self.lives(database, since, until, self.profile)
        place = {life.student: index for index, life in enumerate(lives)}
        runs = [(run.at, place[life.student], run.change, run.state) for life in lives for run in life.runs]
        alerts = [
            (
                row["opened_at"].timestamp(),
                place[row["entity"]],
                row["trigger"],
                row["started_at"].timestamp(),
                None if row["resolved_at"] is None else row["resolved_at"].timestamp(),
                None if row["acked_at"] is None else row["acked_at"].timestamp(),
            )
            for row in await list_alerts(
                database, self.watch.name, since=datetime.fromtimestamp(since, UTC), limit=MOST_ALERTS
            )
            if row["entity"] in place and row["opened_at"].timestamp() < until
        ]
        students = [names.of(life.student) for life in lives]
        return Day(since, until, students, STATES, sorted(runs), sorted(alerts, key=lambda each: each[:3]))

    async def precision(self, database: Database, since: float, until: float) -> list[Precision]:
        """How often each trigger was right, by the labels in notes."""
        rows = await list_alerts(database, self.watch.name, since=datetime.fromtimestamp(since, UTC), limit=MOST_ALERTS)
        return precision(row for row in rows if row["opened_at"].timestamp() < until)

    def _with(self, fold: Any) -> Monitor:
        watch = self.watch
        return Monitor(watch.name, source=watch.source, entity=watch.entity, fold=fold, triggers=watch.triggers)

    async def _once(self, key: tuple[Any, ...], work: Callable[[], Awaitable[Any]]) -> Any:
        async with self._one:
            if key not in self._known:
                self._known[key] = await work()
                while len(self._known) > REMEMBERED:
                    self._known.popitem(last=False)
            self._known.move_to_end(key)
            return self._known[key]


def check_span(since: float, until: float) -> tuple[float, float]:
    """Check that a span is not too long."""
    if not since < until:
        raise ConfigError("the span ends before it begins: say since and until in seconds since 1970")
    if until - since > LONGEST:
        raise ConfigError("the span is longer than a month: ask for less")
    return since, until


def _compared(first: str, one: BacktestReport, second: str, other: BacktestReport, names: Pseudonyms) -> Compared:
    found = compare(one, other)

    def some(alerts: list[Any]) -> list[Example]:
        return [Example(names.of(each.entity), each.trigger, each.started_at) for each in alerts[:EXAMPLES]]

    return Compared(
        first=first,
        second=second,
        both=len(found.both),
        only_first=len(found.only_first),
        only_second=len(found.only_second),
        examples_first=some(found.only_first),
        examples_second=some(found.only_second),
    )
