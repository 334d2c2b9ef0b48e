"""Routes that are not operations: sessions, streams, files, pages; and those of nouns that are not in `ops` yet."""

from __future__ import annotations

from tidemill.server import pages
from tidemill.server.routes import (
    alerts,
    changes,
    dead_letters,
    metrics,
    monitors,
    roster,
    run_stream,
    session,
    streams,
)

RESOURCES = (
    session,
    run_stream,
    metrics,
    streams,
    dead_letters,
    monitors,
    roster,
    alerts,
    pages,
    changes,
)

ALL = [route for resource in RESOURCES for route in resource.routes]
