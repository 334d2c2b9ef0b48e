"""Runs of workflows and dags: list, start, show, send them events, fork and cancel them.

Flows and dags are imported where they are needed: a command that works through a server needs neither.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from tidemill.core.codec import decode, encode, mask_secrets
from tidemill.core.did_you_mean import did_you_mean
from tidemill.core.errors import ConfigError, ConflictError, NotFoundError
from tidemill.core.job import Origin
from tidemill.core.json_rows import RUN_JSON, readable
from tidemill.core.ticks import CancelAsked, Resumed
from tidemill.declarations import Declarations
from tidemill.engine.explain import explain_buffered, explain_run
from tidemill.ops.jobs.logs import LogLine, read_lines
from tidemill.ops.operator.bulk import SAMPLE, Preview
from tidemill.ops.operator.cursor import page_json, read_cursor
from tidemill.ops.operator.local import encoded
from tidemill.ops.operator.operation import Arguments, Cursor, Limit, ListOf, PageOf, doc, operation
from tidemill.store.audit import targets
from tidemill.store.jobs.pages import RunFilter, Word, match_runs, write_run_page
from tidemill.store.runs.log import read_step_logs
from tidemill.store.runs.runs import (
    DAG_KIND,
    LIVE_RUN_STATES,
    OWN_KEY,
    cancel_within,
    find_runs,
    known_events,
    load_run,
    new_token,
    read_ticks,
    retry_stopped,
    send_within,
    show_run,
)
from tidemill.store.runs.runs import start_run as store_run
from tidemill.store.runs.turns import BufferedEvents
from tidemill.store.transaction import Reader, Transaction

if TYPE_CHECKING:
    from tidemill.dags.runner.runner import DagKind

MOST_RUNS = 10_000
MOST_NAMED = 1_000

_HOST = socket.gethostname()

TickNumber = Annotated[int, Meta(ge=0, le=2**62)]


class ListRuns(RunFilter, frozen=True, kw_only=True):
    """Which runs to list, and which page of them."""

    limit: Limit = 50
    cursor: Cursor = None


class RunRef(Arguments, frozen=True, kw_only=True):
    """Which run."""

    id: Annotated[int, doc("The run's id.")]


class StartRun(Arguments, frozen=True, kw_only=True):
    """A run to start: a declared workflow or dag, its arguments, and a key that no second run has."""

    workflow: Annotated[str, doc("The name of the workflow or dag.")]
    args: Annotated[dict[str, Any], doc("The fields of the start event, or the arguments of the dag's run.")] = (
        msgspec.field(default_factory=dict)
    )
    key: Annotated[str | None, doc("No second run of this workflow or dag with this key.")] = None
    definition: Annotated[dict[str, Any] | None, doc("A dag that the application does not declare.")] = None


class GetTicks(RunRef, frozen=True, kw_only=True):
    """Which part of a run's journal."""

    after: Annotated[TickNumber, doc("Ticks after this one.")] = 0
    limit: Annotated[int, doc("How many ticks to show.", ge=1, le=1000)] = 200


class GetRunLog(RunRef, frozen=True, kw_only=True):
    """Which part of a run's log."""

    step: Annotated[Word | None, doc("What this step logged.")] = None
    limit: Annotated[int, doc("How many attempts to show.", ge=1, le=500)] = 100


class GetStateAt(RunRef, frozen=True, kw_only=True):
    """Which run, and after which tick."""

    at: Annotated[int | None, doc("The tick; by default the last one.")] = None


class NewEvent(Arguments, frozen=True, kw_only=True):
    """An event by the name of its class."""

    type: Annotated[str, doc("The name of the event's class.")]
    fields: Annotated[dict[str, Any], doc("The event's fields.")] = msgspec.field(default_factory=dict)


class SendEvent(NewEvent, frozen=True, kw_only=True):
    """An event for a run."""

    id: Annotated[int, doc("The run's id.")]
    step: Annotated[str | None, doc("The step that receives it; by default every step that accepts it.")] = None


class ForkRun(RunRef, frozen=True, kw_only=True):
    """Where a new run begins."""

    at: Annotated[int, doc("The last tick that the new run shares with this one.")]
    event: Annotated[NewEvent | None, doc("The event that this tick brought instead.")] = None


