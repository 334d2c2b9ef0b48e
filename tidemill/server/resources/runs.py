"""What can be asked of runs and done with them, whichever way the request came: HTTP or gRPC."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import msgspec

from tidemill.core.codec import encode
from tidemill.core.errors import ConfigError, NotFoundError
from tidemill.core.ticks import CancelAsked
from tidemill.dags.definition.model import UNSET
from tidemill.dags.reducer.journal import decode_tick
from tidemill.dags.runner.dag_handle import DagHandle
from tidemill.dags.runner.runner import DAG_KIND
from tidemill.dags.view.view import DagView, why_run
from tidemill.engine.explain import explain_run
from tidemill.flows.encoding.values import plain_result
from tidemill.flows.runner.durable import FlowKind
from tidemill.flows.runner.fork import fork
from tidemill.flows.runner.sending import event_tick, named_event
from tidemill.ops.cursor import page_json, read_cursor
from tidemill.ops.json_rows import RUN_JSON, readable
from tidemill.runs import cancel_tick
from tidemill.server.middleware.authentication import Caller
from tidemill.server.problems import Refused
from tidemill.server.server_state import ServerState
from tidemill.store.jobs.pages import RunsWanted, write_run_page
from tidemill.store.jobs.read import show_jobs_of_run
from tidemill.store.runs.runs import (
    cancel_run,
    load_run,
    new_token,
    read_ticks,
    send_to_run,
    show_run,
)
from tidemill.store.runs.workers import count_run_workers

ENDED = ("succeeded", "failed", "cancelled", "timed_out")
JOBS_SHOWN = 200


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one run, and why it stands where it does."""

    id: int
    workflow: str
    shape: str
    state: str
    version: str
    key: str | None
    ticks: int
    input: Any
    result: Any
    error: Any
    note: str | None
    origin: dict[str, Any] | None
    created_at: datetime
    ended_at: datetime | None
    forked_from: int | None
    parent: int | None
    owner_host: str | None
    owner_pid: int | None
    why: list[str]


class NewRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A run to start: a declared flow or dag, its arguments, and a key of which there is one run only."""

    workflow: str
    args: dict[str, Any] = {}
    key: str | None = None


class NewEvent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An event by the name of its class; `step` if only that one shall get it."""

    type: str
    fields: dict[str, Any] = {}
    step: str | None = None


class Started(msgspec.Struct, frozen=True):
    """A run; `created` is false when one with this key was there already."""

    id: int
    created: bool


class Sent(msgspec.Struct, frozen=True):
    """The event is stored, and wakes the run if it sleeps."""

    run_id: int
    type: str


async def write_page(server_state: ServerState, wanted: RunsWanted, *, limit: int, cursor: str | None) -> bytes:
    """A page of runs, newest first: a `RunPage` as JSON."""
    page = await write_run_page(server_state.database, wanted, before=read_cursor(cursor), limit=limit)
    return page_json(page, limit)


async def tell_run(server_state: ServerState, run_id: int) -> Run:
    """Everything about one run, and what it waits for."""
    row = await find_run(server_state, run_id)
    is_dag = row["kind"] == DAG_KIND
    known = readable(row, RUN_JSON)
    if is_dag:
        known["input"] = known["input"].get("args", {})
    else:
        known["result"] = plain_result(known["result"])
    why = why_run(await look(server_state, run_id)) if is_dag else [explain_run(row)]
    key = known["key"]
    fields = {name: value for name, value in known.items() if name in Run.__struct_fields__ and name != "key"}
    return Run(
        **fields,
        key=None if key is None or key.startswith("~") else key,
        shape="dag" if is_dag else "flow",
        ticks=row["seq"],
        why=why,
    )


async def begin_run(server_state: ServerState, caller: Caller, new: NewRun) -> Started:
    """Store a new run of a flow or a dag; a run worker takes it up."""
    key = new.key
    if key is not None and (not key or len(key) > 400 or not key.isprintable() or key.startswith("~")):
        raise ConfigError("a run's key has 1 to 400 printable characters and does not begin with '~'")
    runs, origin = server_state.app.runs, server_state.origin(caller)
    noted = server_state.noting(caller, "run.start", workflow=new.workflow)
    handle = await runs.start_named(
        new.workflow, new.args, key, origin=origin, database=server_state.database, within=noted
    )
    return Started(handle.id, handle.created)


async def send_event(server_state: ServerState, caller: Caller, run_id: int, new: NewEvent) -> Sent:
    """Give a flow's run an event: it is stored when this returns."""
    row = await require_flow(server_state, run_id)
    event = read_event(server_state, row["workflow"], new.type, new.fields)
    await server_state.note(caller, "run.send", f"r{run_id}", after={"type": new.type, "step": new.step})
    token = new_token()
    await send_to_run(server_state.database, run_id, event_tick(event, new.step, token), token=token)
    return Sent(run_id, new.type)


async def fork_of(server_state: ServerState, caller: Caller, run_id: int, at: int, event: NewEvent | None) -> Started:
    """A new run that begins where a flow's run was after a tick; with `event`, that tick brought this one."""
    row = await require_flow(server_state, run_id)
    kind = flow_of(server_state, row["workflow"])
    if not 1 <= at <= row["seq"]:
        raise ConfigError(f"run r{run_id} has ticks 1 to {row['seq']}; there is no tick {at} to fork from")
    brought = None if event is None else read_event(server_state, row["workflow"], event.type, event.fields)
    origin = encode(server_state.origin(caller))
    noted = server_state.noting(caller, "run.fork", f"r{run_id}", at=at)
    number = await fork(server_state.database, kind.workflow, run_id, at=at, origin=origin, event=brought, within=noted)
    return Started(number, True)


