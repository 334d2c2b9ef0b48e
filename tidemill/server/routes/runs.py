"""Runs of all shapes: listed, started, looked at tick by tick, sent events, forked, followed and cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from litestar import Request, get, post
from litestar.params import FromPath, FromQuery, HeaderParameter, JSONBody, QueryParameter
from litestar.response import Stream

from tidemill.core.codec import decode
from tidemill.core.errors import ConfigError, NotFoundError
from tidemill.dags.reducer.state import encode_state as encode_dag_state
from tidemill.dags.runner.runner import DAG_KIND
from tidemill.flows.encoding.journal import decode_tick
from tidemill.flows.encoding.snapshot import encode_state as encode_flow_state
from tidemill.flows.runner.fork import relive
from tidemill.ops.bulk import Preview
from tidemill.ops.runs import RunPage
from tidemill.server.live.hub import LONGEST
from tidemill.server.middleware.authentication import Caller
from tidemill.server.resources.json_rows import as_it_is
from tidemill.server.resources.logs import RunLog, find_run_log
from tidemill.server.resources.paging import Cursor, Limit, Number, States, Word
from tidemill.server.resources.runs import (
    ENDED,
    NewEvent,
    NewRun,
    Run,
    Sent,
    Started,
    ask_to_end,
    begin_run,
    end_run,
    find_run,
    flow_of,
    fork_of,
    look_back,
    send_event,
    tell_run,
    write_page,
)
from tidemill.server.server_state import ServerState, TheServerState, caller_of
from tidemill.store.jobs.pages import RunsWanted, match_runs
from tidemill.store.runs.runs import read_published, read_ticks

MOST_MATCHES = 10_000
SHOWN_AT_ONCE = 500
QUIET = 15.0


class Tick(msgspec.Struct, frozen=True):
    """One thing that happened to a run."""

    seq: int
    kind: str
    at: datetime | None
    data: Any


class Ticks(msgspec.Struct, frozen=True):
    """A part of a run's journal, oldest first; `total` is how many ticks there are."""

    items: list[Tick]
    total: int


class StateAt(msgspec.Struct, frozen=True):
    """A run's state after a tick."""

    run_id: int
    tick: int
    total: int
    state: Any


