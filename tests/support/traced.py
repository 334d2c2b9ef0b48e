"""An application whose isolated task tells which trace it runs in."""

from __future__ import annotations

from tidemill import App
from tidemill.engine.telemetry.tracing import current_trace

app = App("test")


@app.task(queue="mail", isolation="process")
def alone() -> str | None:
    """The trace of this code, in a process of its own."""
    return current_trace()
