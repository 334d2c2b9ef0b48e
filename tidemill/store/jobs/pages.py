"""Pages of jobs and runs, newest first by id, at the same cost at any depth and with any filter.

Each combination of filters is its own statement, so that each uses the index made for it. Arguments, error texts and
times have no index: they are looked for in what the other conditions leave, and `since` skips the days before it. A job
keeps its id for its whole life, unfinished or finished: pages do not shift while jobs end or new ones arrive.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Annotated, Any, TypeVar

import asyncpg
import msgspec
from msgspec import Meta

from tidemill.core.did_you_mean import did_you_mean
from tidemill.core.errors import ArgumentError, ConfigError
from tidemill.core.jobs.job import FINAL_STATES, LIVE_STATES
from tidemill.store.database import Database
from tidemill.store.jobs.history.day_index import days_of
from tidemill.store.jobs.read import IS_NOT_REPEATED
from tidemill.store.large_values import shortened
from tidemill.store.runs.claims import DAG_KIND
from tidemill.store.runs.runs import LIVE_RUN_STATES, OWN_KEY

T = TypeVar("T")

#: A name or a number to filter by.
Word = Annotated[str, Meta(max_length=400)]
Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
RunId = Annotated[int, Meta(ge=1, le=2**63 - 1)]

RUN_STATES = (*LIVE_RUN_STATES, "succeeded", "failed", "cancelled", "timed_out", "expired")

_SHARED = f"""id, state, queue, task, priority, attempt, failures, losses, created_at, due_at, started_at, note, tags,
       run_id, {shortened("args")} AS arguments"""
_LIVE = f"SELECT {_SHARED}, NULL::timestamptz AS finished_at, progress FROM tidemill.job"
_PAST = f"SELECT {_SHARED}, finished_at, NULL::real AS progress FROM tidemill.job_history"

_RUN = f"""
SELECT r.id, r.workflow, CASE WHEN r.kind = '{DAG_KIND}' THEN 'dag' ELSE 'flow' END AS shape, r.state,
       CASE WHEN r.key < '~' THEN r.key END AS key, r.seq, r.owner IS NOT NULL AS owned, r.awake, r.note,
       r.created_at, r.ended_at, r.forked_from, r.parent, r.parent_work,
       CASE WHEN r.ended_at IS NULL THEN (SELECT count(*) FROM tidemill.run_input AS i WHERE i.run_id = r.id)
            ELSE 0 END AS asks