async def repeat_run(
    server_state: ServerState, caller: Caller, run_id: int, start: str | None, edited: Any = UNSET
) -> Started:
    """A new run that does again what did not succeed in a dag's run; with `start` that node too, and what follows."""
    handle = await handle_of(server_state, run_id)
    noted = server_state.noting(caller, "run.rerun", f"r{run_id}", start=start, edited=edited is not UNSET)
    again = await handle.rerun(start=start, edited=edited, by=caller.name, within=noted)
    return Started(again.id, again.created)


async def end_run(server_state: ServerState, caller: Caller, run_id: int, reason: str | None) -> None:
    """Ask a run to end; an error if it has ended already."""
    row = await find_run(server_state, run_id)
    if row["state"] in ENDED:
        raise Refused(409, f"run r{run_id} has ended already: {row['state']}")
    await ask_to_end(server_state, caller, row, reason)


async def ask_to_end(server_state: ServerState, caller: Caller, row: Any, why: str | None) -> bool:
    """Ask one run to end; False if it has ended meanwhile."""
    reason = f"cancelled by {caller.name}" + (f": {why}" if why else "")
    before = {"state": row["state"]}
    await server_state.note(caller, "run.cancel", f"r{row['id']}", before=before, after={"asked": True, "reason": why})
    try:
        await cancel_run(server_state.database, row["id"], cancel_tick(row["kind"], reason), reason=reason)
    except NotFoundError:
        return False
    return True


async def submit_answer(
    server_state: ServerState, caller: Caller, run_id: int, node: str, value: Any, key: str | None
) -> bool:
    """Answer what a run asks; whether it has taken the answer yet."""
    if not node:
        raise NotFoundError("say which node is answered")
    await find_run(server_state, run_id)
    return await server_state.app.runs.submit(server_state.database, run_id, node, value, by=caller.name, key=key)


def flow_of(server_state: ServerState, name: str) -> FlowKind:
    """The declared flow of this name."""
    return server_state.app.runs.flow(name)


def read_event(server_state: ServerState, workflow: str, name: str, fields: dict[str, Any]) -> Any:
    """An event of an application by the name of its class, checked before it goes anywhere."""
    return named_event(flow_of(server_state, workflow).workflow, name, fields)


async def require_flow(server_state: ServerState, run_id: int) -> Any:
    """The row of a run, if it is one of a flow."""
    row = await find_run(server_state, run_id)
    if row["kind"] == DAG_KIND:
        raise ConfigError(
            f"run r{run_id} is of a dag, which takes no events: answer what it asks with `tidemill submit`, or "
            "repeat it with `tidemill dag rerun`"
        )
    return row


async def handle_of(server_state: ServerState, run_id: int) -> DagHandle:
    """A handle on a run of a dag."""
    require_dag(await find_run(server_state, run_id))
    return DagHandle(server_state.database, server_state.app.runs.dag_kind, run_id, created=False)


async def find_run(server_state: ServerState, run_id: int) -> Any:
    """A run's row."""
    if not 0 < run_id < 2**63:
        raise NotFoundError(f"there is no run {run_id}")
    return await show_run(server_state.database, run_id)


async def look(server_state: ServerState, run_id: int) -> DagView:
    """A run of a dag as it is now."""
    require_dag(await find_run(server_state, run_id))
    row, snapshot, ticks = await load_run(server_state.database, run_id)
    program, state = server_state.app.runs.dag_kind.restore(row["input"], snapshot, ticks)
    if row["state"] == "cancelled" and state.status == "running":  # It needed attention: nobody has told its nodes.
        program.reduce(state, CancelAsked(row["ended_at"].timestamp(), row["note"] or ""))
    found = await show_jobs_of_run(server_state.database, run_id, limit=JOBS_SHOWN) if state.works else []
    return DagView(
        row=dict(row),
        program=program,
        state=state,
        now=time.time(),
        jobs=[readable(job) for job in found],
        all_jobs=len(found) < JOBS_SHOWN,
        run_workers=await count_run_workers(server_state.database, DAG_KIND),
    )


async def look_back(server_state: ServerState, run_id: int, at: int) -> DagView:
    """A run of a dag as it was after one of its ticks."""
    row = await find_run(server_state, run_id)
    require_dag(row)
    if not 0 <= at <= row["seq"]:
        raise ConfigError(f"run r{run_id} has ticks 1 to {row['seq']}; there is no tick {at}")
    ticks = await read_ticks(server_state.database, run_id, limit=at) if at else []
    program, state = server_state.app.runs.dag_kind.restore(row["input"], None, [tick["data"] for tick in ticks])
    now = decode_tick(ticks[-1]["data"]).at if ticks else row["created_at"].timestamp()
    return DagView(row=dict(row), program=program, state=state, now=now, tick=at)


def require_dag(row: Any) -> None:
    """An error if a run is not one of a dag."""
    if row["kind"] != DAG_KIND:
        raise ConfigError(f"run r{row['id']} is of flow {row['workflow']}, and not of a dag")