class CancelRun(RunRef, frozen=True, kw_only=True):
    """Which run to cancel, and why."""

    reason: Annotated[str | None, doc("Why, for the run's note.")] = None


class RunSelection(Arguments, frozen=True, kw_only=True):
    """Which runs: by their ids, or all unfinished ones that match a filter."""

    ids: Annotated[list[int] | None, doc("The runs' ids.")] = None
    filter: Annotated[RunFilter | None, doc("Conditions that the runs match.")] = None
    reason: Annotated[str | None, doc("Why, for the runs' notes.")] = None


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is shown of a run wherever it is shown."""

    id: int
    workflow: str
    shape: str
    state: str
    key: str | None
    ticks: int
    note: str | None
    created_at: datetime
    ended_at: datetime | None
    forked_from: int | None
    parent: int | None


class RunLine(RunFacts, frozen=True, kw_only=True):
    """A run in a list. `asks` is how many human inputs it waits for."""

    owned: bool
    awake: bool
    asks: int


class Run(RunFacts, frozen=True, kw_only=True):
    """Everything about one run, and why it is in its state."""

    version: str
    input: Any
    result: Any
    error: Any
    origin: dict[str, Any] | None
    owner_host: str | None
    owner_pid: int | None
    buffered: Annotated[
        BufferedEvents | None, Meta(description="Events that no step has taken yet, by class; kept for a later wait.")
    ]
    why: list[str]


class Tick(msgspec.Struct, frozen=True):
    """One tick of a run's journal."""

    seq: int
    kind: str
    at: datetime | None
    data: Any


class Journal(msgspec.Struct, frozen=True):
    """A part of a run's journal, oldest first; `total` is how many ticks there are."""

    items: list[Tick]
    total: int


class StepAttemptLog(msgspec.Struct, frozen=True):
    """The last lines of an attempt at a step; `work` is the piece of work that it was an attempt at."""

    work: int
    step: str
    attempt: int
    began_at: datetime
    dropped: int
    lines: list[LogLine]


class StateAt(msgspec.Struct, frozen=True):
    """A run's state after a tick."""

    run_id: int
    tick: int
    total: int
    state: Any


class RunStarted(msgspec.Struct, frozen=True):
    """The run; `created` is false when a run with this key existed already."""

    id: int
    created: bool


class EventStored(msgspec.Struct, frozen=True):
    """The event is stored, and wakes the run if it sleeps."""

    run_id: int
    type: str


class RunsAsked(msgspec.Struct, frozen=True):
    """Which runs were asked to end, and how many had ended already."""

    count: int
    ids: list[int]
    unchanged: int


@operation("GET /runs", scope="read")
async def list_runs(at: Reader, args: ListRuns) -> PageOf[RunLine]:
    """List runs of all shapes, newest first."""
    page = await write_run_page(at.database, args, before=read_cursor(args.cursor), limit=args.limit)
    return encoded(page_json(page, args.limit), PageOf[RunLine])


@operation("POST /runs", scope="operate", status=201)
async def start_run(tx: Transaction, args: StartRun, declared: Declarations) -> RunStarted:
    """Start a durable run: it is stored when this returns, and survives any crash."""
    key = args.key
    if key is not None and (not key or len(key) > 400 or not key.isprintable() or key.startswith(OWN_KEY)):
        raise ConfigError("a run's key has 1 to 400 printable characters and does not begin with '~'")
    new = await _new_run(args, declared, origin_of(tx))
    number, created = await store_run(tx, **msgspec.structs.asdict(new), key=key)
    await tx.audit("run.start", f"r{number}", after={"workflow": args.workflow, "created": created})
    return RunStarted(number, created)


