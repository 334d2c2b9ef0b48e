"""Workflow files: run those for events, whose events are stored as jobs, and switch any of them off and on."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import msgspec

from tidemill.core.accounts import AccountRole
from tidemill.core.did_you_mean import did_you_mean
from tidemill.core.errors import ConflictError, NotFoundError
from tidemill.core.schedule import describe
from tidemill.declarations import Declarations
from tidemill.engine.jobs.origin import origin_here
from tidemill.ops.jobs.jobs import Enqueued
from tidemill.ops.operator.operation import Arguments, ListOf, Nothing, doc, operation
from tidemill.ops.operator.task_roles import check_tasks
from tidemill.pipelines.view.pipeline_cache import cache_of
from tidemill.store.jobs.insert import insert_jobs
from tidemill.store.states.requests import set_paused
from tidemill.store.states.workflows import find_disabled, set_disabled
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
    disabled_by: str | None = None
    """Who has disabled it: events are refused, and its schedules do not fire."""


class WorkflowName(Arguments, frozen=True, kw_only=True):
    """Which workflow."""

    name: Annotated[str, doc("The workflow: the name of its file without its ending, unless the file has a name.")]


class WorkflowSwitch(msgspec.Struct, frozen=True):
    """Whether a workflow is enabled."""

    name: str
    is_enabled: bool


@operation("GET /triggers", role="viewer")
async def list_triggers(at: Reader, args: Nothing, declared: Declarations) -> ListOf[TriggerLine]:
    """List the workflows with `"mode": "trigger"`: files of the application's folder, and those that it declares."""
    disabled = await find_disabled(at.database, declared.pipelines.triggers)
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
                disabled.get(name),
            )
            for name, workflow in declared.pipelines.triggers.items()
        ]
    )


@operation("POST /triggers/{name}", role="operator", status=202, body="payload")
async def run_trigger(tx: Transaction, args: RunTrigger, declared: Declarations) -> Enqueued:
    """Run a workflow once, with the JSON of the request as its event. The event is stored when this returns.

    `GET /jobs/{id}` has what each node returned. With an `Idempotency-Key`, an event that is sent twice runs once.
    A workflow that is disabled refuses its events: the sender has them still.
    """
    if args.name not in declared.pipelines.triggers:
        known, hint = ", ".join(declared.pipelines.triggers), did_you_mean(args.name, declared.pipelines.triggers)
        raise NotFoundError(f"there is no workflow {args.name!r} for events; there are: {known or 'none'}{hint}")
    if await find_disabled(tx, [args.name]):  # Senders of webhooks do not learn who did it.
        raise ConflictError(f"workflow {args.name} is disabled: the event was not stored")
    task = declared.pipelines.trigger_task(args.name)
    check_tasks(tx, declared, [task.name])
    origin = origin_here(tx.by)
    job = task.new_job(task.signature.bind((args.payload,), {}), origin=origin)
    (ref,) = await insert_jobs(tx.database, tx.connection, [job], notify=True)
    await tx.audit("workflow.trigger", args.name, after={"job": ref.id})
    return Enqueued(ref.id, ref.created)


@operation("POST /workflows/{name}/disable", role="operator")
async def disable_workflow(at: Reader, args: WorkflowName, declared: Declarations) -> WorkflowSwitch:
    """Let a workflow start nothing: its webhook refuses events, its schedules and its state triggers do not fire.

    What has begun goes on, and what waits as a job is run. A workflow file that is a pipeline is paused.
    """
    return await _switch(at, args.name, declared, disabled=True)


@operation("POST /workflows/{name}/enable", role="operator")
async def enable_workflow(at: Reader, args: WorkflowName, declared: Declarations) -> WorkflowSwitch:
    """Let a disabled workflow start again: events are accepted, and its schedules fire from now on.

    A schedule that is paused stays paused.
    """
    return await _switch(at, args.name, declared, disabled=False)


async def _switch(at: Reader, name: str, declared: Declarations, *, disabled: bool) -> WorkflowSwitch:
    pipelines = declared.pipelines
    is_pipeline = name in pipelines.known
    if name not in pipelines.triggers and not is_pipeline:
        known = sorted({*pipelines.triggers, *pipelines.known})
        raise NotFoundError(
            f"there is no workflow {name!r}; there are: {', '.join(known) or 'none'}{did_you_mean(name, known)}"
        )
    async with at.transaction() as tx:
        if name in pipelines.triggers:
            await set_disabled(tx, name, disabled=disabled)
        if is_pipeline:
            await set_paused(tx, name, "", paused=disabled)
    if is_pipeline:
        cache_of(at.database, pipelines).has_changed(name)
    return WorkflowSwitch(name, not disabled)
