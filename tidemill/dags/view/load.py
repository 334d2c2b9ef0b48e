"""Reads a run of a dag from the database, as it is now or as it was after one of its ticks."""

from __future__ import annotations

import time
from typing import Any

from tidemill.core.encoding.json_rows import JOB_JSON, readable
from tidemill.core.errors import ConfigError
from tidemill.core.ticks import CancelAsked
from tidemill.dags.errors import DagError
from tidemill.dags.reducer.journal import decode_tick
from tidemill.dags.reducer.reducer import DagProgram
from tidemill.dags.reducer.state import DagState
from tidemill.dags.runner.runner import DagKind
from tidemill.dags.view.view import DagView
from tidemill.store.database import Database
from tidemill.store.jobs.read import show_jobs_of_run
from tidemill.store.runs.claims import DAG_KIND
from tidemill.store.runs.rates import read_rate_wait
from tidemill.store.runs.runs import load_run, read_ticks, show_run
from tidemill.store.runs.workers import count_run_workers


async def load_view(database: Database, kind: DagKind, run_id: int, *, jobs: int) -> DagView:
    """Load the current state of a run for display, with at most `jobs` of its unfinished jobs."""
    row, program, state = await load_state(database, kind, run_id)
    found = await show_jobs_of_run(database, run_id, limit=jobs) if jobs and state.works else []
    return DagView(
        row=dict(row),
        program=program,
        state=state,
        now=time.time(),
        jobs=[readable(job, JOB_JSON) for job in found],
        all_jobs=len(found) < jobs,
        run_workers=await count_run_workers(database, DAG_KIND),
        rate=None if row["rate_key"] is None else await read_rate_wait(database, run_id),
    )


async def load_view_at(database: Database, kind: DagKind, run_id: int, tick: int) -> DagView:
    """Load the state of a run after one of its ticks, for display."""
    row = await show_run(database, run_id)
    require_dag(row)
    if not 0 <= tick <= row["seq"]:
        raise ConfigError(f"run r{run_id} has ticks 1 to {row['seq']}; there is no tick {tick}")
    ticks = await read_ticks(database, run_id, limit=tick) if tick else []
    program, state = _restored(kind, row, None, [each["data"] for each in ticks])
    now = decode_tick(ticks[-1]["data"]).at if ticks else row["created_at"].timestamp()
    return DagView(row=dict(row), program=program, state=state, now=now, tick=tick)


async def load_state(database: Database, kind: DagKind, run_id: int) -> tuple[Any, DagProgram, DagState]:
    """Load the row of a run, its program and its current state."""
    row, snapshot, ticks = await load_run(database, run_id)
    require_dag(row)
    program, state = _restored(kind, row, snapshot, ticks)
    # The run needed attention or never began, so that no owner has ended its nodes.
    if row["state"] in ("cancelled", "expired") and state.status == "running":
        program.reduce(state, CancelAsked(row["ended_at"].timestamp(), row["note"] or ""))
    return row, program, state


def require_dag(row: Any) -> None:
    """Raise a `ConfigError` if the row is not that of a dag run."""
    if row["kind"] != DAG_KIND:
        raise ConfigError(
            f"run r{row['id']} is of workflow {row['workflow']}, and not of a dag: tidemill run r{row['id']}"
        )


def _restored(kind: DagKind, row: Any, snapshot: bytes | None, ticks: list[bytes]) -> tuple[DagProgram, DagState]:
    try:
        return kind.restore(row["input"], snapshot, ticks)
    except DagError as error:
        raise ConfigError(
            f"{error}; if the application of run r{row['id']} has refs of its own, name it: --app app.py"
        ) from error
