"""Cancel runs, and retry those that need attention."""

from __future__ import annotations

import time
from typing import Annotated, Any

import msgspec

from tidemill.core.errors import ConfigError, ConflictError
from tidemill.core.ticks import CancelAsked, Resumed
from tidemill.ops.operator.bulk import SAMPLE, Preview
from tidemill.ops.operator.operation import Arguments, doc, operation
from tidemill.ops.runs.runs import RunRef, find_flow, find_run, is_dag, stored_id
from tidemill.store.access.audit import targets
from tidemill.store.jobs.pages import RunFilter, match_runs
from tidemill.store.runs.inbox import cancel_within, retry_stopped
from tidemill.store.runs.runs import LIVE_RUN_STATES, find_runs
from tidemill.store.transaction import Reader, Transaction

MOST_RUNS = 10_000


MOST_NAMED = 1_000


class CancelRun(RunRef, frozen=True, kw_only=True):
    """Which run to cancel, and why."""

    reason: Annotated[str | None, doc("Why, for the run's note.")] = None


class RunSelection(Arguments, frozen=True, kw_only=True):
    """Which runs: by their ids, or all unfinished ones that match a filter."""

    ids: Annotated[list[int] | None, doc("The runs' ids.")] = None
    filter: Annotated[RunFilter | None, doc("Conditions that the runs match.")] = None
    reason: Annotated[str | None, doc("Why, for the runs' notes.")] = None


class RunsAsked(msgspec.Struct, frozen=True):
    """Which runs were asked to end, and how many had ended already."""

    count: int
    ids: list[int]
    unchanged: int


@operation("POST /runs/{id}/retry", role="operator", status=202)
async def retry_run(tx: Transaction, args: RunRef) -> RunsAsked:
    """Start a flow's run again that needs attention: its steps in progress count as failed attempts."""
    from tidemill.flows.encoding.journal import encode_tick
    from tidemill.flows.reducer.reducer import RULES

    row = await find_flow(tx, args.id)
    tick = encode_tick(Resumed(time.time(), queued=True, rules=RULES, afresh=True))
    if not await retry_stopped(tx, args.id, tick):
        ways = (
            ""
            if row["state"] == "running"
            else f"; `tidemill fork r{args.id} --at TICK` goes on after one of its ticks"
        )
        raise ConflictError(f"run r{args.id} does not need attention: its state is {row['state']}{ways}")
    await tx.audit("run.retry", f"r{args.id}")
    return RunsAsked(1, [args.id], 0)


@operation("POST /runs/{id}/cancel", role="operator", status=202)
async def cancel_run(tx: Transaction, args: CancelRun) -> RunsAsked:
    """Ask a run to end: its steps and jobs are stopped."""
    row = await find_run(tx, args.id)
    if not await _cancel(tx, row, args.reason):
        raise ConflictError(f"run r{args.id} has ended already: {row['state']}")
    after = {"asked": True, "reason": args.reason}
    await tx.audit("run.cancel", f"r{args.id}", before={"state": row["state"]}, after=after)
    return RunsAsked(1, [args.id], 0)


@operation("POST /runs/cancel/preview", role="viewer")
async def preview_cancel_runs(at: Reader, args: RunFilter) -> Preview:
    """Count the unfinished runs that a cancel by this filter would reach."""
    ids = await match_runs(at.database, args.live, limit=MOST_RUNS + 1)
    return Preview(min(len(ids), MOST_RUNS), len(ids) > MOST_RUNS, ids[:SAMPLE], ids[0] if ids else None)


@operation("POST /runs/cancel", role="operator", status=202, preview=preview_cancel_runs)
async def cancel_runs(at: Reader, args: RunSelection) -> RunsAsked:
    """Ask runs to end: those that are named, or all unfinished ones that match."""
    if (args.ids is None) == (args.filter is None) or args.ids == []:
        raise ConfigError("say which runs: either `ids`, or a `filter`")
    if args.ids is not None and len(args.ids) > MOST_RUNS:
        raise ConfigError(f"{len(args.ids):,} ids are too many at once: {MOST_RUNS:,} is the most")
    if args.filter is not None:
        ids = await match_runs(at.database, args.filter.live, limit=MOST_RUNS)
    else:
        ids = [stored_id(each) for each in dict.fromkeys(args.ids or ())]
    rows = await find_runs(at.database, ids)
    live = {row["id"]: row["state"] for row in rows if row["state"] in LIVE_RUN_STATES}
    if live:
        # Audited first, because the loop below commits run by run and may stop half-way.
        async with at.transaction() as tx:
            after = {"asked": list(live), "reason": args.reason, "filter": args.filter}
            await tx.audit("run.cancel", targets(list(live), "r"), before=live, after=after)
    reached: list[int] = []
    for row in rows:  # A transaction for each run avoids deadlocks: run workers lock many runs, in another order.
        async with at.transaction() as tx:
            if await _cancel(tx, row, args.reason):
                reached.append(row["id"])
    return RunsAsked(len(reached), reached[:MOST_NAMED], len(rows) - len(reached))


async def cancel_run_within(tx: Transaction, id: int, why: str) -> bool:
    """Ask a run to end when the transaction commits; False if it has ended already."""
    return await _cancel(tx, await find_run(tx, id), why)


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
