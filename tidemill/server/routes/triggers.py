"""Workflow files that run once for each event: a webhook stores the event as a job, and a worker runs the workflow."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request, get, post
from litestar.params import FromPath, JSONBody

from tidemill.core.errors import NotFoundError
from tidemill.core.schedule import describe
from tidemill.ops.jobs import Enqueued
from tidemill.server.server_state import TheServerState, caller_of
from tidemill.store.audit import write_audit
from tidemill.store.jobs.insert import insert_jobs


class Trigger(msgspec.Struct, frozen=True):
    """A workflow that an event or a schedule runs once; `starts` are the nodes that get the event."""

    name: str
    nodes: list[str]
    starts: list[str]
    schedules: list[str]
    task: str
    """The task whose jobs run it."""


class Triggers(msgspec.Struct, frozen=True):
    items: list[Trigger]


@get("/triggers", opt={"scope": "read"}, summary="Workflows that events run")
async def get_triggers(server_state: TheServerState) -> Triggers:
    """The workflow files with `"mode": "trigger"` of the application's folder, and those that it declares itself."""
    return Triggers(
        [
            Trigger(
                name,
                [node.name for node in workflow.graph.nodes.values()],
                [workflow.graph.nodes[id].name for id in workflow.starts],
                [describe(schedule) for schedule in workflow.schedules],
                server_state.app.pipelines.trigger_task(name).name,
            )
            for name, workflow in server_state.app.pipelines.triggers.items()
        ]
    )


@post("/triggers/{name:str}", opt={"scope": "operate"}, status_code=202, summary="Run a workflow once")
async def trigger(
    server_state: TheServerState, request: Request[Any, Any, Any], name: FromPath[str], data: JSONBody[Any]
) -> Enqueued:
    """Run a workflow once, with the JSON of the request as its event. When this is answered, the event is stored;
    `GET /jobs/{id}` has what each node gave. With an `Idempotency-Key`, an event that is sent twice runs once."""
    if name not in server_state.app.pipelines.triggers:
        known = ", ".join(server_state.app.pipelines.triggers) or "none"
        raise NotFoundError(f"this server's application declares no workflow {name!r} for events; it declares: {known}")
    caller = caller_of(request)
    task = server_state.app.pipelines.trigger_task(name)
    job = task.new_job(task.signature.bind((data,), {}), origin=server_state.origin(caller))
    async with server_state.database.transaction(patience=10.0) as connection:
        (ref,) = await insert_jobs(server_state.database, connection, [job], notify=True)
        await write_audit(
            server_state.database,
            connection,
            who=caller.name,
            action="workflow.trigger",
            target=name,
            after={"job": ref.id},
        )
    return Enqueued(ref.id, ref.created)


routes = [get_triggers, trigger]
