"""The monitor of a classroom: the production system's log, the three triggers, and the folds."""

from __future__ import annotations

from typing import Any, Literal

from apps.classroom.blocks import Profile
from apps.classroom.score import BIG_REWRITE
from apps.classroom.student import STUCK, GlassBox, Student
from tidemill.monitors import Hours, Monitor, absent, momentary, sustained
from tidemill.monitors.definition.triggers import Trigger
from tidemill.sources import HttpSource, PageReader, PartitionReader, Source

INACTIVE, RE_ALERT = "300s", "600s"
LOGS, TOKEN = "/api/rabbitmq/vex_logs/", "/api/token/"


def production(url: str, username: str, password: str) -> HttpSource:
    """The log of the production system."""
    return HttpSource(
        url + LOGS,
        token_url=url + TOKEN,
        username=username,
        password=password,
        items="results",
        since="dateFrom",
        page=500,
        overlap="2s",
        time=("recieved_at", "received_at"),
        of="studentID",
        order="newest",
    )


def triggers(
    *, big_rewrite: float = BIG_REWRITE, inactive: str = INACTIVE, hours: Hours | None = None
) -> list[Trigger]:
    """The three triggers, with the document's figures."""
    return [
        sustained(
            "wheel-spin",
            when=lambda s, now: s.strategy == STUCK,
            since=lambda s: s.streak_start,
            realert=RE_ALERT,
            severity="critical",
            describe="runs again and again without getting anywhere",
        ),
        absent("inactive", after=inactive, hours=hours, realert=RE_ALERT, describe="nothing has come for a while"),
        momentary(
            "big-rewrite",
            of=lambda s: s.new_runs,
            when=lambda run: run.change >= big_rewrite,
            describe="most of the program was replaced between two runs",
        ),
    ]


def classroom(
    source: Source | PageReader | PartitionReader,
    *,
    name: str = "classroom",
    profile: Profile = "document",
    fold: Any = None,
    roster: Literal["open", "listed"] = "listed",
    **options: Any,
) -> Monitor:
    """The monitor of a classroom."""
    wanted = {"triggers": triggers(), "backfill": "24h", **options}
    return Monitor(
        name,
        source=source,
        entity=lambda event: event["studentID"],
        fold=fold or Student(profile=profile),
        roster=roster,
        **wanted,
    )


def glass_box(source: Source | PageReader, **options: Any) -> Monitor:
    """The same with the simple decoder."""
    return classroom(source, name="classroom-glass", fold=GlassBox(), **options)
