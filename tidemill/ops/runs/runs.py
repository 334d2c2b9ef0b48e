"""Runs of workflows and dags: list, start and show them.

Flows and dags are imported where they are needed: a command that works through a server needs neither.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from tidemill.core.encoding.json_rows import RUN_JSON, readable
from tidemill.core.errors import ConfigError, NotFoundError
from tidemill.core.jobs.job import Origin
from tidemill.declarations import Declarations
from tidemill.engine.explain import explain_buffered, explain_deadline, explain_input, explain_run
from tidemill.engine.jobs.origin import origin_here
from tidemill.engine.runs.start_options import START_OPTIONS, with_start_options
from tidemill.engine.telemetry.run_trace import traced_origin
from tidemill.ops.operator.cursor import page_json, read_cursor
from tidemill.ops.operator.local import encoded
from tidemill.ops.operator.operation import Arguments, Cursor, Limit, PageOf, doc, operation
from tidemill.ops.operator.task_roles import check_tasks, tasks_in
from tidemill.store.jobs.pages import RunFilter, write_run_page
from tidemill.store.large_values import find_cut
from tidemill.store.runs.claims import DAG_KIND
from tidemill.store.runs.describe import describe_run
from tidemill.store.runs.inbox import send_within
from tidemill.store.runs.inputs import list_inputs as read_inputs
from tidemill.store.runs.rates import read_rate_wait
from tidemill.store.runs.run_turn import BufferedEvents
from tidemill.store.runs.runs import OWN_KEY, show_run, store_run
from tidemill.store.runs.workers import slot_holders
from tidemill.store.transaction import Reader, Transaction

if TYPE_CHECKING:
    from tidemill.dags.runner.runner import DagKind

MOST_ASKED = 5  # questions of a run that its explanation names


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
    unique_key: Annotated[str | None, doc("No second run of this workflow or dag with this key.")] = None
    delay: Annotated[str | float | None, doc("Not before this long from now: 10s, 5m.")] = None
    at: Annotated[datetime | None, doc("Not before this date and time, with its time zone.")] = None
    priority: Annotated[int | None, doc("0 to 9; 9 goes first.")] = None
    deadline: Annotated[str | float | None, doc("Drop it if it has not begun within this time.")] = None
    tags: Annotated[list[str] | None, doc("Words to find it by.")] = None
    rate_key: Annotated[str | None, doc("Those that share this key start at most at the declared rate.")] = None
    definition: Annotated[dict[str, Any] | None, doc("A dag that is not declared, in the form of a dag file.")] = None


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
    parent_work: Annotated[int | None, doc("The work of its parent that waits for it; ticks name its step.")] = None


class Run(RunFacts, frozen=True, kw_only=True):
    """Everything about one run, and why it is in its state."""

    version: str
    priority: int | None
    deadline: Annotated[datetime | None, Meta(description="It is dropped unrun if it has not begun by then.")]
    start_at: Annotated[datetime | None, Meta(description="It does not begin before.")]
    rate_key: Annotated[str | None, Meta(description="Runs that share it begin at most at its rate.")]
    tags: list[str]
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


class RunStarted(msgspec.Struct, frozen=True):
    """The run; `created` is false when a run with this key existed already."""

    id: int
    created: Annotated[bool, doc("False when a run with this key existed already.")]


@operation("GET /runs", role="viewer")
async def list_runs(at: Reader, args: ListRuns) -> PageOf[RunLine]:
    """List runs of all shapes, newest first."""
    page = await write_run_page(at.database, args, before=read_cursor(args.cursor), limit=args.limit)
    return encoded(page_json(page, args.limit), PageOf[RunLine])


@operation("POST /runs", role="operator", status=201)
async def start_run(tx: Transaction, args: StartRun, declared: Declarations) -> RunStarted:
    """Start a durable run: it is stored when this returns, and survives any crash."""
    check_tasks(tx, declared, tasks_in(args.definition))
    new = await _new_run(args, declared, traced_origin(origin_here(tx.by)))
    options = {name: getattr(args, name) for name in START_OPTIONS}
    number, created = await store_run(tx, with_start_options(new, options))
    await tx.audit("run.start", f"r{number}", after={"workflow": args.workflow, "created": created})
    return RunStarted(number, created)


@operation("GET /runs/{id}", role="viewer")
async def get_run(at: Reader, args: RunRef, declared: Declarations | None) -> Run:
    """Everything about one run, and what it waits for."""
    row = await describe_run(at.database, stored_id(args.id))
    known = readable(row, RUN_JSON)
    if is_dag(row):
        from tidemill.dags.view.load import load_view
        from tidemill.dags.view.view import why_run

        if find_cut(known["input"]) is None:
            known["input"] = known["input"].get("args", {})
        why = why_run(await load_view(at.database, dag_kind(declared), args.id, jobs=0))
    else:
        from tidemill.flows.encoding.values import plain_result

        known["result"] = plain_result(known["result"])
        waits_to_begin = row["state"] == "running" and row["owner"] is None and row["awake"] and row["seq"] == 0
        holders = await slot_holders(at.database, row["kind"]) if waits_to_begin else []
        asked = await read_inputs(at.database, run_id=args.id, limit=MOST_ASKED) if row["state"] == "running" else []
        rate = await read_rate_wait(at.database, args.id) if row["rate_key"] is not None else None
        now = [explain_input(readable(each, ("schema",))) for each in asked] or [explain_run(known, holders, rate)]
        why = [*now, *explain_buffered(known["buffered"])]
    if row["state"] == "running" and row["seq"] == 0:
        why += explain_deadline(row)
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


# -- for the other operations on runs -------------------------------------------------------------


async def find_run(at: Reader | Transaction, id: int) -> Any:
    """A run's row; an error if there is none."""
    return await show_run(at.database, stored_id(id))


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


async def deliver(tx: Transaction, id: int, tick: bytes) -> None:
    """Put a tick into a run's inbox; an error if the run has ended."""
    if not await send_within(tx, id, tick):
        row = await find_run(tx, id)
        raise NotFoundError(f"run {id} has ended ({row['state']}): it accepts nothing more; start a new run")


async def _new_run(args: StartRun, declared: Declarations, origin: Origin) -> Any:
    from tidemill.dags.definition.files import read_definition
    from tidemill.dags.definition.model import Dag
    from tidemill.dags.errors import DagError
    from tidemill.flows.errors import WorkflowRuntimeError

    refs = declared.hooks.ref_resolver
    try:
        what = args.workflow if args.definition is None else read_definition(args.definition, refs)
        if isinstance(what, Dag) and what.name != args.workflow:
            raise ConfigError(f"the definition is of dag {what.name!r}, and not of {args.workflow!r}")
        return await declared.runs.new_run(what, args.args, origin)
    except (DagError, WorkflowRuntimeError) as error:
        raise ConfigError(str(error)) from error


def stored_id(id: int) -> int:
    if not 0 < id < 2**63:
        raise NotFoundError(f"there is no run {id}: `tidemill runs` lists them")
    return id
