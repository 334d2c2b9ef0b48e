"""Traces of alerts: a span for each new alert, below the message of its last event, with links to those before."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.core.codec import decode
from tidemill.engine.telemetry.tracing import alert_span, is_tracing
from tidemill.monitors.reducer.entity_state import AlertRecord
from tidemill.store.database import Database, Executor
from tidemill.store.monitors.monitors import read_traces


async def trace_alerts(
    database: Database, connection: Executor, monitor: str, alerts: Sequence[tuple[int, AlertRecord]]
) -> dict[int, str]:
    """Make the spans of new alerts, given with their ids; returns the trace that the notices of each continue."""
    if not is_tracing():
        return {}
    found: dict[int, str] = {}
    for id, alert in alerts:
        events = decode(alert.explain)["events"] if alert.explain else []
        traces = await read_traces(database, connection, monitor, [(each["id"], each["at"]) for each in events])
        about = {"tidemill.monitor": monitor, "tidemill.alert.id": id, "tidemill.entity": alert.entity}
        made = alert_span(f"alert {monitor}.{alert.trigger}", traces, about)
        if made is not None:
            found[id] = made
    return found
