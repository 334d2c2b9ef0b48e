"""The job inside a Ray task, which returns its outcome; what it reports before goes to the worker's mailbox."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from contextvars import copy_context
from functools import lru_cache
from queue import Empty, SimpleQueue
from typing import Any

import msgspec
import ray

from tidemill.core.codec import decode, encode
from tidemill.declarations import Declarations
from tidemill.engine.application.connections import SyncBridge
from tidemill.engine.application.load_app import load_app
from tidemill.engine.application.workflow_access import grant_access
from tidemill.engine.telemetry.logs import configure_logs
from tidemill.engine.worker.isolated_child import OrderedJobs
from tidemill.engine.worker.isolation import ChildOrder, ChildReport

BEGUN_AFTER = 0.2  # Seconds after which a job that has not ended yet sends its reports while it runs.


class RemoteEnd(msgspec.Struct, array_like=True):
    """What a job returns: how many reports it has sent before, and the others, the last of them its outcome."""

    sent: int
    reports: list[ChildReport]


def run_remote_job(app_path: str, order_data: bytes, mailbox: str) -> bytes:
    """Run one job. Its function runs in a thread, so that reports leave the process while it does."""
    declared, jobs = _application(app_path)
    reports: SimpleQueue[ChildReport] = SimpleQueue()
    order = decode(order_data, ChildOrder)
    context = copy_context()  # A new thread has an empty one.
    context.run(grant_access, declared.settings, declared.connections.unopened)
    arguments = (jobs.run, order, reports.put)
    threading.Thread(target=context.run, args=arguments, name="tidemill-job", daemon=True).start()
    kept: list[ChildReport] = []
    ends = time.monotonic() + BEGUN_AFTER
    while True:
        try:
            kept.append(reports.get(timeout=max(0.0, ends - time.monotonic())))
        except Empty:
            return encode(_run_long(order, reports, kept, mailbox))
        if kept[-1].is_outcome:
            return encode(RemoteEnd(0, kept))


def _run_long(order: ChildOrder, reports: SimpleQueue[ChildReport], kept: list[ChildReport], mailbox: str) -> RemoteEnd:
    """Send the reports of a job that takes longer as they come, beginning with that it runs."""
    actor: Any = ray.get_actor(mailbox)
    sent = 0
    for report in [ChildReport(beat=True), *kept]:
        actor.put.remote((order.id, order.attempt), encode(report))
        sent += 1
    while not (report := reports.get()).is_outcome:
        actor.put.remote((order.id, order.attempt), encode(report))
        sent += 1
    return RemoteEnd(sent, [report])


@lru_cache(maxsize=1)
def _application(app_path: str) -> tuple[Declarations, OrderedJobs]:
    """The application, loaded once per process of the cluster, with one event loop for its async tasks."""
    app = load_app(app_path)
    app.declarations.hash_stages()
    configure_logs(app.settings.log_level, app.settings.log_format)
    declared: Declarations = app.declarations
    return declared, OrderedJobs(declared.tasks, declared.lifespan, ExitStack(), SyncBridge().call)