@operation("GET /runs/{id}", scope="read")
async def get_run(at: Reader, args: RunRef, declared: Declarations | None) -> Run:
    """Everything about one run, and what it waits for."""
    row = await find_run(at, args.id)
    known = readable(row, RUN_JSON)
    if is_dag(row):
        from tidemill.dags.view.load import load_view
        from tidemill.dags.view.view import why_run

        known["input"] = known["input"].get("args", {})
        why = why_run(await load_view(at.database, dag_kind(declared), args.id, jobs=0))
    else:
        from tidemill.flows.encoding.values import plain_result

        known["result"] = plain_result(known["result"])
        why = [explain_run(row), *explain_buffered(known["buffered"])]
    key, buffered = known.pop("key"), known.pop("buffered")
    fields = {name: value for name, value in known.items() if name in Run.__struct_fields__}
    return Run(
        **fields,
        key=None if key is None or key.startswith(OWN_KEY) else key,
        shape="dag" if is_dag(row) else "flow",
        buffered=None if buffered is None else msgspec.convert(buffered, BufferedEvents),
        ticks=row["seq"],
        why=why,
    )


@operation("GET /runs/{id}/ticks", scope="read")
async def get_ticks(at: Reader, args: GetTicks) -> Journal:
    """The journal of a run, in order, from a tick on."""
    row = await find_run(at, args.id)
    rows = await read_ticks(at.database, args.id, after=args.after, limit=args.limit)
    return Journal([_tick(each["seq"], mask_secrets(decode(each["data"]))) for each in rows], row["seq"])


@operation("GET /runs/{id}/log", scope="read")
async def get_run_log(at: Reader, args: GetRunLog) -> ListOf[StepAttemptLog]:
    """The last lines that each attempt at a step logged, the last attempt first.

    A step on a queue logs with its job: `GET /jobs/{id}/log`.
    """
    await find_run(at, args.id)
    rows = await read_step_logs(at.database, args.id, step=args.step, limit=args.limit)
    return ListOf([StepAttemptLog(**{**row, "lines": read_lines(row["lines"])}) for row in rows])


@operation("GET /runs/{id}/state", scope="read")
async def get_state_at(at: Reader, args: GetStateAt, declared: Declarations | None) -> StateAt:
    """The state of a run after a tick, or now: its journal folded by its own code."""
    row = await find_run(at, args.id)
    total = row["seq"]
    tick = total if args.at is None else args.at
    if not 0 <= tick <= total:
        raise ConfigError(f"run r{args.id} has ticks 1 to {total}; there is no tick {tick}")
    if is_dag(row):
        from tidemill.dags.reducer.state import encode_state
        from tidemill.dags.view.load import load_view_at

        view = await load_view_at(at.database, dag_kind(declared), args.id, tick)
        return StateAt(args.id, tick, total, decode(encode_state(view.state)))
    if declared is None:
        raise ConfigError(f"the ticks of run r{args.id} are folded by the code of its workflow: say --app app.py")
    from tidemill.flows.encoding.journal import decode_tick
    from tidemill.flows.encoding.snapshot import encode_state
    from tidemill.flows.runner.fork import replay_ticks

    workflow = declared.runs.flow(row["workflow"]).workflow
    ticks = await read_ticks(at.database, args.id, limit=tick) if tick else []
    if tick and (not ticks or ticks[0]["seq"] != 1):
        return StateAt(args.id, tick, total, await _state_now(at, args.id, workflow, is_last=tick == total))

    def fold() -> Any:
        state, timers = replay_ticks(workflow, [decode_tick(each["data"]) for each in ticks])
        return {**mask_secrets(decode(encode_state(state))), "timers": timers}

    return StateAt(args.id, tick, total, await asyncio.to_thread(fold))


async def _state_now(at: Reader, id: int, workflow: Any, *, is_last: bool) -> Any:
    """The state of a run that has continued as new, whose older ticks are gone."""
    from tidemill.flows.encoding.snapshot import encode_state
    from tidemill.flows.runner.durable import restore

    if not is_last:
        raise ConfigError(f"run r{id} has continued as new, so that its older ticks are gone: leave the tick out")
    _, snapshot, ticks = await load_run(at.database, id)
    return mask_secrets(decode(encode_state(restore(workflow, snapshot, ticks))))


