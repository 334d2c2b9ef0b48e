"""Batches: jobs that are followed and cancelled as one."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec

from tidemill.core.encoding.json_rows import readable, zoned
from tidemill.core.errors import ConfigError
from tidemill.core.jobs.batch import BATCH_FACTS, NewBatch
from tidemill.core.jobs.job import Callback
from tidemill.declarations import Declarations
from tidemill.engine.explain import explain_batch
from tidemill.engine.jobs.calls import MappedCalls, jobs_of_calls
from tidemill.engine.jobs.enqueue_options import OPTIONS_FOR_MANY
from tidemill.engine.jobs.origin import origin_here
from tidemill.engine.models.spec import require_model
from tidemill.ops.jobs.job_options import OptionsOfJobs
from tidemill.ops.operator.cursor import following, read_cursor
from tidemill.ops.operator.operation import Arguments, Cursor, Limit, PageOf, doc, operation
from tidemill.ops.operator.task_roles import check_tasks
from tidemill.store.jobs.batches.batch_end import end_batches
from tidemill.store.jobs.batches.batches import (
    CLOSE_BATCH,
    LIST_BATCHES,
    add_statements,
    cancel_jobs_of,
    new_batch_statements,
    request_cancel,
    show_batch,
)
from tidemill.store.jobs.insert import run_statements
from tidemill.store.jobs.pages import Word
from tidemill.store.transaction import Reader, Transaction

MOST_JOBS = 100_000
STATES = ("running", "succeeded", "failed", "cancelled")


class BatchNumber(Arguments, frozen=True, kw_only=True):
    """Which batch."""

    id: Annotated[int, doc("The batch's number: 12 of b12.")]


class ListBatches(Arguments, frozen=True, kw_only=True):
    """Which batches to list, and which page of them."""

    state: Annotated[str | None, doc("Batches in this state: running, succeeded, failed or cancelled.")] = None
    name: Annotated[Word | None, doc("Batches whose name contains this text.")] = None
    since: Annotated[datetime | None, doc("Batches that were created at this time or later.")] = None
    until: Annotated[datetime | None, doc("Batches that were created before this time.")] = None
    limit: Limit = 50
    cursor: Cursor = None


class EnqueueBatch(OptionsOfJobs, frozen=True, kw_only=True):
    """A batch to enqueue: a task, the arguments of each job, and what follows from its end."""

    task: Annotated[str, doc("The name of the task.")]
    each: Annotated[list[dict[str, Any]], doc("The arguments of each job.", max_length=MOST_JOBS)]
    name: Annotated[Word | None, doc("What it is called, for people.")] = None
    on_success: Annotated[str | None, doc("The task to enqueue when all jobs have succeeded.")] = None
    on_complete: Annotated[str | None, doc("The task to enqueue when all jobs have ended.")] = None
    keep_open: Annotated[bool, doc("Do not end before the batch is closed: more jobs are added.")] = False


class BatchLine(msgspec.Struct, frozen=True, kw_only=True):
    """A batch, and how many of its jobs ended how."""

    id: int
    name: str | None
    state: Annotated[str, doc("running, succeeded (all jobs have), cancelled, or failed (some did not succeed).")]
    is_open: Annotated[bool, doc("It accepts more jobs and does not end before it is closed.")]
    total: int
    unfinished: int
    succeeded: int
    failed: int
    cancelled: int
    expired: int
    created_at: datetime
    ended_at: datetime | None
    cancel_reason: str | None
    run_id: Annotated[int | None, doc("The run that waits for it.")]
    on_success: Annotated[str | None, doc("The task that is enqueued when all jobs have succeeded.")]
    on_complete: Annotated[str | None, doc("The task that is enqueued when all jobs have ended.")]


class BatchDetails(BatchLine, frozen=True, kw_only=True):
    """Everything about one batch, and why it is in its state."""

    origin: dict[str, Any] | None
    why: list[str]


@operation("GET /batches", role="viewer")
async def list_batches(at: Reader, args: ListBatches) -> PageOf[BatchLine]:
    """List batches, the newest first."""
    if args.state is not None and args.state not in STATES:
        raise ConfigError(f"there is no state {args.state!r} of batches; the states are {', '.join(STATES)}")
    before, times = read_cursor(args.cursor) or 2**63 - 1, (zoned(args.since), zoned(args.until))
    rows = await at.fetch(LIST_BATCHES, before, args.limit, args.state, args.name, *times)
    lines = [BatchLine(**{name: row[name] for name in BatchLine.__struct_fields__}) for row in rows]
    return PageOf(lines, following([line.id for line in lines], args.limit))


@operation("GET /batches/{id}", role="viewer")
async def get_batch(at: Reader, args: BatchNumber) -> BatchDetails:
    """Everything about one batch: how many of its jobs ended how, and what it waits for."""
    return await _read(at, args.id)


@operation("POST /batches", role="operator", status=201)
async def enqueue_batch(tx: Transaction, args: EnqueueBatch, declared: Declarations) -> BatchDetails:
    """Enqueue jobs of a task as a batch; all of them are stored when this returns."""
    callbacks = {each: task for each in ("on_success", "on_complete") if (task := getattr(args, each)) is not None}
    check_tasks(tx, declared, [args.task, *callbacks.values()])
    task, origin = declared.tasks.require(args.task), origin_here(tx.by)
    made: dict[str, Callback] = {
        each: declared.tasks.require(name).callback(BATCH_FACTS, of="batches") for each, name in callbacks.items()
    }
    new = NewBatch(origin, args.name, args.keep_open, made.get("on_success"), made.get("on_complete"))
    ref = await run_statements(tx.database, tx.connection, new_batch_statements(tx.database, new))
    options = {name: getattr(args, name) for name in OPTIONS_FOR_MANY}
    require_model(args.required_model, declared.models)
    declared.check_webhook(options, task)
    many = jobs_of_calls(MappedCalls(task, args.each), options, origin=origin, batch=ref.id)
    jobs = many.each() if many.calls else []
    await run_statements(tx.database, tx.connection, add_statements(tx.database, ref.id, jobs))
    await end_batches(tx.database, [ref.id], tx.connection)
    after = {"task": args.task, "jobs": len(args.each), "name": args.name}
    await tx.audit("batch.enqueue", f"b{ref.id}", after=after)
    return await _read(tx, ref.id)


@operation("POST /batches/{id}/close", role="operator")
async def close_batch(at: Reader, args: BatchNumber) -> BatchDetails:
    """Let a batch that was kept open end when its jobs have."""
    if (await _read(at, args.id)).is_open:
        async with at.transaction() as tx:
            await tx.execute(CLOSE_BATCH, args.id)
            await tx.audit("batch.close", f"b{args.id}")
        # Only after the commit: until then, a worker that ends the last job takes the batch for open.
        await end_batches(at.database, [args.id])
    return await _read(at, args.id)


@operation("POST /batches/{id}/cancel", role="operator")
async def cancel_batch(at: Reader, args: BatchNumber) -> BatchDetails:
    """Cancel the unfinished jobs of a batch: waiting ones at once, running ones as soon as they can be stopped."""
    before = await _read(at, args.id)
    async with at.transaction() as tx:
        reason = await request_cancel(tx, args.id)
        if reason is not None:
            await tx.audit("batch.cancel", f"b{args.id}", before={"unfinished": before.unfinished})
    if reason is not None:
        await cancel_jobs_of(at.database, args.id, reason)
    return await _read(at, args.id)


async def _read(at: Reader | Transaction, id: int) -> BatchDetails:
    known = readable(await show_batch(at, id))
    fields = {name: value for name, value in known.items() if name in BatchDetails.__struct_fields__}
    return BatchDetails(**fields, why=explain_batch(known))
