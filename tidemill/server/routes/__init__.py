"""Routes that are not operations: sessions, streams, files, pages; and those of nouns that are not in `ops` yet."""

from __future__ import annotations

from tidemill.server import pages
from tidemill.server.routes import (
    changes,
    metrics,
    run_stream,
    session,
    streams,
    values,
    webhooks,
)

RESOURCES = (
    session,
    run_stream,
    metrics,
    streams,
    pages,
    changes,
    webhooks,
    values,
)

ALL = [route for resource in RESOURCES for route in resource.routes]