class Fork(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Begin where the run was after tick `at`; with `event`, that tick brought this one instead."""

    at: int
    event: NewEvent | None = None


class Ending(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reason: str | None = None


class RunFilter(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Unfinished runs that are meant by what they are."""

    state: list[str] = []
    workflow: str | None = None
    shape: str | None = None
    parent: int | None = None
    up_to: int | None = None

    def wanted(self) -> RunsWanted:
        live = [state for state in self.state or ("running", "needs_attention") if state not in ENDED]
        if not live:
            raise ConfigError("only runs that are running or need attention can be cancelled")
        return RunsWanted(tuple(live), self.workflow, self.shape, None, self.parent, None, self.up_to).validate()


class RunSelection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which runs: by their ids, or everything that matches a filter."""

    ids: list[int] | None = None
    filter: RunFilter | None = None
    reason: str | None = None


class Asked(msgspec.Struct, frozen=True):
    """Which runs were asked to end, and how many had ended already."""

    count: int
    ids: list[int]
    unchanged: int


@get("/runs", opt={"scope": "read"}, summary="List runs")
async def list_runs(
    server_state: TheServerState,
    states: States = None,
    workflow: Word = None,
    shape: Annotated[str | None, QueryParameter(description="flow or dag")] = None,
    key: Word = None,
    parent: Number = None,
    forked_from: Number = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> RunPage:
    """Runs of all shapes that match, newest first."""
    wanted = RunsWanted(tuple(states or ()), workflow, shape, key, parent, forked_from)
    return as_it_is(await write_page(server_state, wanted, limit=limit, cursor=cursor), RunPage)


@post("/runs", opt={"scope": "operate"}, status_code=201, summary="Start a run")
async def start_run(server_state: TheServerState, request: Request[Any, Any, Any], data: JSONBody[NewRun]) -> Started:
    """Start a durable run: when this is answered, it survives any crash."""
    return await begin_run(server_state, caller_of(request), data)


@get("/runs/{run_id:int}", opt={"scope": "read"}, summary="One run, and why")
async def get_run(server_state: TheServerState, run_id: FromPath[int]) -> Run:
    """Everything about one run, and what it waits for."""
    return await tell_run(server_state, run_id)


@get("/runs/{run_id:int}/ticks", opt={"scope": "read"}, summary="A run's journal")
async def get_ticks(
    server_state: TheServerState,
    run_id: FromPath[int],
    after: Annotated[int, QueryParameter(ge=0, le=2**62)] = 0,
    limit: Annotated[int, QueryParameter(ge=1, le=1000)] = 200,
) -> Ticks:
    """What happened to a run, in order, from a tick on."""
    row = await find_run(server_state, run_id)
    rows = await read_ticks(server_state.database, run_id, after=after, limit=limit)
    return Ticks([_tick(each["seq"], decode(each["data"])) for each in rows], row["seq"])


@get("/runs/{run_id:int}/log", opt={"scope": "read"}, summary="What a run's steps logged")
async def get_run_log(
    server_state: TheServerState,
    run_id: FromPath[int],
    step: Word = None,
    limit: Annotated[int, QueryParameter(ge=1, le=500)] = 100,
) -> RunLog:
    """The last lines that each attempt at a step logged which ran where the run is, the last attempt first.

    What a step on a queue logged is with its job: `GET /jobs/{id}/log`.
    """
    await find_run(server_state, run_id)
    return await find_run_log(server_state, run_id, step, limit)


@get("/runs/{run_id:int}/state", opt={"scope": "read"}, summary="A run's state at a tick")
async def get_state(server_state: TheServerState, run_id: FromPath[int], at: FromQuery[int | None] = None) -> StateAt:
    """The state of a run after a tick, or now: its journal folded by its own code."""
    row = await find_run(server_state, run_id)
    total = row["seq"]
    wanted = total if at is None else at
    if not 0 <= wanted <= total:
        raise ConfigError(f"run r{run_id} has ticks 1 to {total}; there is no tick {wanted}")
    if row["kind"] == DAG_KIND:
        view = await look_back(server_state, run_id, wanted)
        return StateAt(run_id, wanted, total, decode(encode_dag_state(view.state)))
    kind = flow_of(server_state, row["workflow"])
    ticks = await read_ticks(server_state.database, run_id, limit=wanted) if wanted else []

    def fold() -> Any:
        state, timers = relive(kind.workflow, [decode_tick(tick["data"]) for tick in ticks])
        return {**decode(encode_flow_state(state)), "timers": timers}

    return StateAt(run_id, wanted, total, await asyncio.to_thread(fold))


@post("/runs/{run_id:int}/events", opt={"scope": "operate"}, status_code=202, summary="Send an event to a run")
async def send(
    server_state: TheServerState, request: Request[Any, Any, Any], run_id: FromPath[int], data: JSONBody[NewEvent]
) -> Sent:
    """Give a flow's run an event: it is stored when this is answered."""
    return await send_event(server_state, caller_of(request), run_id, data)


@post("/runs/{run_id:int}/fork", opt={"scope": "operate"}, status_code=201, summary="Fork a run at a tick")
async def fork_run(
    server_state: TheServerState, request: Request[Any, Any, Any], run_id: FromPath[int], data: JSONBody[Fork]
) -> Started:
    """A new run that begins where this one was after a tick."""
    return await fork_of(server_state, caller_of(request), run_id, data.at, data.event)


@post("/runs/{run_id:int}/cancel", opt={"scope": "operate"}, status_code=202, summary="Cancel a run")
async def cancel(
    server_state: TheServerState,
    request: Request[Any, Any, Any],
    run_id: FromPath[int],
    data: JSONBody[Ending | None] = None,
) -> Asked:
    """Ask a run to end: what it has under way is stopped."""
    await end_run(server_state, caller_of(request), run_id, data.reason if data else None)
    return Asked(1, [run_id], 0)


@post("/runs/cancel/preview", opt={"scope": "read"}, status_code=200, summary="What a cancel of runs would reach")
async def preview_cancel(server_state: TheServerState, data: JSONBody[RunFilter]) -> Preview:
    """How many unfinished runs match."""
    ids = await match_runs(server_state.database, data.wanted(), limit=MOST_MATCHES + 1)
    return Preview(min(len(ids), MOST_MATCHES), len(ids) > MOST_MATCHES, ids[:10], ids[0] if ids else None)


@post("/runs/cancel", opt={"scope": "operate"}, status_code=202, summary="Cancel runs")
async def cancel_many(
    server_state: TheServerState, request: Request[Any, Any, Any], data: JSONBody[RunSelection]
) -> Asked:
    """Ask runs to end: those that are named, or everything that matches."""
    caller = caller_of(request)
    if (data.ids is None) == (data.filter is None) or data.ids == []:
        raise ConfigError("say which runs: either `ids`, or a `filter`")
    if data.ids is not None and len(data.ids) > MOST_MATCHES:
        raise ConfigError(f"{len(data.ids):,} ids are too many at once: {MOST_MATCHES:,} is the most")
    if data.ids is not None:
        ids = list(dict.fromkeys(data.ids))
    else:
        ids = await match_runs(server_state.database, data.filter.wanted(), limit=MOST_MATCHES)  # pyright: ignore[reportOptionalMemberAccess]
    rows = [await find_run(server_state, each) for each in ids]
    reached: list[int] = []
    for row in rows:
        if row["state"] not in ENDED and await ask_to_end(server_state, caller, row, data.reason):
            reached.append(row["id"])
    return Asked(len(reached), reached[:1000], len(rows) - len(reached))


@get(
    "/runs/{run_id:int}/stream", opt={"scope": "read"}, summary="What a run shows, live", media_type="text/event-stream"
)
async def stream(
    server_state: TheServerState,
    request: Request[Any, Any, Any],
    run_id: FromPath[int],
    last_event_id: Annotated[str | None, HeaderParameter(name="Last-Event-ID", max_length=30)] = None,
    after: Annotated[int, QueryParameter(ge=0, le=2**62)] = 0,
) -> Stream:
    """Server-sent events: what the run has shown and will show, until it has ended (`event: end`).

    It breaks off after some minutes: come back with `Last-Event-ID`, as browsers do by themselves.
    """
    caller = caller_of(request)
    server_state.hub.check_room(caller)
    await find_run(server_state, run_id)
    if last_event_id is not None and (not last_event_id.isascii() or not last_event_id.isdigit()):
        raise ConfigError(f"{last_event_id!r} is not the id of an event of this stream")
    since = after if last_event_id is None else min(int(last_event_id), 2**62)
    return Stream(_follow(server_state, caller, run_id, since), media_type="text/event-stream")


routes = [
    list_runs,
    start_run,
    get_run,
    get_ticks,
    get_run_log,
    get_state,
    send,
    fork_run,
    cancel,
    preview_cancel,
    cancel_many,
    stream,
]


# -- inner parts ----------------------------------------------------------------------------------


async def _follow(server_state: ServerState, caller: Caller, run_id: int, after: int) -> AsyncIterator[bytes]:
    hub = server_state.hub
    until = asyncio.get_running_loop().time() + LONGEST
    with hub.attended(caller):
        while not hub.closed and asyncio.get_running_loop().time() < until:
            place = hub.place
            try:
                row = await find_run(server_state, run_id)
            except NotFoundError:
                return
            shown = await read_published(server_state.database, run_id, after=after, limit=SHOWN_AT_ONCE)
            for each in shown:
                after = each["seq"]
                yield f"id: {after}\nevent: shown\ndata: ".encode() + bytes(each["data"]).replace(b"\n", b" ") + b"\n\n"
            if len(shown) == SHOWN_AT_ONCE:
                continue
            if row["state"] in ENDED and not shown:
                yield (
                    b"event: end\ndata: " + msgspec.json.encode({"state": row["state"], "note": row["note"]}) + b"\n\n"
                )
                return
            if not shown:
                await hub.changed(run_id, place, timeout=QUIET if hub.is_live else 1.0)
                yield b": \n\n"


def _tick(seq: int, data: dict[str, Any]) -> Tick:
    at = data.get("at")
    moment = datetime.fromtimestamp(at, UTC) if isinstance(at, int | float) else None
    return Tick(seq, str(data.get("kind", "")), moment, data)
