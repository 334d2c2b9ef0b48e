"""Workflow files that run once for each event: a webhook stores the event as a job, and a worker runs the workflow."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import msgspec

from tidemill.core.accounts import AccountRole
from tidemill.core.did_you_mean import did_you_mean
from tidemill.core.errors import NotFoundError
from tidemill.core.schedule import describe
from tidemill.declarations import Declarations
from tidemill.engine.jobs.origin import origin_here
from tidemill.ops.jobs.jobs import Enqueued
from tidemill.ops.operator.operation import Arguments, ListOf, Nothing, doc, operation
from tidemill.ops.operator.task_roles import check_tasks
from tidemill.store.jobs.insert import insert_jobs
from tidemill.store.transaction import Reader, Transaction


class RunTrigger(Arguments, frozen=True, kw_only=True):
    """Which workflow to run, and its event."""

    name: Annotated[str, doc("The workflow.")]
    payload: Annotated[Any, doc("The event: any JSON.")] = None


class TriggerLine(msgspec.Struct, frozen=True):
    """A workflow that an event or a schedule runs once; `starts` are the nodes that get the event."""

    name: str
    nodes: list[str]
    starts: list[str]
    schedules: list[str]
    task: str
    """The task whose jobs run it."""
    role: AccountRole
    """What a caller needs to run it: the role of its most powerful node."""
    webhook: str | None = None
    """Where senders that sign may post events without a token, if the workflow declares a signature."""
    signature: str | None = None
    """The form of that signature: hmac-sha256, github or stripe."""


@operation("GET /triggers", role="viewer")
async def list_triggers(at: Reader, args: Nothing, declared: Declarations) -> ListOf[TriggerLine]:
    """List the workflows with `"mode": "trigger"`: files of the application's folder, and those that it declares."""
    return ListOf(
        [
            TriggerLine(
                name,
                [node.name for node in workflow.graph.nodes.values()],
                [workflow.graph.nodes[id].name for id in workflow.starts],
                [describe(schedule) for schedule in workflow.schedules],
                declared.pipelines.trigger_task(name).name,
                "admin" if workflow.admin_nodes else "operator",
                None if workflow.signature is None else f"/api/v1/webhooks/{quote(name, safe='')}",
                None if workflow.signature is None else workflow.signature.form,
            )
            for name, workflow in declared.pipelines.triggers.items()
        ]
    )


@operation("POST /triggers/{name}", role="operator", status=202, body="payload")
async def run_trigger(tx: Transaction, args: RunTrigger, declared: Declarations) -> Enqueued:
    """Run a workflow once, with the JSON of the request as its event. The event is stored when this returns.

    `GET /jobs/{id}` has what each node returned. With an `Idempotency-Key`, an event that is sent twice runs once.
    """
    if args.name not in declared.pipelines.triggers:
        known, hint = ", ".join(declared.pipelines.triggers), did_you_mean(args.name, declared.pipelines.triggers)
        raise NotFoundError(f"there is no workflow {args.name!r} for events; there are: {known or 'none'}{hint}")
    task = declared.pipelines.trigger_task(args.name)
    check_tasks(tx, declared, [task.name])
    origin = origin_here(tx.by)
    job = task.new_job(task.signature.bind((args.payload,), {}), origin=origin)
    (ref,) = await insert_jobs(tx.database, tx.connection, [job], notify=True)
    await tx.audit("workflow.trigger", args.name, after={"job": ref.id})
    return Enqueued(ref.id, ref.created)