FROM tidemill.run AS r
"""


#: Whether a text occurs in a note or in JSON, in small letters or large ones.
_CONTAINS = "position(lower({{}}::text) IN lower(coalesce({note}, '') || ' ' || coalesce({more}::text, ''))) > 0"

#: Whether the arguments of a dag's run, or the fields of a flow's start event, contain these.
_INPUT_HAS = f"r.input::jsonb -> CASE WHEN r.kind = '{DAG_KIND}' THEN 'args' ELSE 'value' END @> {{}}::jsonb"

#: A page as JSON for the API, encoded by the database: creating thousands of datetimes in Python is slow.
_AS_JSON = """
SELECT coalesce(json_agg(line), '[]') AS items, count(*) AS count, min(line.id) AS last
FROM (SELECT {columns} FROM ({page}) AS page) AS line
"""
_RUN_LINE = """
id, workflow, shape, state, key, seq AS ticks, owned, awake, note, created_at, ended_at, forked_from, parent,
parent_work, asks
"""


class Written(msgspec.Struct, frozen=True):
    """A page as JSON: its rows, their number, and the id of the last one."""

    items: bytes
    count: int
    last: int


class JobFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Jobs that match every given condition; without conditions, all jobs."""

    state: Annotated[tuple[str, ...], Meta(description="Jobs in this state; may be repeated.")] = ()
    queue: Annotated[Word | None, Meta(description="Jobs of this queue.")] = None
    task: Annotated[Word | None, Meta(description="Jobs of this task.")] = None
    tag: Annotated[Word | None, Meta(description="Jobs with this tag.")] = None
    run: Annotated[Number | None, Meta(description="Jobs of this run.")] = None
    batch: Annotated[Number | None, Meta(description="Jobs of this batch.")] = None
    key: Annotated[Word | None, Meta(description="Jobs with this unique key.")] = None
    arg: Annotated[tuple[Word, ...], Meta(description="Jobs with this argument: order_id=7; may be repeated.")] = ()
    error: Annotated[Word | None, Meta(description="Jobs whose note or errors contain this text.")] = None
    since: Annotated[datetime | None, Meta(description="Jobs that were created at this time or later.")] = None
    until: Annotated[datetime | None, Meta(description="Jobs that were created before this time.")] = None
    up_to: Annotated[Number | None, Meta(description="No job above this id.")] = None

    def validate(self) -> JobFilter:
        arguments_json(self.arg)
        for state in self.state:
            if state not in LIVE_STATES + FINAL_STATES:
                known = LIVE_STATES + FINAL_STATES
                raise ConfigError(
                    f"there is no job state {state!r}; the states are {', '.join(known)}{did_you_mean(state, known)}"
                )
        return self

    @property
    def live(self) -> tuple[str, ...]:
        """The unfinished states that the filter selects."""
        return tuple(state for state in self.state or LIVE_STATES if state in LIVE_STATES)

    @property
    def ended(self) -> tuple[str, ...]:
        return tuple(state for state in self.state or FINAL_STATES if state in FINAL_STATES)

    @property
    def retried(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Live and ended states that a retry applies to: failed, or the named ones except running and succeeded."""
        states = self.state or ("failed",)
        live = tuple(state for state in states if state in LIVE_STATES and state != "running")
        return live, tuple(state for state in states if state in FINAL_STATES and state != "succeeded")


class RunFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Runs that match every condition that is given; none given means all runs."""

    state: Annotated[tuple[str, ...], Meta(description="Runs in this state; may be repeated.")] = ()
    workflow: Annotated[Word | None, Meta(description="Runs of this workflow or dag.")] = None
    shape: Annotated[str | None, Meta(description="Runs of this shape: flow or dag.")] = None
    key: Annotated[Word | None, Meta(description="The run with this key.")] = None
    tag: Annotated[Word | None, Meta(description="Runs with this tag.")] = None
    arg: Annotated[tuple[Word, ...], Meta(description="Runs with this argument: day=monday; may be repeated.")] = ()
    error: Annotated[Word | None, Meta(description="Runs whose note or error contains this text.")] = None
    since: Annotated[datetime | None, Meta(description="Runs that were created at this time or later.")] = None
    until: Annotated[datetime | None, Meta(description="Runs that were created before this time.")] = None
    parent: Annotated[RunId | None, Meta(description="Runs that this run started.")] = None
    forked_from: Annotated[RunId | None, Meta(description="Runs that were forked from this run.")] = None
    up_to: Annotated[Number | None, Meta(description="No run above this id.")] = None

    def validate(self) -> RunFilter:
        arguments_json(self.arg)
        for state in self.state:
            if state not in RUN_STATES:
                listed = f"{', '.join(RUN_STATES)}{did_you_mean(state, RUN_STATES)}"
                raise ConfigError(f"there is no run state {state!r}; the states are {listed}")
        if self.shape not in (None, "flow", "dag"):
            raise ConfigError(f"there is no shape {self.shape!r}; runs are of flows or of dags")
        if self.key is not None and self.key.startswith(OWN_KEY):
            raise ConfigError(f"keys of runs do not begin with {OWN_KEY!r}")
        return self

    @property
    def live(self) -> RunFilter:
        """The unfinished runs among those that match."""
        states = tuple(state for state in self.validate().state or LIVE_RUN_STATES if state in LIVE_RUN_STATES)
        if not states:
            raise ConfigError("only runs that are running or need attention can be cancelled")
        return msgspec.structs.replace(self, state=states)


class Conditions(msgspec.Struct):
    """A WHERE clause and its parameters, built only from our own SQL fragments."""

    parts: list[str] = []
    values: list[Any] = []

    def add(self, part: str, value: Any) -> None:
        """Add a condition in which `{}` is the value's parameter; no condition if the value is None."""
        if value is not None:
            self.values.append(value)
            self.parts.append(part.format(f"${len(self.values)}"))

    @property
    def sql(self) -> str:
        return " AND ".join(self.parts) or "true"


def arguments_json(given: Sequence[str]) -> str | None:
    """Arguments such as `order_id=7` and `shop="a"` as a JSON object; what is not JSON is a text."""
    found: dict[str, Any] = {}
    for each in given:
        name, sign, text = each.partition("=")
        if not sign or not name:
            raise ArgumentError("arg", f"{each!r} is not a name and a value: write order_id=7")
        try:
            found[name] = msgspec.json.decode(text)
        except msgspec.DecodeError:
            found[name] = text
    return msgspec.json.encode(found).decode() if found else None


def page_of_jobs(
    wanted: JobFilter, before: int | None, limit: int, *, days: Sequence[str] = ("job_history",)
) -> tuple[str, list[Any]]:
    """The statement for a page of jobs in these history tables, and its parameters."""
    where = _about_jobs(wanted.validate(), before)
    values = [*where.values, limit]
    # The index of tags is not in id order: `id + 0` keeps the planner from scanning all ids instead.
    order = f"ORDER BY {'id' if wanted.tag is None else '(id + 0)'} DESC LIMIT ${len(values)}"
    parts = [f"({select} WHERE {where.sql}{states} {order})" for select, states in _branches(wanted, days, where)]
    return _together(parts, f"ORDER BY id DESC LIMIT ${len(values)}"), values


def matches_of_jobs(
    wanted: JobFilter, *, live: Sequence[str], ended: Sequence[str], after: int, limit: int
) -> tuple[str, list[Any]]:
    """The statement for the ids of jobs that an action applies to, oldest first, starting above an id.

    One that has ended and has been repeated is not one of them: what became of it is said by the job that repeats it.
    """
    where = _about_jobs(wanted.validate(), None)
    where.add("id > {}", after)
    values = [*where.values, limit]
    parts = [f"SELECT id FROM tidemill.job WHERE {where.sql} AND state IN ({_quoted(live)})"] if live else []
    past = f"SELECT id FROM tidemill.job_history WHERE {where.sql}{_later_days(wanted, where)}"
    parts += [f"{past} AND state = '{state}' AND {IS_NOT_REPEATED}" for state in ended]
    each = [f"({part} ORDER BY id LIMIT ${len(values)})" for part in parts]
    return _together(each, f"ORDER BY id LIMIT ${len(values)}"), values


def page_of_runs(wanted: RunFilter, before: int | None, limit: int) -> tuple[str, list[Any]]:
    """The statement for a page of runs, and its parameters."""
    where = _about_runs(wanted.validate(), before)
    values = [*where.values, limit]
    parts = [
        f"({_RUN} WHERE {where.sql}{states} ORDER BY r.id DESC LIMIT ${len(values)})"
        for states in ([f" AND r.state = '{state}'" for state in wanted.state] or [""])
    ]
    return _together(parts, f"ORDER BY id DESC LIMIT ${len(values)}"), values


async def list_job_page(
    database: Database, wanted: JobFilter, *, before: int | None = None, limit: int = 50
) -> list[asyncpg.Record]:
    """The matching jobs, newest first, starting below an id."""

    async def read(sql: str, values: list[Any]) -> tuple[list[asyncpg.Record], int, int]:
        rows = await database.fetch(sql, *values)
        return rows, len(rows), rows[-1]["id"] if rows else 0

    return await _read_jobs(database, read, wanted, before, limit)


async def write_job_page(database: Database, wanted: JobFilter, *, before: int | None, limit: int) -> Written:
    """The same, as JSON."""

    async def read(sql: str, values: list[Any]) -> tuple[Written, int, int]:
        page = await _write(database, sql, values)
        return page, page.count, page.last

    return await _read_jobs(database, read, wanted, before, limit)


async def _read_jobs(
    database: Database,
    read: Callable[[str, list[Any]], Awaitable[tuple[T, int, int]]],
    wanted: JobFilter,
    before: int | None,
    limit: int,
) -> T:
    """Read a page of jobs. `read` runs a statement and returns its result, the number of rows and the last id."""
    _check_is_readable(database, wanted)
    if wanted.ended:
        days = days_of(database)
        try:
            await days.refresh(database)
            first, rest = days.candidates(before)[: 1 if before is not None else 0], days.candidates(before)
            names = (*days.open, *(day.name for day in first))
            page, count, last = await read(*page_of_jobs(wanted, before, limit, days=names))
            highest = max((day.high for day in rest[len(first) :]), default=0)
            if not highest or (count == limit and last > highest):  # No other day can have a part of this page.
                return page
        except asyncpg.UndefinedTableError:
            days.forget()
    return (await read(*page_of_jobs(wanted, before, limit)))[0]


async def list_run_page(database: Database, wanted: RunFilter, *, limit: int = 50) -> list[asyncpg.Record]:
    """The matching runs, newest first."""
    _check_is_readable(database, wanted)
    sql, values = page_of_runs(wanted, None, limit)
    return await database.fetch(sql, *values)


async def write_run_page(database: Database, wanted: RunFilter, *, before: int | None, limit: int) -> Written:
    """The same, as JSON."""
    _check_is_readable(database, wanted)
    return await _write(database, *page_of_runs(wanted, before, limit), columns=_RUN_LINE)


async def _write(database: Database, sql: str, values: list[Any], *, columns: str = "*") -> Written:
    (row,) = await database.fetch(_AS_JSON.format(columns=columns, page=sql), *values)
    return Written(row["items"], row["count"], row["last"] or 0)


def _check_is_readable(database: Database, wanted: JobFilter | RunFilter) -> None:
    """Raise for conditions on payloads if the application seals them: PostgreSQL cannot look into them."""
    if database.codec is not None and (wanted.arg or wanted.error):
        asked = "arguments" if wanted.arg else "the text of errors"
        raise ConfigError(
            f"this application seals its payloads (codec={database.settings.codec}), so nothing is found by {asked}: "
            "look for tags, keys, tasks, states and times"
        )


async def match_jobs(
    database: Database, wanted: JobFilter, *, live: Sequence[str], ended: Sequence[str], after: int = 0, limit: int
) -> list[int]:
    """The ids of matching jobs in one of these states, oldest first, starting above an id."""
    _check_is_readable(database, wanted)
    if not live and not ended:
        return []
    sql, values = matches_of_jobs(wanted, live=live, ended=ended, after=after, limit=limit)
    return [row["id"] for row in await database.fetch(sql, *values)]


async def match_runs(database: Database, wanted: RunFilter, *, limit: int) -> list[int]:
    """The ids of runs that match, newest first."""
    return [row["id"] for row in await list_run_page(database, wanted, limit=limit)]


def _about_jobs(wanted: JobFilter, before: int | None) -> Conditions:
    where = Conditions()
    where.add("queue = {}::text", wanted.queue)
    where.add("task = {}::text", wanted.task)
    where.add("tags @> ARRAY[{}::text]", wanted.tag)
    where.add("run_id = {}::bigint", wanted.run)
    where.add("batch_id = {}::bigint", wanted.batch)
    where.add("unique_key = {}::text", wanted.key)
    where.add("args::jsonb @> {}::jsonb", arguments_json(wanted.arg))
    where.add(_CONTAINS.format(note="note", more="errors"), wanted.error)
    where.add("created_at >= {}::timestamptz", wanted.since)
    where.add("created_at < {}::timestamptz", wanted.until)
    where.add("id <= {}::bigint", wanted.up_to)
    where.add("id < {}::bigint", before)
    return where


def _about_runs(wanted: RunFilter, before: int | None) -> Conditions:
    where = Conditions()
    where.add("r.workflow = {}::text", wanted.workflow)
    where.add("r.key = {}::text AND r.key < '~'", wanted.key)
    where.add("r.parent = {}::bigint", wanted.parent)
    where.add("r.forked_from = {}::bigint", wanted.forked_from)
    where.add("r.tags @> ARRAY[{}::text]", wanted.tag)
    where.add(_INPUT_HAS, arguments_json(wanted.arg))
    where.add(_CONTAINS.format(note="r.note", more="r.error"), wanted.error)
    where.add("r.created_at >= {}::timestamptz", wanted.since)
    where.add("r.created_at < {}::timestamptz", wanted.until)
    where.add("r.id <= {}::bigint", wanted.up_to)
    where.add("r.id < {}::bigint", before)
    if wanted.shape is not None:
        where.parts.append(f"r.kind {'=' if wanted.shape == 'dag' else '<>'} '{DAG_KIND}'")
    return where


def _branches(wanted: JobFilter, days: Sequence[str], where: Conditions) -> list[tuple[str, str]]:
    """The tables and states to select: each ended state separately, because its index is in id order."""
    past, later = [_PAST.replace("job_history", day) for day in days], _later_days(wanted, where)
    if not wanted.state:
        return [(_LIVE, ""), *((select, later) for select in past)]
    found = [(_LIVE, f" AND state IN ({_quoted(wanted.live)})")] if wanted.live else []
    return found + [(select, f"{later} AND state = '{state}'") for select in past for state in wanted.ended]


def _later_days(wanted: JobFilter, where: Conditions) -> str:
    """The condition that skips days before `since`: a job does not end before it is created."""
    return "" if wanted.since is None else f" AND finished_at >= ${where.values.index(wanted.since) + 1}::timestamptz"


def _together(parts: Sequence[str], order: str) -> str:
    """Combine selects, each ordered and limited, into one."""
    return parts[0] if len(parts) == 1 else f"{' UNION ALL '.join(parts)} {order}"


def _quoted(states: Sequence[str]) -> str:
    return ", ".join(f"'{state}'" for state in states)
