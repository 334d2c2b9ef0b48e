"""One module per resource, each with its `routes`. A new shape adds a module here and a line below."""

from __future__ import annotations

from tidemill.server import pages
from tidemill.server.routes import (
    audit,
    changes,
    dags,
    hosts,
    inputs,
    jobs,
    monitors,
    overview,
    queues,
    runs,
    schedules,
    search,
    session,
    streams,
    tokens,
    workers,
)

RESOURCES = (
    session,
    overview,
    jobs,
    runs,
    dags,
    inputs,
    queues,
    workers,
    schedules,
    hosts,
    streams,
    monitors,
    search,
    audit,
    tokens,
    pages,
    changes,
)

ALL = [route for resource in RESOURCES for route in resource.routes]
