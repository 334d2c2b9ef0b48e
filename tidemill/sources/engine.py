"""The engine's own events: failed and late jobs, failed runs and runs that need attention, dead letters, stale states,
lost and silent workers, and schedules that did not fire.

What fails is one event. What is not as it should be is an event when it begins, when its extent changes much, and when
it is over. What has been reported is part of the reader's position, so that a new process continues where the last one
was.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec

from tidemill.core.duration import Duration, parse_duration
from tidemill.core.errors import ConfigError
from tidemill.sources.base import RecordPage, Source, SourceContext
from tidemill.sources.delivery import Delivery
from tidemill.store.database import Database
from tidemill.store.telemetry.engine_events import EngineLimits, read_engine_conditions, read_engine_moments

OVERLAP = 10.0  # transactions that commit late


class EngineSource(Source, frozen=True, tag="engine"):
    """What happens in this installation of Tidemill."""

    late_after: Duration = "5m"
    """From when on a job that is due and not started is late."""
    stale_after: Duration = "1h"
    """From when on a state of a pipeline that cannot be built is stale."""
    silent_after: Duration = "30s"
    """How long after its lease a process is silent."""
    schedule_after: Duration = "2m"
    """From when on a schedule that is due has not fired."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _limits_of(self)

    @property
    def default_name(self) -> str:
        return "engine"

    def reader(self, context: SourceContext) -> EngineReader:
        return EngineReader(self, context.database)

    def consumer(self, context: SourceContext) -> Any:
        raise ConfigError(
            f"source {self.name}: the engine's own events are for monitors: app.monitor(engine_alerts(...))"
        )


class EngineReader:
    """Reads the engine's events from its tables."""

    overlap = overlap_most = OVERLAP

    def __init__(self, source: EngineSource, database: Database) -> None:
        self._page, self._limits, self._database = source.page, _limits_of(source), database

    async def pages(self, since: float | None, token: str | None, now: float) -> AsyncIterator[RecordPage]:
        """What failed since a time, and what has begun or ended since the last poll, by the token."""
        begin, after = now - OVERLAP if since is None else since, ""
        while True:
            rows = await read_engine_moments(self._database, begin, now + 1.0, self._page, after=after)
            if rows:
                records = [
                    _record(f"{row['kind']}/{row['id']}", row["at"].timestamp(), row["kind"], row["entity"],
                            {"detail": row["detail"]})
                    for row in rows
                ]  # fmt: skip
                yield RecordPage(records)
            if len(rows) < self._page:
                break
            begin, after = rows[-1]["at"].timestamp(), rows[-1]["id"]
        counts: dict[str, int] = {} if token is None else msgspec.json.decode(token, type=dict[str, int])
        records, counts = _changes(await read_engine_conditions(self._database, self._limits), counts, now)
        yield RecordPage(records, token=msgspec.json.encode(counts).decode())

    async def close(self) -> None: ...


def _changes(rows: Any, counts: Mapping[str, int], now: float) -> tuple[list[Delivery], dict[str, int]]:
    """The events of conditions that have begun, doubled or ended, and what has been reported then."""
    records: list[Delivery] = []
    known: dict[str, int] = {}
    for row in rows:
        key = f"{row['kind']}/{row['entity']}"
        before = counts.get(key, 0)
        known[key] = before
        if not before or not before / 2 < row["count"] < before * 2:
            known[key] = row["count"]
            data = {"active": True, "since": row["since"].timestamp(), "count": row["count"], "detail": row["detail"]}
            records.append(_record(f"{key}/{now}", now, row["kind"], row["entity"], data))
    for key in sorted(counts.keys() - known.keys()):
        kind, _, entity = key.partition("/")
        records.append(_record(f"{key}/{now}", now, kind, entity, {"active": False}))
    return records, known


def _record(id: str, at: float, kind: str, entity: str, data: dict[str, Any]) -> Delivery:
    fields = {"id": id, "at": at, "kind": kind, "entity": entity, **data}
    return Delivery(msgspec.json.encode(fields), at=at, id=id)


def _limits_of(source: EngineSource) -> EngineLimits:
    return EngineLimits(
        late=parse_duration(source.late_after, what="late_after"),
        stale=parse_duration(source.stale_after, what="stale_after"),
        silent=parse_duration(source.silent_after, what="silent_after"),
        schedule=parse_duration(source.schedule_after, what="schedule_after"),
    )