@operation("POST /runs/{id}/events", scope="operate", status=202)
async def send_event(tx: Transaction, args: SendEvent, declared: Declarations | None) -> EventStored:
    """Send an event to a flow's run: it is stored when this returns.

    Without the application, its class must be one that run workers know; its fields are checked when the run takes it.
    """
    from tidemill.flows.runner.sending import event_tick, named_event, unchecked_tick

    row = await find_flow(tx, args.id)
    token = new_token()
    if declared is None:
        _check_event(args.type, await known_events(tx, row["kind"]))
        tick = unchecked_tick(args.type, args.fields, args.step, token)
    else:
        workflow = declared.runs.flow(row["workflow"]).workflow
        tick = event_tick(named_event(workflow, args.type, args.fields), args.step, token)
    await deliver(tx, args.id, tick)
    await tx.audit("run.send", f"r{args.id}", after={"type": args.type, "step": args.step})
    return EventStored(args.id, args.type)


@operation("POST /runs/{id}/fork", scope="operate", status=201)
async def fork_run(tx: Transaction, args: ForkRun, declared: Declarations) -> RunStarted:
    """Start a new run where a flow's run was after a tick."""
    from tidemill.flows.runner.fork import fork
    from tidemill.flows.runner.sending import named_event

    row = await find_flow(tx, args.id)
    workflow = declared.runs.flow(row["workflow"]).workflow
    event = None if args.event is None else named_event(workflow, args.event.type, args.event.fields)
    number = await fork(tx, workflow, args.id, at=args.at, origin=encode(origin_of(tx)), event=event)
    await tx.audit("run.fork", f"r{args.id}", after={"run": number, "at": args.at})
    return RunStarted(number, True)


@operation("POST /runs/{id}/retry", scope="operate", status=202)
async def retry_run(tx: Transaction, args: RunRef) -> RunsAsked:
    """Start a flow's run again that needs attention: its steps in progress count as failed attempts."""
    from tidemill.flows.encoding.journal import encode_tick
    from tidemill.flows.reducer.reducer import RULES

    row = await find_flow(tx, args.id)
    tick = encode_tick(Resumed(time.time(), queued=True, rules=RULES, afresh=True))
    if not await retry_stopped(tx, args.id, tick):
        raise ConflictError(f"run r{args.id} does not need attention: it is {row['state']}")
    await tx.audit("run.retry", f"r{args.id}")
    return RunsAsked(1, [args.id], 0)


@operation("POST /runs/{id}/cancel", scope="operate", status=202)
async def cancel_run(tx: Transaction, args: CancelRun) -> RunsAsked:
    """Ask a run to end: its steps and jobs are stopped."""
    row = await find_run(tx, args.id)
    if not await _cancel(tx, row, args.reason):
        raise ConflictError(f"run r{args.id} has ended already: {row['state']}")
    after = {"asked": True, "reason": args.reason}
    await tx.audit("run.cancel", f"r{args.id}", before={"state": row["state"]}, after=after)
    return RunsAsked(1, [args.id], 0)


@operation("POST /runs/cancel/preview", scope="read")
async def preview_cancel_runs(at: Reader, args: RunFilter) -> Preview:
    """Count the unfinished runs that a cancel by this filter would reach."""
    ids = await match_runs(at.database, args.live, limit=MOST_RUNS + 1)
    return Preview(min(len(ids), MOST_RUNS), len(ids) > MOST_RUNS, ids[:SAMPLE], ids[0] if ids else None)


@operation("POST /runs/cancel", scope="operate", status=202, preview=preview_cancel_runs)
async def cancel_runs(at: Reader, args: RunSelection) -> RunsAsked:
    """Ask runs to end: those that are named, or all unfinished ones that match."""
    if (args.ids is None) == (args.filter is None) or args.ids == []:
        raise ConfigError("say which runs: either `ids`, or a `filter`")
    if args.ids is not None and len(args.ids) > MOST_RUNS:
        raise ConfigError(f"{len(args.ids):,} ids are too many at once: {MOST_RUNS:,} is the most")
    if args.filter is not None:
        ids = await match_runs(at.database, args.filter.live, limit=MOST_RUNS)
    else:
        ids = [_stored_id(each) for each in dict.fromkeys(args.ids or ())]
    rows = await find_runs(at.database, ids)
    live = {row["id"]: row["state"] for row in rows if row["state"] in LIVE_RUN_STATES}
    if live:
        async with at.transaction() as tx:  # First: what follows commits run by run, and may stop half-way.
            after = {"asked": list(live), "reason": args.reason, "filter": args.filter}
            await tx.audit("run.cancel", targets(list(live), "r"), before=live, after=after)
    reached: list[int] = []
    for row in rows:  # One transaction each: run workers lock many runs at a time, in an order of their own.
        async with at.transaction() as tx:
            if await _cancel(tx, row, args.reason):
                reached.append(row["id"])
    return RunsAsked(len(reached), reached[:MOST_NAMED], len(rows) - len(reached))


