"""The role of a stream: its dispatcher with a lease and a report of its counts."""

from __future__ import annotations

from tidemill.engine.roles.lease import Lease
from tidemill.engine.roles.role import Role
from tidemill.engine.telemetry.meter import MeterReporter
from tidemill.store.database import Database
from tidemill.streams.definition.stream import Stream
from tidemill.streams.runner.dispatcher import Dispatcher, ServeStream


def dispatcher_role(
    stream: Stream,
    database: Database,
    *,
    target: str | None = None,
    serve: ServeStream | None = None,
    lease_seconds: float = 15.0,
    heartbeat_seconds: float = 3.0,
) -> Role[Dispatcher]:
    """A dispatcher of a stream as a role. A first stop drains it, a second ends it at once."""
    dispatcher = Dispatcher(stream, database, target=target, serve=serve)
    name = f"stream {stream.name}"
    lease = Lease(
        database,
        dispatcher.describe,
        lease_seconds=lease_seconds,
        heartbeat_seconds=heartbeat_seconds,
        process_status=dispatcher.process_status,
    )
    reporter = MeterReporter(database, dispatcher.meter, name)
    return Role(dispatcher, database, lease=lease, reporter=reporter, name=name)
