"""One module per resource, each with its `routes`. A new shape adds a module here and a line below."""

from __future__ import annotations

from tidemill.server import pages
from tidemill.server.routes import (
    alerts,
    audit,
    changes,
    dags,
    dead_letters,
    hosts,
    inputs,
    jobs,
    monitors,
    overview,
    pipeline_actions,
    pipelines,
    queues,
    retention,
    roster,
    runs,
    schedules,
    search,
    session,
    streams,
    tokens,
    triggers,
    workers,
    workflows,
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
    dead_letters,
    monitors,
    roster,
    alerts,
    pipelines,
    pipeline_actions,
    triggers,
    workflows,
    search,
    audit,
    tokens,
    retention,
    pages,
    changes,
)

ALL = [route for resource in RESOURCES for route in resource.routes]
