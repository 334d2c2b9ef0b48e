"""The job inside a Ray task: a generator whose values are the reports of the job, the last of them its outcome."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from contextvars import copy_context
from functools import lru_cache
from queue import Empty, SimpleQueue

from tidemill.core.codec import decode, encode
from tidemill.declarations import Declarations
from tidemill.engine.application.connections import SyncBridge
from tidemill.engine.application.load_app import load_app
from tidemill.engine.application.workflow_access import grant_access
from tidemill.engine.telemetry.logs import configure_logs
from tidemill.engine.worker.isolated_child import OrderedJobs
from tidemill.engine.worker.isolation import ChildOrder, ChildReport

BEGUN_AFTER = 0.2  # Seconds after which a job that has not ended yet is reported as running.


def run_remote_job(app_path: str, order: bytes) -> Iterator[bytes]:
    """Run one job. Its function runs in a thread, so that reports leave the process while it does."""
    declared, jobs = _application(app_path)
    reports: SimpleQueue[ChildReport] = SimpleQueue()
    context = copy_context()  # A new thread has an empty one.
    context.run(grant_access, declared.settings, declared.connections.unopened)
    arguments = (jobs.run, decode(order, ChildOrder), reports.put)
    threading.Thread(target=context.run, args=arguments, name="tidemill-job", daemon=True).start()
    try:
        report = reports.get(timeout=BEGUN_AFTER)
    except Empty:
        yield encode(ChildReport(beat=True))
        report = reports.get()
    while not report.is_outcome:
        yield encode(report)
        report = reports.get()
    yield encode(report)


@lru_cache(maxsize=1)
def _application(app_path: str) -> tuple[Declarations, OrderedJobs]:
    """The application, loaded once per process of the cluster, with one event loop for its async tasks."""
    app = load_app(app_path)
    app.declarations.hash_stages()
    configure_logs(app.settings.log_level, app.settings.log_format)
    declared: Declarations = app.declarations
    return declared, OrderedJobs(declared.tasks, declared.lifespan, ExitStack(), SyncBridge().call)
