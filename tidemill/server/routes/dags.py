"""Dags: those that the application declares, their runs as trees, and runs that repeat others."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import msgspec
from litestar import Request, get, post

from tidemill.core.codec import decode
from tidemill.core.errors import ConfigError, NotFoundError
from tidemill.core.ticks import CancelAsked
from tidemill.dags.handle import DagHandle
from tidemill.dags.journal import decode_tick
from tidemill.dags.model import UNSET
from tidemill.dags.runner import DAG_KIND
from tidemill.dags.view import View, nodes_json, why_run
from tidemill.server.desk import Desk, caller_of
from tidemill.server.reading import readable
from tidemill.store.inspect import show_jobs_of_run
from tidemill.store.runs import load_run, read_ticks, show_run
from tidemill.store.runview import count_keepers

JOBS_SHOWN = 200


class Declared(msgspec.Struct, frozen=True):
    """A dag or flow that the application declares; of a dag, its definition."""

    name: str
    shape: str
    definition: Any = None


class DeclaredList(msgspec.Struct, frozen=True):
    items: list[Declared]


class NodeJob(msgspec.Struct, frozen=True):
    """An unfinished job of a node."""

    id: int
    state: str
    queue: str
    attempt: int
    progress: float | None
    note: str | None


class Node(msgspec.Struct, frozen=True):
    """A node of a run: `done` of `total` counts the items or nodes inside of one."""

    node: str
    state: str
    done: int | None
    total: int | None
    began: datetime | None
    ended: datetime | None
    note: str
    why: str
    carried: bool
    jobs: list[NodeJob]


class Tree(msgspec.Struct, frozen=True):
    """A run of a dag: every node, and where the run stands."""

    run_id: int
    state: str
    definition: Any
    nodes: list[Node]
    why: list[str]
    tick: int | None = None
    """The tick after which it is shown, if not as it is now."""


class Again(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Do again what did not succeed; with `start` that node too and all that follows, with `edited` other arguments."""

    start: str | None = None
    edited: Any = msgspec.UNSET


class Started(msgspec.Struct, frozen=True):
    """A run; `created` is false when one with this key was there already."""

    id: int
    created: bool


@get("/workflows", opt={"scope": "read"}, summary="Declared flows and dags")
async def get_workflows(desk: Desk) -> DeclaredList:
    """What can be started by name: `POST /runs`."""
    flows = [Declared(name, "flow") for name in desk.app.runs.flows]
    dags = [Declared(name, "dag", decode(dag.to_json())) for name, dag in desk.app.runs.dags.items()]
    return DeclaredList(flows + dags)


@get("/runs/{run_id:int}/tree", opt={"scope": "read"}, summary="The nodes of a dag's run")
async def get_tree(desk: Desk, run_id: int, at: int | None = None) -> Tree:
    """Every node with its state, progress and why; with `at`, as it was after that tick."""
    view = await (look(desk, run_id) if at is None else look_back(desk, run_id, at))
    nodes = msgspec.convert(nodes_json(view), list[Node])
    given = decode(view.row["input"])
    return Tree(run_id, view.run_state, given["dag"], nodes, why_run(view), view.tick)


@post("/runs/{run_id:int}/rerun", opt={"scope": "operate"}, status_code=201, summary="Repeat a dag's run")
async def rerun(desk: Desk, request: Request[Any, Any, Any], run_id: int, data: Again) -> Started:
    """A new run that does again what did not succeed in this one."""
    caller = caller_of(request)
    handle = await handle_of(desk, run_id)
    edited = UNSET if data.edited is msgspec.UNSET else data.edited
    again = await handle.rerun(start=data.start, edited=edited, by=caller.name)
    after = {"run": again.id, "start": data.start, "edited": edited is not UNSET}
    await desk.note(caller, "run.rerun", f"r{run_id}", after=after)
    return Started(again.id, again.created)


routes = [get_workflows, get_tree, rerun]


async def handle_of(desk: Desk, run_id: int) -> DagHandle:
    """A handle on a run of a dag."""
    require_dag(await find_run(desk, run_id))
    return DagHandle(desk.database, desk.app.runs.dag_kind, run_id, created=False)


async def find_run(desk: Desk, run_id: int) -> Any:
    """A run's row."""
    if not 0 < run_id < 2**63:
        raise NotFoundError(f"there is no run {run_id}")
    return await show_run(desk.database, run_id)


async def look(desk: Desk, run_id: int) -> View:
    """A run of a dag as it is now."""
    require_dag(await find_run(desk, run_id))
    row, snapshot, ticks = await load_run(desk.database, run_id)
    program, state = desk.app.runs.dag_kind.restore(row["input"], snapshot, ticks)
    if row["state"] == "cancelled" and state.status == "running":  # It was parked: nobody has told its nodes.
        program.reduce(state, CancelAsked(row["ended_at"].timestamp(), row["note"] or ""))
    found = await show_jobs_of_run(desk.database, run_id, limit=JOBS_SHOWN) if state.works else []
    return View(
        row=dict(row),
        program=program,
        state=state,
        now=time.time(),
        jobs=[readable(job) for job in found],
        all_jobs=len(found) < JOBS_SHOWN,
        keepers=await count_keepers(desk.database, DAG_KIND),
    )


async def look_back(desk: Desk, run_id: int, at: int) -> View:
    """A run of a dag as it was after one of its ticks."""
    row = await find_run(desk, run_id)
    require_dag(row)
    if not 0 <= at <= row["seq"]:
        raise ConfigError(f"run r{run_id} has ticks 1 to {row['seq']}; there is no tick {at}")
    ticks = await read_ticks(desk.database, run_id, limit=at) if at else []
    program, state = desk.app.runs.dag_kind.restore(row["input"], None, [tick["data"] for tick in ticks])
    now = decode_tick(ticks[-1]["data"]).at if ticks else row["created_at"].timestamp()
    return View(row=dict(row), program=program, state=state, now=now, tick=at)


def require_dag(row: Any) -> None:
    """An error if a run is not one of a dag."""
    if row["kind"] != DAG_KIND:
        raise ConfigError(f"run r{row['id']} is of flow {row['workflow']}, and not of a dag")
