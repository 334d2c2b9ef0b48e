"""What the page of live results shows: plans and sources as they are now, the latest results, dead letters."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
from litestar import get
from litestar.params import FromQuery, QueryParameter

from apps.content.findings import PLANS, Finding, read_finding
from tidemill.ops.streams.streams import ListStreams, list_streams
from tidemill.server.pages import Page
from tidemill.server.server_state import TheServerState

STREAM = "content"
SECONDS = 60

#: The newest results, of a plan and a source if they are named.
LATEST = """
SELECT n, post, plan, source, excerpt, found, at FROM content.result
WHERE ($1::text IS NULL OR plan = $1) AND ($2::text IS NULL OR source = $2) AND (flagged OR NOT $3)
ORDER BY n DESC LIMIT $4
"""

#: Results of each plan in each of the last seconds; without the current one.
RECENT = """
SELECT plan, floor(extract(epoch FROM date_trunc('second', now()) - at))::int AS ago, count(*) AS n,
       count(*) FILTER (WHERE flagged) AS flagged
FROM content.result WHERE at >= date_trunc('second', now()) - make_interval(secs => $1)
    AND at < date_trunc('second', now()) GROUP BY 1, 2
"""

#: Dead letters by what went wrong, with the newest of each as an example.
DEAD = """
SELECT why, coalesce(kind, '') AS kind, count(*) AS n, max(buried_at) AS newest,
       (array_agg(error ORDER BY id DESC))[1] AS example
FROM tidemill.dead_letter WHERE stream = $1 GROUP BY 1, 2 ORDER BY n DESC, kind
"""


class PlanNow(msgspec.Struct, frozen=True):
    """A plan: what it has done since its engines began, and how many results it kept in each of the last seconds."""

    name: str
    title: str
    done: int
    filtered: int
    failed: int
    reasons: dict[str, int]
    p50: float | None
    p99: float | None
    seconds: list[int]


class SourceNow(msgspec.Struct, frozen=True):
    """A source: how fast it flows and how far it is behind."""

    name: str
    topic: str
    plans: list[str]
    weight: float
    max_qps: float | None
    enabled: bool
    rate: float
    lag: int | None
    done: int
    dead: int


class Dead(msgspec.Struct, frozen=True):
    """Messages that were given up for the same reason."""

    why: str
    kind: str
    count: int
    newest: datetime
    example: str


class Now(msgspec.Struct, frozen=True):
    """The state of the stream. `engines` is 0 while no process runs it."""

    engines: int
    in_flight: int
    retries: int
    flagged: int
    """Results of the last minute that a person should check."""
    plans: list[PlanNow]
    sources: list[SourceNow]
    dead: list[Dead]


class Result(msgspec.Struct, frozen=True):
    """What a plan found in a post."""

    n: int
    post: int
    plan: str
    source: str
    text: str
    at: datetime
    finding: Finding


class Results(msgspec.Struct, frozen=True):
    items: list[Result]


@get("/now", opt={"role": "viewer"}, summary="Plans, sources and dead letters")
async def get_now(server_state: TheServerState) -> Now:
    """Everything but the results themselves."""
    found = await server_state.app.do(list_streams, ListStreams(name=STREAM))
    told = [each for stream in found.items for each in stream.dispatchers]
    seconds: dict[str, list[int]] = {}
    recent = await server_state.database.fetch(RECENT, float(SECONDS))
    for row in recent:
        if 0 <= row["ago"] < SECONDS:
            seconds.setdefault(row["plan"], [0] * SECONDS)[SECONDS - 1 - row["ago"]] = row["n"]
    kept = await server_state.database.fetch(
        "SELECT count(*) AS n FROM tidemill.stream_retry WHERE stream = $1", STREAM
    )
    return Now(
        engines=sum(each["engines"] for each in told),
        in_flight=sum(each["in_flight"] for each in told),
        retries=kept[0]["n"],
        flagged=sum(row["flagged"] for row in recent),
        plans=[_plan(name, told, seconds.get(name) or [0] * SECONDS) for name in PLANS],
        sources=[_source(source, told) for source in server_state.app.streams.declared[STREAM].sources],
        dead=[
            Dead(row["why"], row["kind"], row["n"], row["newest"], row["example"] or "")
            for row in await server_state.database.fetch(DEAD, STREAM)
        ],
    )


@get("/results", opt={"role": "viewer"}, summary="The latest results")
async def get_results(
    server_state: TheServerState,
    plan: Annotated[str | None, QueryParameter(max_length=100)] = None,
    source: Annotated[str | None, QueryParameter(max_length=100)] = None,
    flagged: FromQuery[bool] = False,
    limit: Annotated[int, QueryParameter(ge=1, le=200)] = 40,
) -> Results:
    """What the plans found last, the newest first."""
    rows = await server_state.database.fetch(LATEST, plan, source, flagged, limit)
    return Results(
        [
            Result(
                row["n"],
                row["post"],
                row["plan"],
                row["source"],
                row["excerpt"],
                row["at"],
                read_finding(row["plan"], msgspec.json.decode(row["found"])),
            )
            for row in rows
        ]
    )


page = Page("content", "Content", Path(__file__).parent / "page", (get_now, get_results))


def _plan(name: str, told: list[dict[str, Any]], seconds: list[int]) -> PlanNow:
    """A plan over all dispatchers."""
    figures = [each["plans"][name] for each in told if name in each["plans"]]
    reasons: dict[str, int] = {}
    for each in figures:
        for reason, count in each.get("reasons", {}).items():
            reasons[reason] = reasons.get(reason, 0) + count
    return PlanNow(
        name,
        PLANS[name].title,
        sum(each["done"] for each in figures),
        sum(each["filtered"] for each in figures),
        sum(each["failed"] for each in figures),
        reasons,
        max((each["p50"] for each in figures if each["p50"] is not None), default=None),
        max((each["p99"] for each in figures if each["p99"] is not None), default=None),
        seconds,
    )


def _source(declared: Any, told: list[dict[str, Any]]) -> SourceNow:
    """A source over all dispatchers."""
    found = [source for each in told for source in each["sources"] if source["name"] == declared.name]
    now = found[0] if found else {"weight": declared.weight, "max_qps": declared.max_qps, "enabled": True}
    lags = [each["lag"] for each in found if each["lag"] is not None]
    return SourceNow(
        declared.name,
        declared.topic,
        sorted(declared.eligibilities),
        now["weight"],
        now["max_qps"],
        now["enabled"],
        round(sum(each["rate"] for each in found), 1),
        max(lags) if lags else None,
        sum(each["done"] for each in found),
        sum(each["dead"] for each in found),
    )
