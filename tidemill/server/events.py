"""From what a request says to what a run takes: start events, events for a run, new runs."""

from __future__ import annotations

from typing import Any

import msgspec

from tidemill.core.codec import encode
from tidemill.core.errors import ConfigError
from tidemill.dags.runner import DAG_KIND, DagInput
from tidemill.flows.declared import declared
from tidemill.flows.durable import FlowKind
from tidemill.flows.sending import named_event
from tidemill.flows.wire import encode_event
from tidemill.server.access import Caller
from tidemill.server.desk import Desk
from tidemill.store.runs import start_run


def flow_of(desk: Desk, name: str) -> FlowKind:
    """The declared flow of this name."""
    kind = desk.app.runs.flows.get(name)
    if kind is None:
        known = ", ".join(desk.app.runs.flows) or "none"
        raise ConfigError(f"this server's application declares no flow {name!r}; it declares: {known}")
    return kind


def read_event(desk: Desk, workflow: str, name: str, fields: dict[str, Any]) -> Any:
    """An event of an application by the name of its class, checked before it goes anywhere."""
    return named_event(flow_of(desk, workflow).workflow, name, fields)


async def start(desk: Desk, caller: Caller, workflow: str, args: dict[str, Any], key: str | None) -> tuple[int, bool]:
    """Store a new run of a flow or a dag; a keeper takes it up."""
    if key is not None and (not key or len(key) > 400 or not key.isprintable() or key.startswith("~")):
        raise ConfigError("a run's key has 1 to 400 printable characters and does not begin with '~'")
    origin = encode(desk.origin(caller))
    dag = await desk.app.runs.find_dag(workflow)
    if dag is None:
        kind = flow_of(desk, workflow)
        event = declared(kind.workflow).start_event(None, args)
        return await start_run(
            desk.database,
            workflow=kind.name,
            version=kind.version,
            input=encode_event(event),
            key=key,
            origin=origin,
        )
    text = dag.to_json()
    return await start_run(
        desk.database,
        workflow=dag.name,
        version=desk.app.runs.dag_kind.program(text).version,
        input=encode(DagInput(msgspec.Raw(text), args)),
        key=key,
        origin=origin,
        kind=DAG_KIND,
    )