# -- for the other operations on runs -------------------------------------------------------------


async def find_run(at: Reader | Transaction, id: int) -> Any:
    """A run's row; an error if there is none."""
    return await show_run(at.database, _stored_id(id))


async def find_flow(at: Reader | Transaction, id: int) -> Any:
    """The row of a flow's run."""
    row = await find_run(at, id)
    if is_dag(row):
        raise ConfigError(
            f"run r{id} is of a dag, which takes no events: answer what it asks with `tidemill submit`, or "
            "repeat it with `tidemill dag rerun`"
        )
    return row


def is_dag(row: Any) -> bool:
    """Whether this is the row of a dag's run."""
    return row["kind"] == DAG_KIND


def dag_kind(declared: Declarations | None) -> DagKind:
    """How runs of dags are read; without the application, refs of its own cannot be."""
    if declared is not None:
        return declared.runs.dag_kind
    from tidemill.dags.runner.runner import DagKind

    return DagKind({})


def origin_of(tx: Transaction) -> Origin:
    """Why a run exists that a caller starts."""
    return Origin(by=tx.by, host=_HOST, pid=os.getpid())


async def deliver(tx: Transaction, id: int, tick: bytes) -> None:
    """Put a tick into a run's inbox; an error if the run has ended."""
    if not await send_within(tx, id, tick):
        row = await find_run(tx, id)
        raise NotFoundError(f"run {id} has ended ({row['state']}): it accepts nothing more; start a new run")


# -- inner parts ----------------------------------------------------------------------------------


async def _new_run(args: StartRun, declared: Declarations, origin: Origin) -> Any:
    from tidemill.dags.definition.model import Dag
    from tidemill.dags.errors import DagError
    from tidemill.flows.errors import WorkflowRuntimeError

    try:
        what = args.workflow if args.definition is None else Dag.from_json(encode(args.definition))
        if isinstance(what, Dag) and what.name != args.workflow:
            raise ConfigError(f"the definition is of dag {what.name!r}, and not of {args.workflow!r}")
        return await declared.runs.new_run(what, args.args, origin)
    except (DagError, WorkflowRuntimeError) as error:
        raise ConfigError(str(error)) from error


async def _cancel(tx: Transaction, row: Any, why: str | None) -> bool:
    """Ask one run to end; False if it has ended."""
    if row["state"] not in LIVE_RUN_STATES:
        return False
    reason = f"cancelled by {tx.by}" + (f": {why}" if why else "")
    return await cancel_within(tx, row["id"], _cancel_tick(row, reason), reason=reason)


def _cancel_tick(row: Any, reason: str) -> bytes:
    if is_dag(row):
        from tidemill.dags.reducer.journal import encode_tick
    else:
        from tidemill.flows.encoding.journal import encode_tick
    return encode_tick(CancelAsked(time.time(), reason))


def _check_event(name: str, known: list[str]) -> None:
    """Raise if run workers know their event classes, and none is meant by this name."""
    bare = [each.rpartition(".")[2] for each in known]
    if known and name not in known and name not in bare:
        raise ConfigError(f"{name} is not an event class of this application{did_you_mean(name, bare)}")


def _tick(seq: int, data: dict[str, Any]) -> Tick:
    at = data.get("at")
    moment = datetime.fromtimestamp(at, UTC) if isinstance(at, int | float) else None
    return Tick(seq, str(data.get("kind", "")), moment, data)


def _stored_id(id: int) -> int:
    if not 0 < id < 2**63:
        raise NotFoundError(f"there is no run {id}: `tidemill runs` lists them")
    return id
