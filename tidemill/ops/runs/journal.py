"""What a run has done: its ticks, its state after one of them, and what its steps logged."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tidemill.core.codec import decode, mask_secrets
from tidemill.core.encoding.json_rows import value_of
from tidemill.core.errors import ConfigError
from tidemill.declarations import Declarations
from tidemill.ops.jobs.logs import LogLine, read_lines
from tidemill.ops.operator.operation import ListOf, doc, operation
from tidemill.ops.runs.runs import RunRef, dag_kind, find_run, is_dag
from tidemill.store.database import Database
from tidemill.store.jobs.pages import Word
from tidemill.store.large_values import cut_value
from tidemill.store.runs.describe import describe_ticks
from tidemill.store.runs.log import read_step_logs
from tidemill.store.runs.runs import load_run, read_ticks
from tidemill.store.runs.versions import flow_definitions
from tidemill.store.transaction import Reader

TickNumber = Annotated[int, Meta(ge=0, le=2**62)]


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
    whole: Annotated[bool, doc("Show the state whole, however large it is.")] = False


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


@operation("GET /runs/{id}/ticks", role="viewer")
async def get_ticks(at: Reader, args: GetTicks) -> Journal:
    """The journal of a run, in order, from a tick on."""
    row = await find_run(at, args.id)
    rows = await describe_ticks(at.database, args.id, after=args.after, limit=args.limit)
    return Journal([_tick(each) for each in rows], row["seq"])


@operation("GET /runs/{id}/log", role="viewer")
async def get_run_log(at: Reader, args: GetRunLog) -> ListOf[StepAttemptLog]:
    """The last lines that each attempt at a step logged, the last attempt first.

    A step on a queue logs with its job: `GET /jobs/{id}/log`.
    """
    await find_run(at, args.id)
    rows = await read_step_logs(at.database, args.id, step=args.step, limit=args.limit)
    return ListOf([StepAttemptLog(**{**row, "lines": read_lines(row["lines"])}) for row in rows])


@operation("GET /runs/{id}/state", role="viewer")
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
        return _state_at(args, tick, total, decode(encode_state(view.state)))
    if declared is None:
        raise ConfigError(f"the ticks of run r{args.id} are folded by the code of its workflow: add --app app.py")
    from tidemill.flows.encoding.snapshot import encode_state
    from tidemill.flows.runner.restore import replay_ticks

    workflow = declared.runs.flow(row["workflow"]).workflow
    ticks = await read_ticks(at.database, args.id, limit=tick) if tick else []
    if tick and (not ticks or ticks[0]["seq"] != 1):
        return _state_at(args, tick, total, await _state_now(at, args.id, workflow, is_last=tick == total))
    definitions = await flow_definitions(at.database, row["kind"])

    def fold() -> Any:
        state, timers, _ = replay_ticks(workflow, [each["data"] for each in ticks], definitions)
        return {**mask_secrets(decode(encode_state(state))), "timers": timers}

    return _state_at(args, tick, total, await asyncio.to_thread(fold))


def _state_at(args: GetStateAt, tick: int, total: int, state: Any) -> StateAt:
    """The state, or the beginning of one that is too large for an answer."""
    whole = f"/api/v1/runs/{args.id}/state?at={tick}&whole=true"
    return StateAt(args.id, tick, total, state if args.whole else cut_value(state, whole))


async def _state_now(at: Reader, id: int, workflow: Any, *, is_last: bool) -> Any:
    """The state of a run that has continued as new, whose older ticks are gone."""
    from tidemill.flows.encoding.snapshot import encode_state

    if not is_last:
        raise ConfigError(f"run r{id} has continued as new, so that its older ticks are gone: leave the tick out")
    return mask_secrets(decode(encode_state(await load_state(at.database, id, workflow))))


async def load_state(database: Database, id: int, workflow: Any) -> Any:
    """The present state of a flow's run, as this version of its workflow sees it."""
    from tidemill.flows.runner.restore import restore

    row, snapshot, ticks = await load_run(database, id)
    version, definitions = row["version"], await flow_definitions(database, row["kind"])
    return restore(workflow, snapshot, ticks, version=version, definition=definitions.get(version)).state


def _tick(row: Any) -> Tick:
    moment = None if row["at"] is None else datetime.fromtimestamp(float(row["at"]), UTC)
    return Tick(row["seq"], row["kind"] or "", moment, value_of(row["data"]))
