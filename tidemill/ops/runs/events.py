"""Send an event to a run, and fork a run after one of its ticks."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from tidemill.core.codec import encode
from tidemill.declarations import Declarations
from tidemill.engine.jobs.origin import origin_here
from tidemill.ops.operator.operation import Arguments, doc, operation
from tidemill.ops.runs.runs import RunRef, RunStarted, deliver, find_flow
from tidemill.store.runs.runs import known_events, new_token
from tidemill.store.transaction import Transaction


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


class EventStored(msgspec.Struct, frozen=True):
    """The event is stored, and wakes the run if it sleeps."""

    run_id: int
    type: str


@operation("POST /runs/{id}/events", role="operator", status=202)
async def send_event(tx: Transaction, args: SendEvent, declared: Declarations | None) -> EventStored:
    """Send an event to a flow's run: it is stored when this returns.

    Without the application, its class must be one that run workers know; its fields are checked when the run takes it.
    """
    from tidemill.flows.runner.sending import check_is_known, check_step, event_tick, named_event, unchecked_tick

    row = await find_flow(tx, args.id)
    token = new_token()
    if declared is None:
        check_is_known(args.type, await known_events(tx, args.id))
        tick = unchecked_tick(args.type, args.fields, args.step, token)
    else:
        workflow = declared.runs.flow(row["workflow"]).workflow
        if args.step is not None:
            check_step(workflow, args.step)
        tick = event_tick(named_event(workflow, args.type, args.fields), args.step, token)
    await deliver(tx, args.id, tick)
    await tx.audit("run.send", f"r{args.id}", after={"type": args.type, "step": args.step})
    return EventStored(args.id, args.type)


@operation("POST /runs/{id}/fork", role="operator", status=201)
async def fork_run(tx: Transaction, args: ForkRun, declared: Declarations) -> RunStarted:
    """Start a new run where a flow's run was after a tick."""
    from tidemill.flows.runner.fork import fork
    from tidemill.flows.runner.sending import named_event

    row = await find_flow(tx, args.id)
    workflow = declared.runs.flow(row["workflow"]).workflow
    event = None if args.event is None else named_event(workflow, args.event.type, args.event.fields)
    number = await fork(tx, workflow, args.id, at=args.at, origin=encode(origin_here(tx.by)), event=event)
    await tx.audit("run.fork", f"r{args.id}", after={"run": number, "at": args.at})
    return RunStarted(number, True)
